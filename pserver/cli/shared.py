"""What the commands of ``pserver`` share: the flags of a cluster, a client, a console, sizes.

Rooms before and after: ``cli``, ``cli.tables`` and ``cli.lifecycle`` use it.
"""

import argparse

from rich.console import Console

from pserver.client.client import Client
from pserver.client.connect import connect
from pserver.config import AccessSettings, ClientSettings
from pserver.options import add_flags, resolve

_MIB = 1 << 20
_GIB = 1 << 30
_PIPE_WIDTH = 120  # columns of a table that goes to no terminal


def add_cluster_flags(parser: argparse.ArgumentParser, *, has_json: bool = True) -> None:
    """Give a command the flags of all that ask a cluster, ``--json`` where it prints once."""
    parser.add_argument("--ps", required=True, metavar="HOST:PORT,...", help="shard 0 first")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds (default: 10)")
    if has_json:
        parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_flags(parser, AccessSettings)


def client_settings(given: argparse.Namespace) -> ClientSettings:
    """Return how the flags and the environment have a client talk to the cluster.

    Raises:
        ConfigError: a value is refused.
    """
    access, origins = resolve(AccessSettings, vars(given), environ=given.environ, prefix="PSERVER_")
    values = {name: value for name, value in access if value is not None}
    return ClientSettings.make(
        {"timeout_s": given.timeout, **values}, origins={"timeout_s": "flag --timeout", **origins}
    )


def connect_given(given: argparse.Namespace) -> Client:
    """Return a client of the cluster that the flags name."""
    return connect(given.ps, settings=client_settings(given), connect_s=given.timeout)


def console() -> Console:
    """Return where tables go: as wide as the terminal, or wide enough for a file or pipe."""
    found = Console()
    return found if found.is_terminal else Console(width=max(found.width, _PIPE_WIDTH))


def size_text(num_bytes: int) -> str:
    """Return a size in MiB or GiB.

    >>> size_text(3 << 20), size_text(5 << 30)
    ('3.00 MiB', '5.0 GiB')
    """
    if num_bytes < _GIB:
        return f"{num_bytes / _MIB:.2f} MiB"
    return f"{num_bytes / _GIB:,.1f} GiB"


def aligned(pairs: list[tuple[str, str]]) -> list[str]:
    """Return a line for each name and text, the texts in one column."""
    width = max(len(name) for name, _ in pairs)
    return [f"{name:<{width}}  {text}" for name, text in pairs]
