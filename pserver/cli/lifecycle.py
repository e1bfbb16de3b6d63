"""``pserver clear``, ``drop``, ``shrink`` and ``top-keys``: flags, questions, and what is printed.

Rooms before and after: ``cli`` has its commands made here; ``client.lifecycle`` asks the shards.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any

from rich.table import Table

from pserver.cli.shared import add_cluster_flags, connect_given, console, size_text
from pserver.client.lifecycle import Gone, Shrink, TopKeys
from pserver.errors import ConfigError
from pserver.table.hot import STEP
from pserver.table.shrink import day_number
from pserver.table.top import WORDS


def add_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands of this room.

    Args:
        add: makes a command's parser from its name and help.
    """
    clearing = add("clear", help="remove all rows of a table; the table stays")
    dropping = add("drop", help="remove a table")
    for parser, run in ((clearing, _clear), (dropping, _drop)):
        _add_table(parser)
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.set_defaults(run=run)

    shrinking = add("shrink", help="let a day pass: rows fade, and what nobody needs goes")
    _add_table(shrinking)
    shrinking.add_argument(
        "--day", required=True, help="of the data: a date, or a whole number that rises"
    )
    shrinking.add_argument(
        "--dry-run", action="store_true", help="show what would go, and change nothing"
    )
    shrinking.set_defaults(run=_shrink)

    finding = add("top-keys", help="show which keys are hot")
    _add_table(finding)
    finding.add_argument(
        "--by", default=WORDS[0], choices=WORDS, help=f"what counts (default: {WORDS[0]})"
    )
    finding.add_argument("-n", type=int, default=20, metavar="COUNT", help="keys (default: 20)")
    finding.set_defaults(run=_top_keys)


def _add_table(parser: argparse.ArgumentParser) -> None:
    add_cluster_flags(parser)
    parser.add_argument("--table", required=True, help="name of the table")


def _clear(given: argparse.Namespace) -> None:
    with connect_given(given) as client:
        client.spec(given.table)  # which must be there before anybody is asked
        _confirm(given, f"remove all rows of table {given.table!r}")
        gone = client.lifecycle.clear(given.table)
    _tell(given, gone, f"cleared table {given.table!r}: {gone.rows:,} rows are gone")


def _drop(given: argparse.Namespace) -> None:
    with connect_given(given) as client:
        _confirm(given, f"remove table {given.table!r} with all that is in it")
        gone = client.lifecycle.drop(given.table)
    if gone.shards:
        _tell(given, gone, f"dropped table {given.table!r}: {gone.rows:,} rows are gone")
    else:
        _tell(given, gone, f"there was no table {given.table!r}; nothing was done")


def _confirm(given: argparse.Namespace, what: str) -> None:
    """Ask whoever sits there, unless that was answered by a flag.

    Raises:
        ConfigError: nobody sits there, or the answer is no.
    """
    if given.yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"this would {what}; say --yes where nobody can be asked")
    print(f"This will {what} at {given.ps}. Type the table's name to go on: ", end="", flush=True)
    if sys.stdin.readline().strip() != given.table:
        raise ConfigError("that is not its name; nothing was done")


def _tell(given: argparse.Namespace, gone: Gone, text: str) -> None:
    if given.json:
        print(json.dumps({"table": given.table, **dataclasses.asdict(gone)}))
    else:
        size = f", {size_text(gone.bytes)} on {len(gone.shards)} shards" if gone.shards else ""
        print(f"{text}{size}")


def _shrink(given: argparse.Namespace) -> None:
    day = day_number(given.day)
    with connect_given(given) as client:
        found = client.lifecycle.shrink(given.table, day, dry=given.dry_run)
    if given.json:
        facts: dict[str, Any] = {**dataclasses.asdict(found), "dry_run": given.dry_run}
        print(json.dumps({**facts, "is_past": found.is_past}))
        return
    for line in shrink_lines(found, dry=given.dry_run):
        print(line)
    if found.rows:
        console().print(histogram(found, dry=given.dry_run))


def shrink_lines(found: Shrink, *, dry: bool) -> list[str]:
    """Return what a shrink did, for people."""
    if found.past_shards:
        where = "" if found.is_past else f" on shard {', '.join(map(str, found.past_shards))}"
        past = (
            f"table {found.table!r} was shrunk for day {found.last_day} before{where}; "
            f"day {found.day} is not later, so nothing was done there"
        )
        if found.is_past:
            return [past]
    else:
        past = ""
    would = "would go" if dry else "are gone"
    lines = [
        f"table {found.table!r}, day {found.day}: {found.gone:,} of {found.rows:,} rows {would}, "
        f"{size_text(found.gone_bytes)}",
    ]
    if found.has_scores:
        lines.append(
            f"{found.by_score:,} for their score, {found.by_age:,} for their age (some for both)"
        )
    return lines + [past] * bool(past)


def histogram(found: Shrink, *, dry: bool) -> Table:
    """Return the rows by score, or by days unseen."""
    what = "score after the decay" if found.has_scores else "days unseen"
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in (what, "rows", "would go" if dry else "gone"):
        table.add_column(column, justify="right", no_wrap=True)
    bounds = [None, *found.edges, None]
    for low, high, rows, gone in zip(
        bounds[:-1], bounds[1:], found.all_counts, found.gone_counts, strict=True
    ):
        if rows:
            table.add_row(_bin(low, high), f"{rows:,}", f"{gone:,}")
    return table


def _bin(low: float | None, high: float | None) -> str:
    """Return the text of a bin.

    >>> _bin(None, 0.0), _bin(0.5, 1.0), _bin(100.0, None)
    ('under 0', '0.5 to 1', '100 or more')
    """
    if low is None:
        return f"under {high:g}"
    return f"{low:g} or more" if high is None else f"{low:g} to {high:g}"


def _top_keys(given: argparse.Namespace) -> None:
    with connect_given(given) as client:
        found = client.lifecycle.top_keys(given.table, by=given.by, count=given.n)
    if given.json:
        print(json.dumps({"table": given.table, "by": given.by, **_facts(found)}))
        return
    print(_bounds(found, given.by))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("key", given.by):
        table.add_column(column, justify="right", no_wrap=True)
    for key, value in zip(found.keys.tolist(), found.values.tolist(), strict=True):
        table.add_row(str(key), f"{value:,.0f}" if given.by == "pushes" else f"{value:g}")
    console().print(table)


def _facts(found: TopKeys) -> dict[str, Any]:
    keys, values = found.keys.tolist(), found.values.tolist()
    return {
        "keys": [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)],
        "missed": found.missed,
        "seen": found.seen,
    }


def _bounds(found: TopKeys, by: str) -> str:
    """Return how exact the values are."""
    if by != "pushes":
        return f"of {found.seen:,.0f} rows; exact"
    return (
        f"of about {found.seen:,.0f} pushed keys; each count is estimated from one in {STEP} of them "
        f"(a count of n is off by about {STEP**0.5:.0f} * sqrt(n)), and may be up to {found.missed:,.0f} "
        "too low"
    )
