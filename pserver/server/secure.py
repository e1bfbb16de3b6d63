"""Which addresses a server may listen on, and the TLS of its port.

Rooms before and after: ``app`` asks before anything starts, and opens the port with what comes back.

What always holds: a port that other machines can reach is opened with mutual TLS and tokens, or with
``--insecure-bind``. Certificates are read again at the first handshake after they changed.
"""

import ipaddress
import socket
from typing import Protocol

import grpc

from pserver.errors import ConfigError
from pserver.tls import FreshTls
from pserver.transport import split_endpoint


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a port that is opened on a host.

    A name that nobody knows counts as one: to listen there fails anyhow, and says why.

    >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), None)
    except OSError:
        return True
    return all(ipaddress.ip_address(str(each[4][0]).split("%")[0]).is_loopback for each in found)


class HasBinds(Protocol):
    """Settings of a server's ports."""

    bind: str
    metrics_bind: str | None
    insecure_bind: bool
    tls_cert: str | None
    token_file: str | None


def check_binds(settings: HasBinds) -> None:
    """Refuse to listen beyond this machine without TLS and tokens.

    Raises:
        ConfigError: what to do is said, with the commands.
    """
    if settings.insecure_bind or (settings.tls_cert and settings.token_file):
        return
    for flag, bind in (("--bind", settings.bind), ("--metrics-bind", settings.metrics_bind)):
        check_bind(flag, bind, command="pserver serve", tokens="--token-file")


def check_bind(flag: str, bind: str | None, *, command: str, tokens: str) -> None:
    """Refuse an address that other machines can reach, where TLS or tokens are missing.

    Args:
        flag: that gave the address.
        bind: HOST:PORT; None: nothing listens.
        command: that takes the flags.
        tokens: the flag of its file of tokens.

    Raises:
        ConfigError: what to do is said, with the commands.
    """
    if bind is None or is_loopback(split_endpoint(bind, where=flag)[0]):
        return
    raise ConfigError(
        f"{flag} {bind}: other machines can reach this, so it takes --tls-cert, --tls-key, --tls-ca "
        f"and {tokens}. For development:\n"
        "  pserver certs make certs --host NAME-OF-THIS-MACHINE\n"
        f"  {command} {flag} {bind} --tls-cert certs/server.pem --tls-key certs/server-key.pem "
        f"--tls-ca certs/ca.pem {tokens} certs/tokens.toml\n"
        "or --insecure-bind, where the network itself keeps everybody else out"
    )


def port_credentials(tls: FreshTls) -> grpc.ServerCredentials:
    """Return what a port is opened with: callers must show a certificate of the authority."""

    def configuration() -> grpc.ServerCertificateConfiguration:
        pems = tls.pems
        return grpc.ssl_server_certificate_configuration(
            [(pems.key, pems.cert)], root_certificates=pems.ca
        )

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        return configuration() if tls.renew() else None

    return grpc.dynamic_ssl_server_credentials(
        configuration(), fetch, require_client_authentication=True
    )
