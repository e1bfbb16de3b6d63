"""Trainers that come, are heard of, and go: the methods of membership, and what time decides.

Rooms before and after: ``servicer`` hands over Join, Heartbeat and Leave on the event loop; what they
change (``members``, ``rounds``) is changed by commands in the owner thread.

What always holds:
    * The clock is read here only. That a lease is over, or that a round waited as long as it may, goes
      to the owner thread as a command that names whom or which round it means, so the same commands
      give the same state anywhere.
    * Time in which this process did not run counts for no lease and no limit.
    * A trainer under the id of a live one is refused as soon as the live one is heard from again, and
      let in when its lease is over.
Owner: the event loop.
"""

import asyncio
import contextlib
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from pserver.config import GroupSettings
from pserver.errors import BarrierError, GroupError, ShapeError, TransientError
from pserver.server.executor import Executor
from pserver.server.members import Members, TakenError
from pserver.server.merge import Merge
from pserver.server.methods import METHODS, Own
from pserver.server.recording import Recorder, number_body, number_of
from pserver.server.rounds import Rounds
from pserver.server.waiting import Progress
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import TRAINER_BYTES
from pserver.wire.small import build_small, group_of, group_proto_of, parse_small

log = structlog.get_logger(__name__)

GROUP_METHODS = ("Join", "Heartbeat", "Leave")
"""The methods that this room answers."""

_SEEN = struct.Struct("<Id")

_TICK_MAX_S = 0.5
_TICKS_A_LIMIT = 10  # looks at the clock within the shortest limit that there is


@dataclass(slots=True)
class Heard:
    """What the event loop knows of one trainer's process: when it was heard of, and how it fares.

    ``at`` moves on while nothing can be heard; ``beats`` counts what was.
    """

    trainer_id: int
    lease_s: float
    at: float
    beats: int = 0
    step: int = 0
    loss: float = math.nan
    auc: float | None = None
    samples_per_s: float | None = None


class Group:
    """The membership of one shard. Owner: the event loop; ``_on_...`` run in the owner thread.

    Attributes:
        members: the trainers. Owner: the owner thread, as of the next.
        rounds: their rounds.
    """

    def __init__(
        self,
        executor: Executor,
        merge: Merge,
        progress: Progress,
        recorder: Recorder,
        *,
        check_incarnation: Callable[[int], None],
    ) -> None:
        """Take the shard's parts; nothing runs until somebody joins.

        Args:
            executor: gives commands their turn.
            merge: makes one step of the parts of a round.
            progress: is told when a request that waits may go on.
            recorder: is told of commands before they are done.
            check_incarnation: refuses a request for another process.
        """
        self.members = Members()
        self.rounds = Rounds(self.members, merge, progress)
        self._executor = executor
        self._progress = progress
        self._recorder = recorder
        self._check_incarnation = check_incarnation
        self._heard: dict[bytes, Heard] = {}
        self._watching: asyncio.Task[None] | None = None
        self._waits: tuple[int, float] | None = None  # the round that waits, and since when

    async def call(self, method: str, message: bytes) -> bytes:
        """Answer one of ``GROUP_METHODS``.

        Raises:
            GroupError: the sender may not join, or is no longer of the group.
        """
        if method == "Join":
            joining = parse_small(pb.JoinRequest, message)
            self._check_incarnation(joining.incarnation)
            return await self._join(joining, message)
        if method == "Heartbeat":
            beat = parse_small(pb.HeartbeatRequest, message)
            self._check_incarnation(beat.incarnation)
            return await self._heartbeat(beat, message)
        leaving = parse_small(pb.LeaveRequest, message)
        self._check_incarnation(leaving.incarnation)
        kind, heard = METHODS["Leave"].number, self._heard.get(leaving.trainer)
        reply = await self._executor.run(
            lambda: self._recorder.write(kind, message, lambda: self._on_leave(leaving.trainer))
        )
        log.info("trainer left", trainer=heard.trainer_id if heard else None)
        return reply

    def resume(self) -> None:
        """Give those that were with the group a whole lease from now on: the shard was restarted."""
        for member in self.members:
            if member.state in ("live", "expired"):
                self._heard[member.uuid] = Heard(member.trainer_id, member.lease_s, _now())
        if self._heard:
            self._watch()

    def end(self, why: str) -> None:
        """End the group, and forget the parts of its rounds; in the owner thread."""
        self.members.end(why)
        self.rounds.begin_anew()
        self._progress.bump()

    def replays(self) -> dict[int, Callable[[bytes], object]]:
        """Return what applies each kind of record again, in the owner thread."""

        def join(message: bytes) -> bytes:
            request = parse_small(pb.JoinRequest, message)
            return self._on_join(request, group_of(request))

        def heartbeat(message: bytes) -> bytes:
            return self._on_heartbeat(parse_small(pb.HeartbeatRequest, message).trainer, message)

        return {
            METHODS["Join"].number: join,
            METHODS["Heartbeat"].number: heartbeat,
            METHODS["Leave"].number: lambda message: self._on_leave(
                parse_small(pb.LeaveRequest, message).trainer
            ),
            Own.EXPIRE: self._on_expire,
            Own.LIMIT: lambda body: self.rounds.limit(*_limit_of(body)),
        }

    def close(self) -> None:
        """Stop looking at the clock."""
        if self._watching is not None:
            self._watching.cancel()

    def stats(self) -> pb.GroupStats | None:
        """Return what is shown of the group; None if there is none."""
        spec = self.members.spec
        if spec is None:
            return None
        rounds = self.rounds
        missing = rounds.missing() if spec.mode == "sync" and rounds.is_waiting else []
        return pb.GroupStats(
            group=group_proto_of(spec),
            open_round=rounds.open,
            missing=[member.trainer_id for member in missing],
            parked_bytes=rounds.parked_bytes,
            trainers=self._trainers(),
            failure=rounds.failure,
        )

    def _trainers(self) -> list[pb.TrainerStats]:
        now = _now()
        shown = []
        for member in list(self.members):
            heard = self._heard.get(member.uuid)
            entry = pb.TrainerStats(
                trainer_id=member.trainer_id,
                trainer_incarnation=member.incarnation,
                state=member.state,
                host=member.host,
                step=heard.step if heard else 0,
                loss=heard.loss if heard else math.nan,
                auc=heard.auc if heard else None,
                samples_per_s=heard.samples_per_s if heard else None,
                last_round=member.last_round,
                last_seen_s=now - heard.at if heard else -1.0,
                pushes=member.pushes,
                staleness_p50=member.staleness.quantile(0.5),
                staleness_p99=member.staleness.quantile(0.99),
                staleness_max=member.staleness.max,
            )
            shown.append(entry)
        return shown

    # --- methods, on the loop -----------------------------------------------------------------

    async def _join(self, request: pb.JoinRequest, message: bytes) -> bytes:
        if len(request.trainer) != TRAINER_BYTES:
            raise ShapeError(f"a trainer is {TRAINER_BYTES} bytes, got {len(request.trainer)}")
        settings = group_of(request)
        kind = METHODS["Join"].number
        reply, beats = None, None
        while reply is None:
            try:
                reply = await self._executor.run(
                    lambda: self._recorder.write(
                        kind, message, lambda: self._on_join(request, settings)
                    )
                )
            except TakenError as taken:
                other = self._heard.get(taken.uuid)
                if other is None or beats not in (None, other.beats):
                    raise GroupError(str(taken)) from None
                beats = other.beats
                self._watch()
                await asyncio.sleep(self._tick_s())
        trainer_id = settings.trainer_id
        for uuid in [u for u, heard in self._heard.items() if heard.trainer_id == trainer_id]:
            del self._heard[uuid]
        self._heard[request.trainer] = Heard(trainer_id, settings.lease_s, _now())
        log.info("trainer joined", trainer=trainer_id, host=request.host, mode=settings.mode)
        self._watch()
        return reply

    async def _heartbeat(self, request: pb.HeartbeatRequest, message: bytes) -> bytes:
        heard = self._heard.get(request.trainer)
        if heard is not None:
            heard.at, heard.step, heard.loss = _now(), request.step, request.loss
            heard.auc = request.auc if request.HasField("auc") else None
            heard.samples_per_s = (
                request.samples_per_s if request.HasField("samples_per_s") else None
            )
            heard.beats += 1
        reply = await self._executor.run(lambda: self._on_heartbeat(request.trainer, message))
        self._watch()
        return reply

    # --- commands, in the owner thread --------------------------------------------------------

    def _on_join(self, request: pb.JoinRequest, settings: GroupSettings) -> bytes:
        rounds, members = self.rounds, self.members
        if rounds.failure:
            if members.of(request.trainer) is not None:
                raise BarrierError(rounds.failure)
            members.end(rounds.failure)
            rounds.begin_anew()
        number = members.number
        member = members.join(
            settings,
            request.trainer,
            request.host,
            open_round=rounds.open,
            first_round=request.first_round,
        )
        if members.number != number:
            rounds.begin_anew()  # no part of the group before is of a round of this one
        rounds.drop_unfinished(member.trainer_id)
        rounds.advance()
        self._progress.bump()
        reply = pb.JoinReply(
            open_round=member.first_round,
            trainer_incarnation=member.incarnation,
            trainers_here=members.num_here,
        )
        return build_small(reply)

    def _on_heartbeat(self, uuid: bytes, message: bytes) -> bytes:
        member = self.members.of(uuid)
        if member is None:
            raise GroupError("heartbeat: the sender is in no group of trainers here")
        if member.state == "expired":
            self._recorder.note(METHODS["Heartbeat"].number, message)
            self.members.revive(uuid)
        return build_small(pb.HeartbeatReply(trainers_here=self.members.num_here))

    def _on_leave(self, uuid: bytes) -> bytes:
        self.members.leave(uuid)
        self.rounds.advance()
        self.members.end_if_empty()
        self._progress.bump()
        return build_small(pb.LeaveReply())

    def _on_expire(self, uuid: bytes) -> None:
        self._recorder.note(Own.EXPIRE, uuid)
        self.members.expire(uuid)
        self._progress.bump()

    def _on_limit(self, round_number: int, seen_s: Mapping[int, float]) -> None:
        self._recorder.note(Own.LIMIT, _limit_body(round_number, seen_s))
        self.rounds.limit(round_number, seen_s)

    # --- the clock ----------------------------------------------------------------------------

    def _tick_s(self) -> float:
        """Return how long to wait between two looks at the clock."""
        limits = [heard.lease_s for heard in self._heard.values()]
        if self.members.spec is not None:
            limits.append(self.members.spec.barrier_timeout)
        return min(min(limits, default=_TICK_MAX_S) / _TICKS_A_LIMIT, _TICK_MAX_S)

    def _watch(self) -> None:
        """Begin to look at the clock, unless that goes on."""
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._look_on())

    async def _look_on(self) -> None:
        """Look at the clock until there is no group any more."""
        last = _now()
        while self.members.spec is not None:
            tick_s = self._tick_s()
            await asyncio.sleep(tick_s)
            now = _now()
            stood_s = now - last - tick_s
            if stood_s > tick_s:  # nothing could be heard meanwhile
                for heard in self._heard.values():
                    heard.at += stood_s
                if self._waits is not None:
                    self._waits = (self._waits[0], self._waits[1] + stood_s)
            last = now
            with contextlib.suppress(TransientError):  # a full queue: at the next look
                await self._look(now)
        self._heard.clear()

    async def _look(self, now: float) -> None:
        """Send the owner thread what time has decided."""
        for member in list(self.members):
            if member.state == "live" and member.uuid not in self._heard:  # from a restored state
                lease_s = GroupSettings().lease_s
                self._heard[member.uuid] = Heard(member.trainer_id, lease_s, now)
        for uuid, heard in list(self._heard.items()):
            if now - heard.at > heard.lease_s and self.members.is_live(uuid):
                await self._executor.run(lambda uuid=uuid: self._on_expire(uuid))  # type: ignore[misc]
                log.warning(
                    "trainer is not heard of; look at its log and its machine",
                    trainer=heard.trainer_id,
                    seconds=round(now - heard.at, 1),
                )
        spec, rounds = self.members.spec, self.rounds
        if spec is None or not (self.members.is_sync and rounds.is_waiting):
            self._waits = None
            return
        if self._waits is None or self._waits[0] != rounds.open:
            self._waits = (rounds.open, now)
        number, since = self._waits
        if now - since > spec.barrier_timeout:
            seen_s = {heard.trainer_id: now - heard.at for heard in self._heard.values()}
            self._waits = (number, now)  # with on_missing wait the next limit begins
            await self._executor.run(lambda: self._on_limit(number, seen_s))


def _limit_body(round_number: int, seen_s: Mapping[int, float]) -> bytes:
    """Return the body of a record that a round waited as long as it may."""
    return number_body(round_number) + b"".join(_SEEN.pack(*seen) for seen in seen_s.items())


def _limit_of(body: bytes) -> tuple[int, dict[int, float]]:
    """Return the round and when each trainer was seen."""
    return number_of(body[:8]), dict(_SEEN.iter_unpack(body[8:]))


def _now() -> float:
    """Return the loop's time."""
    return asyncio.get_running_loop().time()
