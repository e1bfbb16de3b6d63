"""``pserver certs make``: a development authority, certificates and tokens.

Rooms before and after: ``cli`` has it made here; ``certs`` does the work.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from pserver.errors import ConfigError

_HOSTS = ("localhost", "127.0.0.1", "::1")


def add_certs(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command.

    Args:
        add: makes a command's parser from its name and help.
    """
    parser = add("certs", help="make certificates and tokens for development")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    making = verbs.add_parser(
        "make", help="write an authority, certificates of servers and clients, and tokens"
    )
    making.add_argument("folder", help="where to; an authority that is there is kept")
    making.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help=f"name or address of a server, again for each; {', '.join(_HOSTS)} are in",
    )
    making.add_argument(
        "--days", type=int, default=365, help="that certificates hold (default: 365)"
    )
    parser.set_defaults(run=_make)


def _make(given: argparse.Namespace) -> None:
    if not 1 <= given.days <= 3650:
        raise ConfigError(f"--days must be in [1, 3650], got {given.days}")
    try:
        from pserver.certs import make_certs
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"certs make needs the package {error.name}: pip install 'pserver[certs]'"
        ) from error
    folder = Path(given.folder)
    hosts = list(dict.fromkeys([*_HOSTS, *given.host]))
    files = make_certs(folder, hosts=hosts, days=given.days)
    print(f"wrote {folder}: {', '.join(files)}; certificates are for {', '.join(hosts)}")
    shown = (
        f"--tls-cert {folder}/{{0}}.pem --tls-key {folder}/{{0}}-key.pem --tls-ca {folder}/ca.pem"
    )
    print(f"servers: {shown.format('server')} --token-file {folder}/tokens.toml")
    print(f"trainers: {shown.format('client')} --token-file {folder}/train.token")
