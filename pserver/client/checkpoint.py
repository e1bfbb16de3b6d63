"""Save and load of a whole cluster: one step after the other on all shards.

Rooms before and after: ``Client`` lends its way to the shards as ``client.checkpoints``; ``saving`` does
saves; ``server.load`` answers. A load: every shard reads into new tables; when all have, all take them over.

What always holds: a load that fails on one shard changes none.
"""

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pserver.client.membership import ShardInfo
from pserver.client.saving import Saved, Saving, Steps
from pserver.client.specs import Ask
from pserver.errors import CheckpointError, PserverError
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import parse_small

_LOOK_FIRST_S = 0.02
_LOOK_MAX_S = 0.5


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
        positions: of another group: of each trainer, by its id, how many steps of its data are in.
    """

    version: str
    round: int
    trainers: Mapping[str, Mapping[str, Any]]
    positions: Mapping[int, int]


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
        return self.begin_save(mode=mode, trainers=trainers, files=files).wait()

    def begin_save(
        self,
        *,
        mode: str = "full",
        trainers: Mapping[str, dict[str, Any]] | None = None,
        files: Mapping[str, bytes] | None = None,
        round_number: int = 0,
    ) -> Saving:
        """Mark the instant of a save, and let the shards bring it to its end by themselves.

        They do so whether this client stays or not; embedded shards end with their client. Other arguments
        and errors are those of ``save``; what fails later, ``Saving`` tells.

        Args:
            mode: as of ``save``.
            trainers: as of ``save``.
            files: as of ``save``.
            round_number: of a sync group: the first round that is not to be in, whose part of this trainer
                has not left; the save waits for the other trainers' parts of the rounds before. 0: any.
        """
        self.flush()
        steps = Steps(self.shards, self.ask, secrets.token_hex(8))
        return steps.begin(
            mode, trainers=trainers or {}, files=files or {}, round_number=round_number
        )

    def last_save(self) -> Saving | None:
        """Return the save that is under way, or was the last, whoever's it is; None if there was none."""
        return Steps(self.shards, self.ask, "").last()

    def restored(self) -> Restored | None:
        """Return what shard 0 was restored from, or None: it began empty."""
        reply = _Loading(self.shards, self.ask, "").step(0, "restored")
        if not reply.version:
            return None
        trainers = json.loads(reply.trainers)
        return Restored(reply.version, reply.round, trainers, dict(reply.positions))

    def read_file(self, name: str) -> bytes:
        """Return a file that a trainer left in the version that shard 0 was restored from.

        Raises:
            CheckpointError: there is none of that name, or it is damaged.
        """
        loading, data, more = _Loading(self.shards, self.ask, ""), bytearray(), True
        while more:
            reply = loading.step(0, "file", name=name, offset=len(data))
            data += reply.data
            more = reply.more
        return bytes(data)

    def load(self, version: str = "latest", *, on_mismatch: str = "fail") -> LoadedVersion:
        """Load a version in place of what the servers hold.

        Every client must connect anew then, this one too: the servers are other incarnations.

        Args:
            version: ``latest``, a name such as v00000012, or its number.
            on_mismatch: what a table takes that exists with another spec: nothing but an error (fail),
                weights only (reset-state), also rows of another dim (pad), or weights of another
                row_dtype, rounded to the nearest (convert).

        Raises:
            CheckpointError: a file is damaged, tables differ, or nothing matches. No shard changed.
        """
        load = _Loading(self.shards, self.ask, secrets.token_hex(8))
        begin = time.monotonic()
        chosen = version
        for info in self.shards:  # shard 0 says which one the latest is
            reply = load.step(info.shard, "begin", version=chosen, on_mismatch=on_mismatch)
            chosen = reply.version
        try:
            read = load.wait_read()
            for info in self.shards:
                load.step(info.shard, "commit")
        finally:
            with contextlib.suppress(PserverError):
                for info in self.shards:
                    load.step(info.shard, "end")
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


@dataclass(frozen=True, slots=True)
class _Loading:
    """The steps of one load."""

    shards: Sequence[ShardInfo]
    ask: Ask
    name: str

    def step(self, shard: int, step: str, **fields: Any) -> pb.LoadReply:
        """Do a step on one shard. Other incarnations are fine: they are what is wanted."""
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
            replies = [self.step(info.shard, "look") for info in self.shards]
            for info, reply in zip(self.shards, replies, strict=True):
                if reply.state == "failed":
                    raise CheckpointError(f"load at {info.endpoint}: {reply.error}")
            if all(reply.state != "reading" for reply in replies):
                return replies
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOOK_MAX_S)
