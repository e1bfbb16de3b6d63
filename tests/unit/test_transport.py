"""What ``pserver.transport`` promises: both sides' options agree, and endpoints are checked."""

import pytest

from pserver.config import ENDPOINTS_MAX, MESSAGE_BYTES_MAX, PART_BYTES_MAX
from pserver.errors import ConfigError
from pserver.transport import (
    Options,
    client_options,
    common_options,
    server_options,
    split_endpoint,
    split_endpoints,
)


@pytest.mark.parametrize("options", [client_options(), server_options()])
def test_both_sides_take_and_send_messages_of_one_size(options: Options) -> None:
    """The limits of both directions are the same on both sides, and over a part (B1)."""
    values = dict(options)

    assert values["grpc.max_receive_message_length"] == MESSAGE_BYTES_MAX > PART_BYTES_MAX
    assert values["grpc.max_send_message_length"] == MESSAGE_BYTES_MAX
    assert set(common_options()) <= set(options)
    assert len(values) == len(options)


def test_b8_ports_are_not_shared() -> None:
    """A server's port is its own (B8)."""
    assert dict(server_options())["grpc.so_reuseport"] == 0


def test_b12_proxies_are_not_asked() -> None:
    """A client does not look at proxy variables (B12)."""
    assert dict(client_options())["grpc.enable_http_proxy"] == 0


def test_b11_pings_are_no_oftener_than_the_server_allows() -> None:
    """A client's keepalive is no shorter than what the server tolerates (B11)."""
    pings_ms = int(dict(client_options())["grpc.keepalive_time_ms"])

    assert pings_ms >= int(dict(server_options())["grpc.http2.min_ping_interval_without_data_ms"])


def test_lost_connections_are_tried_again_soon() -> None:
    """A server that is back is found within two seconds or so (B4)."""
    assert dict(client_options())["grpc.max_reconnect_backoff_ms"] == 2000


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a:1", ("a", 1)),
        ("10.0.0.7:6170", ("10.0.0.7", 6170)),
        ("[::1]:0", ("[::1]", 0)),
        ("host:65535", ("host", 65535)),
    ],
)
def test_endpoint_is_split(text: str, parts: tuple[str, int]) -> None:
    """Host and port are told apart at the last colon."""
    assert split_endpoint(text, where="--ps") == parts


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:-1", "host:65536", "host:1a"])
def test_endpoint_is_refused_when_it_has_another_form(text: str) -> None:
    """What is no HOST:PORT is refused with what came."""
    with pytest.raises(ConfigError) as caught:
        split_endpoint(text, where="--ps")

    assert str(caught.value) == (f"--ps: must be HOST:PORT with a port in [0, 65535], got {text!r}")


@pytest.mark.parametrize("text", ["::1:6170", "ipv4:127.0.0.1:6170", "fe80::1:0"])
def test_i4_address_of_ipv6_takes_brackets(text: str) -> None:
    """What gRPC would read as an address without a port is refused with the form to write."""
    with pytest.raises(ConfigError, match=r"an IPv6 address takes brackets, \[::1\]:6170"):
        split_endpoint(text, where="--bind")


def test_endpoints_keep_their_order() -> None:
    """A list is split at commas, spaces and empty places dropped, in shard order."""
    assert split_endpoints(" b:2,a:1 ,, c:3,", where="--ps") == ["b:2", "a:1", "c:3"]


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "must name 1 to 1024 servers"),
        (" , ", "must name 1 to 1024 servers"),
        ("a:1,b", "must be HOST:PORT"),
        ("a:1,b:2,a:1", "a:1 is listed twice; each shard has its own"),
        (",".join(f"a:{i}" for i in range(ENDPOINTS_MAX + 1)), "must name 1 to 1024 servers"),
    ],
)
def test_endpoints_are_refused(text: str, fact: str) -> None:
    """An empty or too long list, a bad entry or a repeated one is refused."""
    with pytest.raises(ConfigError) as caught:
        split_endpoints(text, where="--ps")

    assert str(caught.value).startswith("--ps: ")
    assert fact in str(caught.value)


def test_server_and_its_standby_are_one_entry() -> None:
    """``HOST:PORT|HOST:PORT`` is one shard; both parts are checked, and neither may come twice."""
    assert split_endpoints("a:1|b:2,c:3", where="--ps") == ["a:1|b:2", "c:3"]
    with pytest.raises(ConfigError, match=r"--ps: must be HOST:PORT .*got 'b'"):
        split_endpoints("a:1|b", where="--ps")
    with pytest.raises(ConfigError, match="a:1 is listed twice"):
        split_endpoints("a:1|b:2,a:1", where="--ps")


def test_server_whose_address_stands_in_a_file_is_an_entry() -> None:
    """``file:PATH`` is taken as it is, beside others; it needs a path."""
    assert split_endpoints("file:run/shard-0,b:2|file:c", where="--ps") == [
        "file:run/shard-0",
        "b:2|file:c",
    ]
    with pytest.raises(ConfigError, match="--ps: file: must be followed by the path of a file"):
        split_endpoints("file:,b:2", where="--ps")
