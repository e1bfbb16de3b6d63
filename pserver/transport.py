"""The gRPC options of both sides, in one place since they must agree.

Rooms before and after: ``server.app`` opens a port with them, ``client.channel`` a connection.
"""

from pserver.config import ENDPOINTS_MAX, MESSAGE_BYTES_MAX
from pserver.errors import ConfigError

SERVICE = "pserver.v1.PServer"
"""Full name of the service; a method's path is ``/SERVICE/Method``."""

TERM_KEY = "pserver-term"
"""Metadata of a call to a server that has a standby: the highest term that the client met."""

FILE_ENDPOINT = "file:"
"""Begins the endpoint of a server whose HOST:PORT stands in a file."""

_MIB = 1 << 20

Options = list[tuple[str, int | str]]


def common_options() -> Options:
    """Return what both sides set.

    Large frames, write buffers and read chunks took pulls from 1.5 to 2.2 GB/s when measured;
    the window probe costs a round trip now and then and finds nothing on a local network.
    """
    return [
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.http2.max_frame_size", 16 * _MIB - 1),
        ("grpc.http2.write_buffer_size", 8 * _MIB),
        ("grpc.http2.lookahead_bytes", 16 * _MIB),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.experimental.tcp_read_chunk_size", 4 * _MIB),
        ("grpc.experimental.tcp_min_read_chunk_size", 1 * _MIB),
        ("grpc.experimental.tcp_max_read_chunk_size", 8 * _MIB),
    ]


def server_options() -> Options:
    """Return the server's options: a port that is taken is an error, never shared."""
    return [
        *common_options(),
        ("grpc.so_reuseport", 0),
        # A client may ping every 10 s even without a call; the default of 300 s cuts it off.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        # Without a call the default is two hours, and the second ping too many ends the connection.
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def client_options() -> Options:
    """Return the client's options.

    Servers are inside the cluster, so proxy variables of the environment are not for them. A
    connection that was lost is tried again within two seconds at the most, its name resolved anew.
    """
    return [
        *common_options(),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # Names are asked for again when a connection is lost, but by default once in 30 s at the most.
        ("grpc.dns_min_time_between_resolutions_ms", 1_000),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]


def split_endpoint(text: str, *, where: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``.

    Raises:
        ConfigError: the text has another form, or the port is out of range. A resolver of gRPC's may
            stand before it, as ``dns://SERVER/HOST:PORT``.

    >>> split_endpoint("127.0.0.1:6170", where="--bind")
    ('127.0.0.1', 6170)
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ConfigError(f"{where}: must be HOST:PORT with a port in [0, 65535], got {text!r}")
    if ":" in host and "://" not in host and not (host[0] == "[" and host[-1] == "]"):
        raise ConfigError(f"{where}: an IPv6 address takes brackets, [::1]:6170; got {text!r}")
    return host, int(port)


def split_endpoints(text: str, *, where: str) -> list[str]:
    """Return the endpoints of a comma-separated list, in shard order.

    One of them may be ``HOST:PORT|HOST:PORT``: a server, and its standby. ``file:PATH`` is a server whose
    HOST:PORT stands in a file, see ``pserver.client.whereabouts``.

    Raises:
        ConfigError: the list is empty or too long, or an entry is no HOST:PORT or file:PATH, or comes twice.

    >>> split_endpoints("a:1, b:2", where="--ps")
    ['a:1', 'b:2']
    """
    endpoints = [part.strip() for part in text.split(",") if part.strip()]
    if not 1 <= len(endpoints) <= ENDPOINTS_MAX:
        raise ConfigError(
            f"{where}: must name 1 to {ENDPOINTS_MAX} servers as HOST:PORT,HOST:PORT, got {text!r}"
        )
    listed = [single for endpoint in endpoints for single in endpoint.split("|")]
    for endpoint in listed:
        if endpoint == FILE_ENDPOINT:
            raise ConfigError(f"{where}: {FILE_ENDPOINT} must be followed by the path of a file")
        if not endpoint.startswith(FILE_ENDPOINT):
            split_endpoint(endpoint, where=where)
        if listed.count(endpoint) > 1:
            raise ConfigError(f"{where}: {endpoint} is listed twice; each shard has its own")
    return endpoints
