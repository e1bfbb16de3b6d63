"""A save of a whole cluster, from its first step to the published version.

Rooms before and after: ``client.checkpoint`` begins saves and asks for the last one; ``server.checkpoint``
answers each step.

Every shard begins; with several shards all hold writes back, for a few milliseconds; all mark their cut and
go on. Then the trainers' files are sent and the save is committed: from there the shards bring it to its end
by themselves, and a client only looks.

What always holds: a save that fails leaves the last version as it was.
"""

import contextlib
import json
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

_LOOK_FIRST_S = 0.01
_LOOK_SHARE = 0.1
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
        seconds: from the cut to the published version.
        longest_pause_s: the longest that the save held up requests in one go, over all shards.
    """

    version: str
    base: str
    rows: int
    bytes: int
    seconds: float
    longest_pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveProgress:
    """How far a save is.

    Attributes:
        is_done: the version is published.
        rows, bytes: written so far.
        rows_max: rows at the cut; those of a delta are fewer.
        seconds: since the cut of the shard that takes longest.
    """

    is_done: bool
    rows: int
    bytes: int
    rows_max: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Saving:
    """A save whose cut is marked; the shards bring it to its end by themselves.

    Attributes:
        version: that it will be.
        base: of a delta: the version that it is one to; else an empty text.
    """

    version: str
    base: str
    _steps: "Steps"
    _begin_s: float

    def look(self) -> SaveProgress:
        """Return how far it is.

        Raises:
            CheckpointError: it failed; the shard is named, and the last version is what it was.
        """
        return self._progress(self._replies())

    def wait(self, tell: Callable[[SaveProgress], None] = lambda _: None) -> Saved:
        """Wait for the published version.

        Args:
            tell: is told how far it is, twice a second or more often.

        Raises:
            CheckpointError: as of ``look``.
        """
        while True:
            replies = self._replies()
            progress = self._progress(replies)
            if progress.is_done:
                break
            tell(progress)
            time.sleep(min(max(_LOOK_SHARE * self._age_s(), _LOOK_FIRST_S), _LOOK_MAX_S))
        return Saved(
            version=self.version,
            base=self.base,
            rows=progress.rows,
            bytes=progress.bytes,
            seconds=max(reply.seconds for reply in replies),
            longest_pause_s=max(reply.longest_pause_s for reply in replies),
        )

    def _age_s(self) -> float:
        return time.monotonic() - self._begin_s

    def _progress(self, replies: Sequence[pb.SaveReply]) -> SaveProgress:
        return SaveProgress(
            is_done=all(reply.state == "published" for reply in replies),
            rows=sum(reply.rows for reply in replies),
            bytes=sum(reply.bytes for reply in replies),
            rows_max=sum(reply.rows_max for reply in replies),
            seconds=self._age_s(),
        )

    def _problem(self, reply: pb.SaveReply) -> str:
        """Return why the version will not come from a shard; nothing if it may."""
        if reply.version != self.version:
            last = reply.version or "nothing"
            return f"{self.version} was not brought to its end there: {last} was saved last"
        return reply.error if reply.state == "failed" else ""

    def _replies(self) -> list[pb.SaveReply]:
        try:
            replies = self._steps.all("look")
            problems = [
                f"save at {info.endpoint}: {problem}"
                for info, reply in zip(self._steps.shards, replies, strict=True)
                if (problem := self._problem(reply))
            ]
            if problems:
                raise CheckpointError("; ".join(problems))
        except PserverError:
            self._steps.give_up()
            raise
        return replies


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one save.

    Attributes:
        shards: of the cluster.
        ask: the way to them.
        save_id: drawn by who saves; an empty one looks at the last save, whoever's it is.
    """

    shards: Sequence[ShardInfo]
    ask: Ask
    save_id: str

    def begin(
        self,
        mode: str,
        *,
        trainers: Mapping[str, dict[str, Any]],
        files: Mapping[str, bytes],
        round_number: int = 0,
    ) -> Saving:
        """Take a save as far as it needs a client; see ``Checkpoints.begin_save``."""
        begin_s = time.monotonic()
        try:
            if round_number:
                self.all("wait", marks=pb.GroupMarks(round=round_number))
            first = self._begin(mode)
            marks = self._align()
            if round_number and marks.round != round_number:
                raise CheckpointError(
                    f"save: round {round_number} was to be the first that is not in it, and round "
                    f"{marks.round} is open: give the one that this trainer's next part is of, and save "
                    "before that leaves. Nothing was saved"
                )
            self.all("cut", epoch=max(reply.epoch for reply in first), marks=marks)
            for name, data in files.items():
                self._put(name, data)
            self.all(
                "commit",
                cut=_guarantee(len(self.shards), marks),
                trainers=json.dumps(dict(trainers)),
                marks=marks,
            )
        except BaseException:
            self.give_up()
            raise
        return Saving(first[0].version, first[0].base, self, begin_s)

    def last(self) -> Saving | None:
        """Return the save that is under way on shard 0, or was the last; None if there was none."""
        reply = self.one(0, "look")
        if not reply.version:
            return None
        return Saving(reply.version, reply.base, self, time.monotonic() - reply.seconds)

    def give_up(self) -> None:
        """Drop the save, unless it is another client's or is being published."""
        if self.save_id:
            with contextlib.suppress(PserverError):
                self.all("end")

    def one(self, shard: int, step: str, **fields: Any) -> pb.SaveReply:
        """Do a step on one shard."""
        return self._ask([shard], step, fields)[0]

    def all(self, step: str, **fields: Any) -> list[pb.SaveReply]:
        """Do a step on all shards at once."""
        return self._ask([info.shard for info in self.shards], step, fields)

    def _begin(self, mode: str) -> list[pb.SaveReply]:
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

    def _align(self) -> pb.GroupMarks:
        """Hold writes back on all shards, then let through what some of them have already, or began.

        Returns:
            How far each trainer of a group is on all shards then; of one shard the round alone.
        """
        held = [reply.marks for reply in self.all("hold")]
        furthest: dict[bytes, int] = {}
        for mark in (mark for marks in held for mark in marks.trainers):
            furthest[mark.trainer] = max(furthest.get(mark.trainer, 0), mark.pushes)
        marks = pb.GroupMarks(
            round=max(marks.round for marks in held),
            trainers=[pb.TrainerMark(trainer=name, pushes=n) for name, n in furthest.items()],
        )
        # That all are equally far is not enough: a push that every shard has begun is whole on none.
        if marks.trainers or any(marks != other for other in held):
            self.all("align", marks=marks)
        return marks if len(self.shards) > 1 else pb.GroupMarks(round=marks.round)

    def _put(self, name: str, data: bytes) -> None:
        """Send a trainer's file to shard 0."""
        begins = range(0, max(len(data), 1), PART_BYTES_MAX)
        for begin in begins:
            part = data[begin : begin + PART_BYTES_MAX]
            self.one(0, "put", name=name, data=part, offset=begin, more=begin != begins[-1])

    def _ask(
        self, shards: Sequence[int], step: str, fields: Mapping[str, Any]
    ) -> list[pb.SaveReply]:
        requests = [
            (
                shard,
                pb.SaveRequest(
                    incarnation=self.shards[shard].incarnation,
                    save_id=self.save_id,
                    step=step,
                    **fields,
                ),
            )
            for shard in shards
        ]
        replies = self.ask("Save", requests, what=f"save: {step}")
        return [parse_small(pb.SaveReply, reply) for reply in replies]


def _guarantee(num_shards: int, marks: pb.GroupMarks) -> str:
    """Return what the manifest says of a cut."""
    if num_shards == 1:
        return ONE_SHARD
    if marks.round:
        return ROUNDS
    return PUSHES if marks.trainers else HELD
