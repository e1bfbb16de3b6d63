"""The command ``trainer pipeline plan``: show how a pipeline would spend its time, and measure how it does."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pserver

if TYPE_CHECKING:
    from collective.pipeline_timetable import Schedule, Timetable

_SCHEDULES: tuple["Schedule", ...] = ("gpipe", "1f1b", "interleaved", "zero_bubble")
"""As in ``collective.pipeline_timetable``, which loads torch; a test compares them."""

_TICK_MS = 20.0
"""Long against what a step costs beside, some milliseconds."""


def add_pipeline_command(commands: Any) -> None:
    """Add ``pipeline`` with its verb to a command's subparsers."""
    pipeline = commands.add_parser("pipeline", help="look at pipelines without training")
    verbs = pipeline.add_subparsers(dest="verb", required=True, metavar="VERB")
    planning = verbs.add_parser("plan", help="print the timetable of a schedule and its bubble")
    planning.add_argument("--stages", type=int, default=4, help="parts of the model")
    planning.add_argument("--micro-batches", type=int, default=8, help="parts of a batch")
    planning.add_argument("--schedule", choices=_SCHEDULES, default="1f1b", help="who waits when")
    planning.add_argument(
        "--virtual", type=int, default=1, help="stages of a rank; with interleaved"
    )
    planning.add_argument("--png", type=Path, metavar="FILE", help="draw it into a file too")
    planning.add_argument(
        "--measure",
        type=float,
        nargs="?",
        const=_TICK_MS,
        metavar="MS",
        help=f"run it too, with stages that wait so long a tick (alone: {_TICK_MS:g} ms)",
    )
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
        measured = "" if given.measure is None else _measured(timetable, given.measure)
    except (GroupError, ValueError) as error:
        raise pserver.ConfigError(str(error)) from error
    print(timetable_text(timetable))
    if measured:
        print(measured)
    if given.png:
        try:
            given.png.write_bytes(picture)
        except OSError as error:
            raise pserver.ConfigError(f"--png {given.png}: {error.strerror}") from error
        print(f"drawn into {given.png}")


def _measured(timetable: "Timetable", tick_ms: float) -> str:
    """Return what running it came to, in a line."""
    from collective.pipeline_measure import STEPS, measure

    found = measure(timetable, tick_s=tick_ms / 1e3)
    planned_ms = timetable.ticks * tick_ms
    return (
        f"measured: bubble {found.bubble_share:.1%}, {1e3 * found.step_s:.0f} ms a step (planned "
        f"{planned_ms:.0f} ms; median of {STEPS}), at most {found.queue_bytes} bytes waited on a rank"
    )
