"""The command ``pserver``: serve a shard, look at a cluster.

Exit status: 0 done; 1 a server or the network failed; 2 settings that cannot work.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import uvloop
from rich import box
from rich.console import Console
from rich.table import Table

from pserver._version import __version__
from pserver.client.client import Client
from pserver.client.connect import connect
from pserver.config import ClientSettings, ServeSettings
from pserver.errors import ConfigError, PserverError
from pserver.logs import configure_logs
from pserver.options import USAGE_EXIT, CommandParser, add_flags, resolve
from pserver.server.app import serve
from pserver.table.optimizer import RULES, make_optimizer
from pserver.v1 import pserver_pb2 as pb

FAILURE_EXIT = 1
"""Exit status when a server or the network failed: trying again may help."""

_MIB = 1 << 20
_PIPE_WIDTH = 120  # columns of a table that goes to no terminal


def make_parser() -> CommandParser:
    """Return the parser of the whole command."""
    parser = CommandParser(prog="pserver", description="Serve and inspect a parameter server.")
    parser.add_argument("--version", action="version", version=f"pserver {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serving = commands.add_parser("serve", help="run one shard until SIGTERM")
    serving.add_argument("--config", help="TOML file; its [serve] table holds these settings")
    add_flags(serving, ServeSettings)
    serving.set_defaults(run=_serve)

    status = commands.add_parser("status", help="show what each shard of a cluster does")
    status.add_argument("--ps", required=True, metavar="HOST:PORT,...", help="shard 0 first")
    status.add_argument("--timeout", type=float, default=10.0, help="seconds (default: 10)")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    status.set_defaults(run=_status)

    optimizers = commands.add_parser("optimizers", help="list the rules a table may have")
    optimizers.add_argument("--dim", type=int, default=16, help="for the sizes (default: 16)")
    optimizers.add_argument("--json", action="store_true", help="print one JSON object")
    optimizers.set_defaults(run=_optimizers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our errors say it better
    given = make_parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], None] = given.run
    try:
        run(given)
    except ConfigError as error:
        print(f"pserver {given.command}: {error}", file=sys.stderr)
        return USAGE_EXIT
    except PserverError as error:
        print(f"pserver {given.command}: {error}", file=sys.stderr)
        return FAILURE_EXIT
    return 0


def _serve(given: argparse.Namespace) -> None:
    settings, _ = resolve(
        ServeSettings,
        vars(given),
        environ=os.environ,
        prefix="PSERVER_",
        file=given.config,
        section="serve",
    )
    configure_logs(settings.log_level)
    uvloop.run(serve(settings, announce=lambda line: print(line, flush=True)))


def _status(given: argparse.Namespace) -> None:
    settings = ClientSettings.make(
        {"timeout_s": given.timeout}, origins={"timeout_s": "flag --timeout"}
    )
    with connect(given.ps, settings=settings, connect_s=given.timeout) as client:
        facts = _facts(client)
    if given.json:
        print(json.dumps({"shards": facts}))
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("shard", "endpoint", "state"):
        table.add_column(column, no_wrap=True)
    for column in ("rows", "MiB", "pulls/s", "pushes/s", "p99 ms", "uptime"):
        table.add_column(column, justify="right", no_wrap=True)
    for fact in facts:
        table.add_row(
            str(fact["shard"]),
            str(fact["endpoint"]),
            str(fact["state"]),
            f"{fact['rows']:,}",
            f"{fact['bytes'] / _MIB:,.1f}",
            f"{fact['pulls_per_s']:.1f}",
            f"{fact['pushes_per_s']:.1f}",
            f"{max(fact['pull_p99_s'], fact['push_p99_s']) * 1e3:.1f}",
            f"{fact['uptime_s']:.0f} s",
        )
    _console().print(table)


def _console() -> Console:
    """Return where tables go: as wide as the terminal, or wide enough for a file or pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, _PIPE_WIDTH))


def _facts(client: Client) -> list[dict[str, Any]]:
    """Return what is shown of each shard."""
    facts = []
    for info, stats in zip(client.shards, client.stats(), strict=True):
        methods = {method.method: method for method in stats.methods}
        pull = methods.get("Pull", pb.MethodStats())
        push = methods.get("Push", pb.MethodStats())
        facts.append(
            {
                "shard": info.shard,
                "endpoint": info.endpoint,
                "state": stats.server.state,
                "tables": [table.table for table in stats.tables],
                "rows": sum(table.rows for table in stats.tables),
                "bytes": sum(table.bytes for table in stats.tables),
                "memory_bytes": stats.memory_bytes,
                "cpu_s": stats.cpu_s,
                "pulls_per_s": pull.calls_per_s,
                "pushes_per_s": push.calls_per_s,
                "pull_p99_s": pull.p99_s,
                "push_p99_s": push.p99_s,
                "pushes_applied": stats.pushes_applied,
                "pushes_duplicate": stats.pushes_duplicate,
                "queued": stats.queued,
                "uptime_s": stats.uptime_s,
                "package_version": stats.server.package_version,
            }
        )
    return facts


def _optimizers(given: argparse.Namespace) -> None:
    if given.dim < 1:
        raise ConfigError(f"--dim must be at least 1, got {given.dim}")
    facts = [
        {
            "name": name,
            "formula": rule.formula,
            "default": make_optimizer(name, dim=given.dim).text,
            "state": rule.state,
            "state_floats": make_optimizer(name, dim=given.dim).state_dim,
            "source": rule.source,
        }
        for name, rule in RULES.items()
    ]
    if given.json:
        print(json.dumps({"dim": given.dim, "optimizers": facts}))
        return
    table = Table(title=f"optimizers; floats of state a row at dim {given.dim}")
    for column in ("rule with defaults", "formula", "state", "floats", "source"):
        table.add_column(column, overflow="fold")
    for fact in facts:
        table.add_row(
            *(str(fact[key]) for key in ("default", "formula", "state", "state_floats", "source"))
        )
    _console().print(table)
