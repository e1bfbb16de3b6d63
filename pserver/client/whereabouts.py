"""Where a server is now: an endpoint to an address.

Rooms before and after: ``connection`` asks when it connects, and again when a call found nobody there.

What always holds: ``HOST:PORT`` stands for itself, since gRPC resolves names; ``file:PATH`` stands for the
``HOST:PORT`` that the file holds at that moment, so a server that came back elsewhere is found once somebody wrote
its new address there. A file that is not there, or holds something else, names no server yet.
"""

from pathlib import Path

from pserver.errors import ConfigError
from pserver.transport import FILE_ENDPOINT, split_endpoint

_BYTES_MAX = 512  # a host name has at most 253


def address_of(endpoint: str) -> str:
    """Return what gRPC connects to for an endpoint; empty where nobody knows yet.

    Args:
        endpoint: HOST:PORT, or file:PATH.

    >>> address_of("10.0.0.7:6170"), address_of("file:no/such/file")
    ('10.0.0.7:6170', '')
    """
    if not endpoint.startswith(FILE_ENDPOINT):
        return endpoint
    try:
        with Path(endpoint.removeprefix(FILE_ENDPOINT)).open("rb") as file:
            address = file.read(_BYTES_MAX).decode().strip()
        split_endpoint(address, where=endpoint)
    except (OSError, UnicodeDecodeError, ConfigError):
        return ""
    return address
