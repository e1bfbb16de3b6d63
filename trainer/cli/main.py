"""The command ``trainer``: run a training job and say how it went.

Exit status: 0 done; 1 a server, the network or the data failed; 2 settings that cannot work; 130 an
interrupt; 143 SIGTERM, as process 1 of a container too. `deploy/RUNBOOK.md` says which to try again.
"""

import argparse
import atexit
import gc
import json
import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

import pserver
from trainer.cli.launch import add_launch_command
from trainer.cli.pipeline import add_pipeline_command
from trainer.config import RunSettings
from trainer.errors import TrainerError
from trainer.settings.aliases import RunAliases
from trainer.settings.explain import explain, explained_table

if TYPE_CHECKING:
    from trainer.job.summary import Summary

FAILURE_EXIT = 1
"""Exit status when a server, the network or the data failed."""

INTERRUPT_EXIT = 130
"""Exit status when an interrupt ended the command."""

SIGTERM_EXIT = 128 + signal.SIGTERM
"""Exit status when SIGTERM ended the command: the same as if nobody had handled it."""


class _Terminated(BaseException):
    """SIGTERM came; like KeyboardInterrupt it passes all that handles errors."""


def make_parser() -> pserver.CommandParser:
    """Return the parser of the whole command."""
    parser = pserver.CommandParser(prog="trainer", description="Train models on pservers.")
    parser.add_argument("--version", action="version", version=f"trainer {pserver.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    running = commands.add_parser("run", help="train a built-in model and score held-out rows")
    _add_run_flags(running)
    running.add_argument(
        "--json",
        action="store_true",
        help="make the last line of standard output one JSON object with every figure",
    )
    running.add_argument(
        "--json-progress",
        action="store_true",
        help="write a JSON object with the progress to standard output a few times a second",
    )
    running.set_defaults(run=_run)
    add_launch_command(commands, environ=os.environ)
    add_pipeline_command(commands)
    configs = commands.add_parser("config", help="look at settings without running anything")
    verbs = configs.add_subparsers(dest="verb", required=True, metavar="VERB")
    explaining = verbs.add_parser("explain", help="show each setting of `run` and its origin")
    _add_run_flags(explaining)
    explaining.add_argument("--json", action="store_true", help="print one JSON object")
    explaining.set_defaults(run=_explain)
    return parser


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Give a command the settings of a run."""
    parser.add_argument("--config", help="TOML file; its [run] table holds these settings")
    pserver.add_flags(parser, RunSettings)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our errors say it better
    # torch's threads wait by spinning, which takes the cores from shards, readers and other jobs on
    # the machine: 13 against 83 thousand samples/s with two busy neighbours on two cores. OpenMP
    # reads this when torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # --deterministic on a GPU needs it
    given = make_parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], None] = given.run
    name = f"trainer {given.command}"
    # Before torch loads: process 1 of a container ignores a signal that nobody handles.
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        command(given)
    except pserver.RequestError as error:
        pserver.tell_failure(name, str(error), status=pserver.USAGE_EXIT)
        return pserver.USAGE_EXIT
    except (pserver.PserverError, TrainerError) as error:
        pserver.tell_failure(name, str(error), status=FAILURE_EXIT)
        return FAILURE_EXIT
    except Exception as error:
        if not pserver.tell_crash(name, error, status=FAILURE_EXIT):
            raise
        return FAILURE_EXIT
    except KeyboardInterrupt:
        pserver.tell_failure(name, "interrupted", status=INTERRUPT_EXIT)
        return INTERRUPT_EXIT
    except _Terminated:
        pserver.tell_failure(name, "ended by SIGTERM", status=SIGTERM_EXIT)
        return SIGTERM_EXIT
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _terminate(*_: object) -> None:
    raise _Terminated


def _run(given: argparse.Namespace) -> None:
    pserver.configure_logs("warning")
    settings, _ = _settings(given)
    if settings.log_format == "json":
        # Progress is an event then, of level info.
        pserver.configure_logs("info", form="json", trainer=settings.trainer_id or 0)
    if settings.starts_all:
        summary = _launch(settings)
    else:
        # Looking for garbage once more takes 0.6 of the 0.7 CPU seconds that an end with torch takes.
        atexit.register(gc.freeze)
        summary = _run_here(settings, tells=given.json_progress)
    if given.json:
        print(json.dumps(summary.as_dict()), flush=True)
    else:
        from trainer.job.summary import summary_table

        Console().print(summary_table(summary))


def _run_here(settings: RunSettings, *, tells: bool) -> "Summary":
    """Be one trainer; where another one fails in a sum, that is our failure too."""
    from collective import CollectiveError  # loads torch, so after main() has set the environment
    from trainer.job.run import run

    try:
        return run(settings, tell=_tell if tells else lambda _: None)
    except CollectiveError as error:
        raise TrainerError(str(error)) from error


def _launch(settings: RunSettings) -> "Summary":
    from trainer.launch.local import launch

    return launch(settings, environ=os.environ)


def _tell(progress: dict[str, Any]) -> None:
    print(json.dumps({"progress": progress}), flush=True)


def _settings(given: argparse.Namespace) -> tuple[RunSettings, dict[str, str]]:
    """Return the settings of a run and where each came from."""
    return pserver.resolve(
        RunSettings,
        vars(given),
        environ=os.environ,
        prefix="TRAINER_",
        file=given.config,
        section="run",
        aliases=RunAliases(),
    )


def _explain(given: argparse.Namespace) -> None:
    settings, origins = _settings(given)
    explained = explain(settings, origins)
    if given.json:
        print(json.dumps({item.name: item.as_dict() for item in explained}))
    else:
        Console().print(explained_table(explained))
