"""The command ``trainer pipeline plan``: show how a pipeline would spend its time, without running it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pserver

if TYPE_CHECKING:
    from collective.pipeline_timetable import Schedule

_SCHEDULES: tuple["Schedule", ...] = ("gpipe", "1f1b", "interleaved", "zero_bubble")
"""As in ``collective.pipeline_timetable``, which loads torch; a test compares them."""


def add_pipeline_command(commands: Any) -> None:
    """Add ``pipeline`` with its verb to a command's subparsers."""
    pipeline = commands.add_parser("pipeline", help="look at pipelines without running any")
    verbs = pipeline.add_subparsers(dest="verb", required=True, metavar="VERB")
    planning = verbs.add_parser("plan", help="print the timetable of a schedule and its bubble")
    planning.add_argument("--stages", type=int, default=4, help="parts of the model")
    planning.add_argument("--micro-batches", type=int, default=8, help="parts of a batch")
    planning.add_argument("--schedule", choices=_SCHEDULES, default="1f1b", help="who waits when")
    planning.add_argument(
        "--virtual", type=int, default=1, help="stages of a rank; with interleaved"
    )
    planning.add_argument("--png", type=Path, metavar="FILE", help="draw it into a file too")
    planning.set_defaults(run=_plan)


def _plan(given: argparse.Namespace) -> None:
    from collective import GroupError  # loads torch, so after main() has set the environment
    from collective.pipeline_picture import timetable_png, timetable_text
    from collective.pipeline_timetable import make_timetable

    try:
        if given.virtual < 1 or given.stages % given.virtual:
            raise GroupError(f"{given.stages} stages do not divide into {given.virtual} a rank")
        timetable = make_timetable(
            given.schedule,
            ranks=given.stages // given.virtual,
            micro_batches=given.micro_batches,
            virtual=given.virtual,
        )
        picture = timetable_png(timetable) if given.png else b""
    except (GroupError, ValueError) as error:
        raise pserver.ConfigError(str(error)) from error
    print(timetable_text(timetable))
    if given.png:
        try:
            given.png.write_bytes(picture)
        except OSError as error:
            raise pserver.ConfigError(f"--png {given.png}: {error.strerror}") from error
        print(f"drawn into {given.png}")
