"""``pserver journal``: what a journal holds, whether it is whole, its records; and ``pserver promote``.

Rooms before and after: ``cli`` adds the flags and prints what comes back. A journal is read from its folder,
whose server may run meanwhile; promote asks a standby.
"""

import argparse
import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pserver.cli.checkpoint import Output
from pserver.cli.shared import client_settings
from pserver.client.channel import GrpcChannel
from pserver.client.credentials import Credentials
from pserver.config import AccessSettings
from pserver.deadline import Deadline
from pserver.errors import ConfigError
from pserver.journal.folder import read_state
from pserver.journal.reader import Segment, find_tail, list_segments, read_records
from pserver.journal.records import Record
from pserver.options import CommandParser, add_flags, whole_number
from pserver.server.methods import kind_name
from pserver.transport import split_endpoint
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small, parse_small

_ANSWER_S = 30.0  # for a standby to apply what it took last, and to wait until its promise is over
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


def add_promote(parser: argparse.ArgumentParser) -> None:
    """Give ``promote`` its flags."""
    parser.add_argument("endpoint", metavar="HOST:PORT", help="of the standby")
    add_flags(parser, AccessSettings)
    parser.add_argument(
        "--timeout", type=float, default=5.0, help="seconds for the old server (default: 5)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def promote(given: argparse.Namespace) -> Output:
    """Let a standby take its server's place, or a server go on without its standby; tell what may be lost.

    Raises:
        PserverError: it does not answer, is no standby, or did not follow.
    """
    split_endpoint(given.endpoint, where="promote")

    async def asked() -> pb.PromoteReply:
        channel = GrpcChannel(given.endpoint, Credentials(client_settings(given)))
        try:
            request = build_small(pb.PromoteRequest(timeout_s=given.timeout))
            deadline = Deadline.after(given.timeout + _ANSWER_S)
            return parse_small(
                pb.PromoteReply, await channel.call("Promote", request, deadline=deadline)
            )
        finally:
            await channel.close()

    reply = asyncio.run(asked())
    facts = {
        "position": reply.position,
        "told": reply.told,
        "heard_s": reply.heard_s,
        "handed_over": reply.handed_over,
        "term": reply.term,
    }
    lost = "nothing is lost: the old server handed over and takes no more requests"
    if reply.is_alone:
        lost = "nothing is lost, if its standby never took its place. See that that one does not come back"
    elif not reply.handed_over:
        lost = (
            f"the old server did not answer: it had spoken of record {reply.told}, "
            f"{reply.heard_s:.1f} s ago; what it acknowledged since then is lost, unless it waited for "
            "its standby (--acknowledge standby). If it comes back it takes no requests"
        )
    line = f"{given.endpoint} goes on from record {reply.position}, with term {reply.term}; {lost}"
    return Output(facts, [line])


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
