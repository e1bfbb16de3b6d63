"""The command ``pserver``: serve a shard, look at a cluster, plan a table.

Exit status: 0 done; 1 a server or the network failed; 2 settings that cannot work, or a table
that is not there.
"""

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from pserver._version import __version__
from pserver.cli.certs import add_certs
from pserver.cli.checkpoint import add_checkpoint, checkpoint
from pserver.cli.export import add_export
from pserver.cli.journal import add_journal, add_promote, journal, promote
from pserver.cli.lifecycle import add_commands
from pserver.cli.plan import add_plan
from pserver.cli.shards import down_facts, shard_facts, status_table
from pserver.cli.shared import add_cluster_flags, client_settings, connect_given, console
from pserver.cli.tables import (
    inspected_facts,
    inspected_lines,
    table_facts,
    tables_table,
    warnings,
)
from pserver.cli.top import add_top
from pserver.cli.trace import add_trace
from pserver.cli.trainers import group_facts, group_lines
from pserver.cli.web import add_web
from pserver.client.channel import GrpcChannel
from pserver.client.connect import stats_of_each
from pserver.client.credentials import Credentials
from pserver.config import AccessSettings, ServeSettings
from pserver.errors import ConfigError, PserverError, RequestError, UnavailableError
from pserver.logs import configure_logs, tell_crash, tell_failure
from pserver.options import (
    USAGE_EXIT,
    CommandParser,
    add_flags,
    key_number,
    resolve,
)
from pserver.paddle import ServeAliases
from pserver.server.app import serve
from pserver.table.optimizer import COMMON, RULES, make_optimizer
from pserver.table.optimizer_file import load_rules
from pserver.table.schedule import SHAPES
from pserver.trace import recording
from pserver.transport import split_endpoints
from pserver.v1 import pserver_pb2 as pb

FAILURE_EXIT = 1
"""Exit status when a server or the network failed: trying again may help."""

_LOOK_S = 2.0  # for a second look at the shards that do answer
_WIDTH_LS = 1000  # nothing is folded: one table is one line, for grep and for a narrow terminal


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
    add_cluster_flags(status)
    status.set_defaults(run=_status)

    add_top(commands.add_parser)
    add_web(commands.add_parser)
    add_trace(commands.add_parser)

    listing = commands.add_parser("ls", help="list the tables of a cluster")
    add_cluster_flags(listing)
    listing.set_defaults(run=_ls)

    inspecting = commands.add_parser(
        "inspect", help="show where a key lives and what its row holds"
    )
    add_cluster_flags(inspecting)
    inspecting.add_argument("--table", required=True, help="name of the table")
    inspecting.add_argument(
        "--key",
        required=True,
        type=key_number,
        help="decimal or 0x; a negative one is taken bit for bit",
    )
    inspecting.set_defaults(run=_inspect)

    add_commands(commands.add_parser)
    add_export(commands.add_parser)
    add_certs(commands.add_parser)
    add_plan(commands.add_parser("plan", help="tell what a table will cost, without a server"))

    checkpoints = commands.add_parser("checkpoint", help="save, load and look after checkpoints")
    add_checkpoint(checkpoints, cluster_flags=add_cluster_flags)
    checkpoints.set_defaults(run=_checkpoint)

    journals = commands.add_parser("journal", help="look at a shard's journal")
    add_journal(journals)
    journals.set_defaults(run=_journal)

    promoting = commands.add_parser("promote", help="let a standby take its server's place")
    add_promote(promoting)
    promoting.set_defaults(run=_journal)

    optimizers = commands.add_parser("optimizers", help="list the rules a table may have")
    optimizers.add_argument("--dim", type=int, default=16, help="for the sizes (default: 16)")
    optimizers.add_argument("--json", action="store_true", help="print one JSON object")
    optimizers.set_defaults(run=_optimizers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our errors say it better
    given = make_parser().parse_args(arguments)
    given.environ = os.environ
    run: Callable[[argparse.Namespace], None] = given.run
    try:
        run(given)
    except RequestError as error:
        tell_failure(f"pserver {given.command}", str(error), status=USAGE_EXIT)
        return USAGE_EXIT
    except PserverError as error:
        tell_failure(f"pserver {given.command}", str(error), status=FAILURE_EXIT)
        return FAILURE_EXIT
    except Exception as error:
        if not tell_crash(f"pserver {given.command}", error, status=FAILURE_EXIT):
            raise
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
        aliases=ServeAliases(),
    )
    configure_logs(settings.log_level, form=settings.log_format, shard=settings.shard)
    load_rules(settings.rule)
    shown = Credentials(
        AccessSettings(
            tls_cert=settings.tls_cert,
            tls_key=settings.tls_key,
            tls_ca=settings.tls_ca,
            token_file=settings.standby_token_file,
        )
    )
    follow = functools.partial(GrpcChannel, credentials=shown)
    number = settings.shard if settings.shards > 1 else None
    with recording(settings, name=f"shard {settings.shard}", number=number):
        uvloop.run(serve(settings, announce=lambda line: print(line, flush=True), connect=follow))


def _status(given: argparse.Namespace) -> None:
    try:
        with connect_given(given) as client:
            replies = client.stats()
            pairs = zip((info.endpoint for info in client.shards), replies, strict=True)
            _show_status(
                [shard_facts(*pair) for pair in pairs], group_facts(replies), as_json=given.json
            )
    except UnavailableError:
        # One shard is down: the others are shown all the same, and the error is said after them.
        endpoints = split_endpoints(given.ps, where="--ps")
        answers = stats_of_each(
            endpoints, settings=client_settings(given), timeout_s=min(given.timeout, _LOOK_S)
        )
        if all(isinstance(answer, PserverError) for answer in answers):
            raise
        facts = [
            down_facts(endpoint, shard, answer)
            if isinstance(answer, PserverError)
            else shard_facts(endpoint, answer)
            for shard, (endpoint, answer) in enumerate(zip(endpoints, answers, strict=True))
        ]
        there = [answer for answer in answers if isinstance(answer, pb.StatsReply)]
        _show_status(facts, group_facts(there), as_json=given.json)
        raise


def _show_status(
    facts: list[dict[str, Any]], group: dict[str, Any] | None, *, as_json: bool
) -> None:
    if as_json:
        print(json.dumps({"shards": facts, "group": group}))
        return
    console().print(status_table(facts))
    for fact in facts:
        print(*fact["troubles"], sep="\n", end="\n" * bool(fact["troubles"]))
    if group is not None:
        line, trainers = group_lines(group)
        print(line)
        console().print(trainers)


def _ls(given: argparse.Namespace) -> None:
    with connect_given(given) as client:
        facts = table_facts(client)
    for line in warnings(facts):
        print(f"pserver ls: warning: {line}", file=sys.stderr)
    if given.json:
        print(json.dumps({"tables": facts}))
    elif facts:
        Console(width=_WIDTH_LS).print(tables_table(facts))
    else:
        print("the servers have no tables")


def _checkpoint(given: argparse.Namespace) -> None:
    output = checkpoint(given, connect_given)
    print(*([json.dumps(output.facts)] if given.json else output.lines), sep="\n")


def _journal(given: argparse.Namespace) -> None:
    output = journal(given) if given.command == "journal" else promote(given)
    print(*([json.dumps(output.facts)] if given.json else output.lines), sep="\n")


def _inspect(given: argparse.Namespace) -> None:
    with connect_given(given) as client:
        found = client.inspect(given.table, given.key)
    if given.json:
        print(json.dumps(inspected_facts(found)))
    else:
        print(*inspected_lines(found), sep="\n")


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
    schedules = {
        word: {"formula": shape.formula, "options": sorted(shape.options)}
        for word, shape in SHAPES.items()
    }
    if given.json:
        extra = {"common_options": sorted(COMMON), "schedules": schedules}
        print(json.dumps({"dim": given.dim, "optimizers": facts, **extra}))
        return
    table = Table(title=f"optimizers; floats of state a row at dim {given.dim}")
    for column in ("rule with defaults", "formula", "state", "floats", "source"):
        table.add_column(column, overflow="fold")
    for fact in facts:
        table.add_row(
            *(str(fact[key]) for key in ("default", "formula", "state", "state_floats", "source"))
        )
    out = console()
    out.print(table)
    out.print(f"every rule also takes {', '.join(COMMON)} (off by default), and")
    for word, entry in schedules.items():
        words = ", ".join(["warmup", *entry["options"]])
        out.print(f"  schedule={word}, with {words}: {entry['formula']}", highlight=False)
