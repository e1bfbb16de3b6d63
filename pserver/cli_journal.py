"""``pserver journal``: what a journal holds, whether it is whole, and its records one by one.

Rooms before and after: ``cli`` adds the flags and prints what comes back; everything is read from the folder,
whose server may run meanwhile.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pserver.cli_checkpoint import Output
from pserver.errors import ConfigError
from pserver.journal.folder import read_state
from pserver.journal.reader import Segment, find_tail, list_segments, read_records
from pserver.journal.records import Record
from pserver.options import CommandParser, whole_number
from pserver.server.methods import kind_name

_DUMPED = 1000  # records, unless asked for more


def add_journal(parser: CommandParser) -> None:
    """Give ``journal`` its verbs."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def add(name: str, work: Callable[..., Output], text: str) -> argparse.ArgumentParser:
        verb: argparse.ArgumentParser = verbs.add_parser(name, help=text)
        verb.add_argument("folder", metavar="DIR", help="of one shard's journal")
        verb.add_argument("--json", action="store_true", help="print one JSON object")
        verb.set_defaults(work=work)
        return verb

    add("ls", _ls, "list the segments")
    add("verify", _verify, "read every record, and tell whether all are there")
    dumping = add("dump", _dump, "show records, one a line")
    dumping.add_argument(
        "--after", type=whole_number, default=0, help="the record before the first (default: 0)"
    )
    dumping.add_argument(
        "--count", type=whole_number, default=_DUMPED, help=f"at most (default: {_DUMPED})"
    )


def journal(given: argparse.Namespace) -> Output:
    """Do what a verb asks.

    Raises:
        ConfigError: there is no journal there.
        JournalError: it is damaged; file and offset are named.
    """
    folder = Path(given.folder)
    found = list_segments(folder) if folder.is_dir() else []
    if not found:
        raise ConfigError(f"{folder}: there is no journal")
    output: Output = given.work(given, folder, found)
    return output


def _ls(_: argparse.Namespace, folder: Path, found: list[Segment]) -> Output:
    """List segments."""
    tail = find_tail(found[-1])
    state = read_state(folder)
    head = found[-1].head
    ends = [segment.head.first - 1 for segment in found[1:]] + [tail.position]
    facts = {
        "shard": head.shard,
        "num_shards": head.num_shards,
        "journal": head.journal,
        "state": None if state is None else state.status,
        "fsync": None if state is None else state.fsync,
        "segments": [
            {"file": s.path.name, "first": s.head.first, "last": last, "bytes": s.bytes}
            for s, last in zip(found, ends, strict=True)
        ],
    }
    lines = [
        f"{folder}: shard {head.shard} of {head.num_shards}, {facts['state'] or 'unknown state'}, "
        f"fsync {facts['fsync'] or 'unknown'}"
    ]
    lines += [
        f"{segment.path.name}: records {segment.head.first} to {last}, bytes {segment.bytes:,}"
        for segment, last in zip(found, ends, strict=True)
    ]
    return Output(facts, lines)


def _verify(_: argparse.Namespace, folder: Path, found: list[Segment]) -> Output:
    """Read everything."""
    kinds: Counter[str] = Counter()
    body_bytes, last = 0, found[0].head.first - 1
    for record in read_records(folder, after=last):
        kinds[kind_name(record.kind)] += 1
        body_bytes += len(record.body)
        last = record.sequence
    torn = find_tail(found[-1]).torn
    facts = {
        "first": found[0].head.first,
        "last": last,
        "bytes": body_bytes,
        "torn_bytes": torn,
        "kinds": dict(kinds),
    }
    counts = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common()) or "no records"
    line = f"{folder}: records {facts['first']} to {last} are whole, bytes {body_bytes:,}: {counts}"
    end = f"{folder}: {torn} bytes at its end are torn, and go when it is opened"
    return Output(facts, [line, *([end] if torn else [])])


def _dump(given: argparse.Namespace, folder: Path, found: list[Segment]) -> Output:
    """Show records."""
    after = max(given.after, found[0].head.first - 1)
    shown: list[dict[str, Any]] = list(_shown(read_records(folder, after=after), given.count))
    lines = [
        f"{fact['sequence']} {fact['kind']} bytes {fact['bytes']} {fact['begins']}"
        for fact in shown
    ]
    return Output({"records": shown}, lines)


def _shown(records: Iterator[Record], count: int) -> Iterator[dict[str, Any]]:
    """Yield what is shown of the first records."""
    for record, _ in zip(records, range(count), strict=False):
        yield {
            "sequence": record.sequence,
            "kind": kind_name(record.kind),
            "bytes": len(record.body),
            "begins": record.body[:16].hex(),
        }
