"""Save and load of a whole cluster: one step after the other on all shards.

Rooms before and after: ``Client`` lends its way to the shards as ``client.checkpoints``; ``server.checkpoint``
and ``server.load`` answer.

A save: every shard begins; with several shards all hold writes back, for a few milliseconds; all mark
their cut and go on; when all have written their files, shard 0 publishes. A load: every shard reads into
new tables; when all have, all take them over.

What always holds: a save that fails leaves the last version as it was; a load that fails on one shard
changes none.
"""

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pserver.client.membership import ShardInfo
from pserver.client.specs import Ask
from pserver.config import PART_BYTES_MAX
from pserver.errors import CheckpointError, PserverError
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import parse_small

_LOOK_FIRST_S = 0.02
_LOOK_MAX_S = 0.5

ONE_SHARD = "one shard: every push is in whole or not at all"
ROUNDS = "a sync group: on every shard the rounds before the one named, whole, and nothing else"
PUSHES = (
    "a group of trainers: of each trainer its first pushes, as many as are named, whole on every shard, "
    "and no other; writes from outside of the group as of held shards"
)
HELD = (
    "several shards, writes held back while all marked: a push that was acknowledged before is in, one "
    "that was sent later is not; one on its way may be in on some shards"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What a save wrote.

    Attributes:
        version: its name.
        base: of a delta: the version that it is one to; else an empty text.
        rows: in its files, of sparse tables.
        bytes: of its files.
        seconds: from the first step to the published version.
        longest_pause_s: the longest that the save held up requests in one go, over all shards.
    """

    version: str
    base: str
    rows: int
    bytes: int
    seconds: float
    longest_pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedVersion:
    """What a load took over.

    Attributes:
        version: its name.
        tables: that were loaded.
        left: that the servers have and the version has not: they stay as they were.
        rows: of sparse tables, over all shards.
        bytes: of the files that were read, over all shards.
        seconds: from the first step to the last.
        state_taken, state_tables: how many tables took their optimizer state, of how many keep some.
    """

    version: str
    tables: tuple[str, ...]
    left: tuple[str, ...]
    rows: int
    bytes: int
    seconds: float
    state_taken: int
    state_tables: int


@dataclass(frozen=True, slots=True)
class Restored:
    """Where the tables of a cluster came from.

    Attributes:
        version: its name.
        round: of a sync group: the rounds before it are in; 0 without one.
        trainers: what trainers left in the manifest, by their names.
    """

    version: str
    round: int
    trainers: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Saves and loads of one cluster. Thread-safe, as what it was lent is.

    Attributes:
        shards: of the cluster.
        ask: the way to them.
        flush: waits until what the client pushed is applied.
    """

    shards: Sequence[ShardInfo]
    ask: Ask
    flush: Callable[[], None]

    def save(
        self,
        *,
        mode: str = "full",
        trainers: Mapping[str, dict[str, Any]] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> Saved:
        """Save all tables of all shards as of one instant, while others go on.

        What this client pushed before is in the version.

        Args:
            mode: full, or delta: what changed since the last version.
            trainers: what the manifest keeps of trainers, by their names: JSON only.
            files: of trainers, by their names in the version's folder.

        Raises:
            CheckpointError: a shard could not save, or another save is under way. The last version
                is what it was.
        """
        self.flush()
        save = _Steps(self.shards, self.ask, secrets.token_hex(8))
        begin = time.monotonic()
        try:
            first = save.begin(mode)
            marks = save.align()
            save.all("cut", epoch=max(reply.epoch for reply in first), marks=marks)
            for name, data in (files or {}).items():
                save.put(name, data)
            done = save.wait()
            save.one(
                0,
                "commit",
                cut=_guarantee(len(self.shards), marks),
                trainers=json.dumps(dict(trainers or {})),
                marks=marks,
            )
        except BaseException:
            with contextlib.suppress(PserverError):
                save.all("end", is_durable=False)
            raise
        save.all("end", is_durable=True)
        return Saved(
            version=first[0].version,
            base=first[0].base,
            rows=sum(reply.rows for reply in done),
            bytes=sum(reply.bytes for reply in done) + sum(map(len, (files or {}).values())),
            seconds=time.monotonic() - begin,
            longest_pause_s=max(reply.longest_pause_s for reply in done),
        )

    def restored(self) -> Restored | None:
        """Return what shard 0 was restored from, or None: it began empty."""
        reply = _Steps(self.shards, self.ask, "").load(0, "restored")
        if not reply.version:
            return None
        return Restored(reply.version, reply.round, json.loads(reply.trainers))

    def read_file(self, name: str) -> bytes:
        """Return a file that a trainer left in the version that shard 0 was restored from.

        Raises:
            CheckpointError: there is none of that name, or it is damaged.
        """
        steps, data, more = _Steps(self.shards, self.ask, ""), bytearray(), True
        while more:
            reply = steps.load(0, "file", name=name, offset=len(data))
            data += reply.data
            more = reply.more
        return bytes(data)

    def load(self, version: str = "latest", *, on_mismatch: str = "fail") -> LoadedVersion:
        """Load a version in place of what the servers hold.

        Every client must connect anew then, this one too: the servers are other incarnations.

        Args:
            version: ``latest``, a name such as v00000012, or its number.
            on_mismatch: what a table takes that exists with another spec: nothing but an error
                (fail), weights only (reset-state), or also rows of another dim (pad).

        Raises:
            CheckpointError: a file is damaged, tables differ, or nothing matches. No shard changed.
        """
        load = _Steps(self.shards, self.ask, secrets.token_hex(8))
        begin = time.monotonic()
        chosen = version
        for info in self.shards:  # shard 0 says which one the latest is
            reply = load.load(info.shard, "begin", version=chosen, on_mismatch=on_mismatch)
            chosen = reply.version
        try:
            read = load.wait_read()
            for info in self.shards:
                load.load(info.shard, "commit")
        finally:
            with contextlib.suppress(PserverError):
                for info in self.shards:
                    load.load(info.shard, "end")
        rows = sum(reply.rows for reply in read)
        if rows != read[0].rows_of_version:
            raise CheckpointError(
                f"load {chosen}: {rows} rows were loaded of {read[0].rows_of_version}: our own mistake"
            )
        return LoadedVersion(
            version=chosen,
            tables=tuple(read[0].tables),
            left=tuple(read[0].left),
            rows=rows,
            bytes=sum(reply.bytes for reply in read),
            seconds=time.monotonic() - begin,
            state_taken=read[0].state_taken,
            state_tables=read[0].state_tables,
        )


def _guarantee(num_shards: int, marks: pb.GroupMarks) -> str:
    """Return what the manifest says of a cut."""
    if num_shards == 1:
        return ONE_SHARD
    if marks.round:
        return ROUNDS
    return PUSHES if marks.trainers else HELD


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of one save or load."""

    shards: Sequence[ShardInfo]
    ask: Ask
    name: str

    def begin(self, mode: str) -> list[pb.SaveReply]:
        """Let shard 0 choose the version's name, then the others begin too."""
        first = self.one(0, "begin", mode=mode)
        others = [
            self.one(info.shard, "begin", mode=mode, version=first.version)
            for info in self.shards[1:]
        ]
        for shard, other in enumerate(others, 1):
            if other.base != first.base:
                raise CheckpointError(
                    f"save: a delta to {first.base} on shard 0, but shard {shard} would save one to "
                    f"{other.base}; take a full save"
                )
        return [first, *others]

    def align(self) -> pb.GroupMarks:
        """Hold writes back on all shards, then let through what some of them have already.

        Returns:
            How far each trainer of a group is on all shards then.
        """
        if len(self.shards) == 1:
            return pb.GroupMarks()
        held = [reply.marks for reply in self.all("hold")]
        furthest: dict[bytes, int] = {}
        for mark in (mark for marks in held for mark in marks.trainers):
            furthest[mark.trainer] = max(furthest.get(mark.trainer, 0), mark.pushes)
        marks = pb.GroupMarks(
            round=max(marks.round for marks in held),
            trainers=[pb.TrainerMark(trainer=name, pushes=n) for name, n in furthest.items()],
        )
        if any(marks != other for other in held):
            self.all("align", marks=marks)
        return marks

    def one(self, shard: int, step: str, **fields: Any) -> pb.SaveReply:
        """Do a step of a save on one shard."""
        return self._save([shard], step, fields)[0]

    def all(self, step: str, **fields: Any) -> list[pb.SaveReply]:
        """Do a step of a save on all shards at once."""
        return self._save([info.shard for info in self.shards], step, fields)

    def put(self, name: str, data: bytes) -> None:
        """Send a trainer's file to shard 0."""
        begins = range(0, max(len(data), 1), PART_BYTES_MAX)
        for begin in begins:
            part = data[begin : begin + PART_BYTES_MAX]
            self.one(0, "put", name=name, data=part, offset=begin, more=begin != begins[-1])

    def wait(self) -> list[pb.SaveReply]:
        """Wait until all shards have written their files.

        Raises:
            CheckpointError: one could not; it is named.
        """
        pause_s = _LOOK_FIRST_S
        while True:
            replies = self.all("look")
            for info, reply in zip(self.shards, replies, strict=True):
                if reply.state == "failed":
                    raise CheckpointError(f"save at {info.endpoint}: {reply.error}")
            if all(reply.state == "done" for reply in replies):
                return replies
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOOK_MAX_S)

    def load(self, shard: int, step: str, **fields: Any) -> pb.LoadReply:
        """Do a step of a load on one shard. Other incarnations are fine: they are what is wanted."""
        request = pb.LoadRequest(load_id=self.name, step=step, **fields)
        (reply,) = self.ask("Load", [(shard, request)], what=f"load: {step}")
        return parse_small(pb.LoadReply, reply)

    def wait_read(self) -> list[pb.LoadReply]:
        """Wait until all shards have read their part.

        Raises:
            CheckpointError: one could not; it is named.
        """
        pause_s = _LOOK_FIRST_S
        while True:
            replies = [self.load(info.shard, "look") for info in self.shards]
            for info, reply in zip(self.shards, replies, strict=True):
                if reply.state == "failed":
                    raise CheckpointError(f"load at {info.endpoint}: {reply.error}")
            if all(reply.state != "reading" for reply in replies):
                return replies
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOOK_MAX_S)

    def _save(
        self, shards: Sequence[int], step: str, fields: Mapping[str, Any]
    ) -> list[pb.SaveReply]:
        requests = [
            (
                shard,
                pb.SaveRequest(
                    incarnation=self.shards[shard].incarnation,
                    save_id=self.name,
                    step=step,
                    **fields,
                ),
            )
            for shard in shards
        ]
        replies = self.ask("Save", requests, what=f"save: {step}")
        return [parse_small(pb.SaveReply, reply) for reply in replies]
