"""``pserver trace``: the traces of several processes as one, and a trace as text.

Rooms before and after: ``cli`` has its command made here; ``pserver.trace`` does the work.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table

from pserver.cli.shared import console
from pserver.errors import ConfigError
from pserver.options import CommandParser, whole_number
from pserver.trace.files import write_events
from pserver.trace.merge import merge, read_trace
from pserver.trace.show import (
    BatchTrace,
    batch_lines,
    batches_of,
    chosen,
    slowest,
    span_rows,
    step_shares,
)

_COLUMNS = ("p50_ms", "p99_ms", "max_ms", "ms_a_batch")


def add_trace(add: Callable[..., CommandParser]) -> None:
    """Add the command of this room.

    Args:
        add: makes a command's parser from its name and help.
    """
    parser = add("trace", help="put traces of trainers and servers together, and look at them")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    merging = verbs.add_parser("merge", help="one file of several, on one clock, for Perfetto")
    merging.add_argument("files", nargs="+", metavar="FILE", help="that --trace wrote")
    merging.add_argument("-o", "--out", required=True, metavar="FILE", help="written anew")
    merging.add_argument("--json", action="store_true", help="print one JSON object")
    merging.set_defaults(run=_merge)

    showing = verbs.add_parser("show", help="where the time of batches went, as text")
    showing.add_argument("file", metavar="FILE", help="merged, or of one process")
    showing.add_argument("--batch", type=whole_number, help="one of them in full, by number")
    showing.add_argument("--trainer", help="of this trainer only, such as 'trainer 0'")
    showing.add_argument("--json", action="store_true", help="print one JSON object")
    showing.set_defaults(run=_show)


def _merge(given: argparse.Namespace) -> None:
    about, events = merge([Path(file) for file in given.files])
    out = Path(given.out)
    try:
        write_events(out, events, about)
    except OSError as error:
        raise ConfigError(f"-o {out}: cannot be written: {error.strerror}") from error
    spans = sum(event["ph"] == "X" for event in events)
    if given.json:
        print(json.dumps({"out": str(out), "spans": spans, "processes": about["processes"]}))
        return
    for one in about["processes"]:
        gone = f"; {one['gone']} older spans are gone" if one["gone"] else ""
        print(
            f"{one['name']}: clock moved by {one['offset_us'] / 1e3:+.3f} ms, known to "
            f"{one['offset_error_us'] / 1e3:.3f} ms{gone}"
        )
    print(f"{spans} spans in {out}; open it in ui.perfetto.dev, or `pserver trace show {out}`")


def _show(given: argparse.Namespace) -> None:
    batches = batches_of(*read_trace(Path(given.file)))
    if not batches:
        raise ConfigError(
            f"{given.file}: has no batch as a whole: merge it with the file of the trainer that read them"
        )
    if given.batch is not None:
        _show_batch(chosen(batches, given.batch, given.trainer), as_json=given.json)
        return
    there = [batch for batch in batches if given.trainer in (None, batch.trainer)]
    if not there:
        chosen(batches, batches[0].number, given.trainer)  # which says who is there
    _show_all(there, as_json=given.json)


def _show_batch(batch: BatchTrace, *, as_json: bool) -> None:
    if as_json:
        facts = {**dataclasses.asdict(batch), "step": dict(step_shares(batch))}
        print(json.dumps(facts))
    else:
        print(*batch_lines(batch), sep="\n")


def _show_all(batches: Sequence[BatchTrace], *, as_json: bool) -> None:
    rows, slow = span_rows(batches), slowest(batches)
    if as_json:
        told = [
            {"batch": b.number, "trainer": b.trainer, "step_ms": b.step.ms if b.step else None}
            for b in slow
        ]
        print(json.dumps({"batches": len(batches), "spans": rows, "slowest": told}))
        return
    table = Table(title=f"{len(batches)} batches; milliseconds")
    table.add_column("span")
    for column in ("spans", "p50", "p99", "max", "a batch"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["name"], str(row["spans"]), *(f"{row[column]:.3f}" for column in _COLUMNS)
        )
    console().print(table)
    told_slow = ", ".join(
        f"{b.number} of {b.trainer} ({b.step.ms:.3f} ms)" for b in slow if b.step is not None
    )
    print(f"slowest steps: {told_slow}; `pserver trace show FILE --batch N` shows one in full")
