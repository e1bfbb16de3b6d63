"""A trainer's place in its group: joined on every shard, kept by heartbeats, left at the end.

Rooms before and after: ``Client.join`` makes one, a trainer's mode uses it; ``delivery`` carries its
pulls and pushes, ``server.group`` and ``server.rounds`` answer.

What always holds:
    * All shards begin with this trainer at one round, the highest that any of them has open.
    * Heartbeats go past the send queues, so a trainer that waits for others is heard from.
    * Once a shard says that this trainer is no longer of the group, every call here says so.
Owner: the training thread; the heartbeat is the client's loop's.
"""

import asyncio
import math
import os
import platform
from collections.abc import Callable, Mapping

from pserver.arrays import Keys
from pserver.client.compose import Asker
from pserver.client.delivery import Step, start_read, start_write
from pserver.client.dense import DensePulled
from pserver.client.gradients import Gradients, check_gradients
from pserver.client.leases import Leases
from pserver.client.membership import ShardInfo
from pserver.client.pending import PendingPull, PendingPush
from pserver.client.way import Way
from pserver.config import HOLD_S, GroupSettings
from pserver.deadline import Deadline
from pserver.errors import (
    ClusterError,
    ConfigError,
    GroupError,
    PserverError,
    RestartedError,
    TransientError,
)
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small, group_proto_of, parse_small

_BEATS_A_LEASE = 3
_LEAVE_S = 10.0  # how long leaving is tried at the most; after that the lease ends by itself
_LEAVE_RETRY_S = 0.1


class Group:
    """This trainer's place. Made by ``Client.join``.

    Attributes:
        settings: that it joined with.
        first_round: the first round that waits for this trainer, in mode sync.
        trainers_here: trainers of the group that are live or have not come yet, as shard 0 said
            when this one joined or was last heard from.
    """

    def __init__(self, way: Way, settings: GroupSettings) -> None:
        """Join on every shard.

        Raises:
            GroupError: see ``Client.join``. Shards that had let this trainer in let it go again.
            ConfigError: the client's timeouts are too short to wait for other trainers.
        """
        shortest_s = min(way.settings.timeout_s, way.settings.try_timeout_s)
        waits = settings.mode == "sync" or settings.max_staleness is not None
        if waits and shortest_s <= HOLD_S:
            raise ConfigError(
                f"join: timeout_s and try_timeout_s must be over {HOLD_S:g} s, for so long a server "
                f"holds a request that waits for other trainers; got {shortest_s:g} s"
            )
        if way.revival.is_on and settings.mode not in ("async", "half_async"):
            raise ConfigError(
                f"join: on_restart go_on needs mode async or half_async: in {settings.mode} a server "
                "that forgot what it held disagrees with the others, or with the trainers' copies"
            )
        self.settings = settings
        self._way = way
        self._failure: PserverError | None = None
        self._step, self._loss = 0, math.nan
        self._tell: Callable[[], tuple[float, float]] | None = None
        self.trainers_here = settings.trainers
        # What waits for others may take that much longer, as long as its server says so.
        self._more_s = settings.barrier_timeout
        try:
            opened = self._join(first_round=0)
            self.first_round = max(opened)
            if min(opened) < self.first_round:
                self._join(first_round=self.first_round)
        except PserverError:
            self._leave_all()
            raise
        way.revival.rejoin = self._joining
        self._beating = way.runtime.submit(self._beat())

    def start_pull(self, keys: Mapping[str, Keys], *, round_number: int = 0) -> PendingPull:
        """Ask for rows without waiting, as ``Client.start_pull``.

        Args:
            keys: table name to (U,) contiguous uint64.
            round_number: that they are for; answered when all rounds before it are applied. 0: at
                once, or as soon as the slowest trainer is near enough.
        """
        self._check()
        asker = Asker(self._way.trainer, round_number)
        deadline = self._way.deadline(self._more_s)
        return start_read(self._way, keys, creates=True, asker=asker, deadline=deadline)

    def start_peek(self, keys: Mapping[str, Keys]) -> PendingPull:
        """Ask for rows as ``start_pull``, and make none: a key without a row reads as first weights."""
        self._check()
        deadline = self._way.deadline(self._more_s)
        asker = Asker(self._way.trainer, 0)
        return start_read(self._way, keys, creates=False, asker=asker, deadline=deadline)

    def start_push(self, gradients: Mapping[str, Gradients], step: Step) -> PendingPush:
        """Send one step's gradients without waiting, as ``Client.start_push``.

        Args:
            gradients: as there; copied before this returns.
            step: dense gradients, what they were computed from, and the round.

        Raises:
            PserverError: an earlier push failed; this one was not sent.
        """
        self._check()
        self._way.unwaited.reap()
        for name, arrays in gradients.items():
            check_gradients(arrays, dim=self._way.spec(name).dim, where=f"push {name!r}")
        deadline = self._way.deadline(self._more_s)
        pending = start_write(self._way, "Push", gradients, deadline=deadline, step=step)
        self._way.unwaited.add(pending)
        return pending

    def pull_dense(
        self, table: str, *, known: DensePulled | None = None, round_number: int = 0
    ) -> DensePulled:
        """Read a dense table as it is for a round; waits for its first values."""
        self._check()
        asker = Asker(self._way.trainer, round_number)
        return self._way.dense.pull(table, known=known, asker=asker, more_s=self._more_s)

    def leases(self, *, rows: int, range_rows: int) -> Leases:
        """Return how this trainer gets ranges of the rows that the group trains on; see ``Leases``."""
        return Leases(self._way, rows=rows, range_rows=range_rows, check=self._check)

    @property
    def has_room(self) -> bool:
        """Return whether a push would enter every send queue without waiting."""
        return all(queue.has_room for queue in self._way.queues)

    @property
    def queue_wait_s(self) -> float:
        """Return the seconds that requests waited for room in the send queues, those that wait now not counted."""
        return sum(queue.wait_s for queue in self._way.queues)

    def report(self, *, step: int, loss: float | None) -> None:
        """Say how this trainer fares; the next heartbeat carries it."""
        self._step, self._loss = step, math.nan if loss is None else loss

    def tells(self, read: "Callable[[], tuple[float, float]]") -> None:
        """Have each heartbeat carry more, for screens.

        Args:
            read: gives the AUC so far (NaN: none yet) and the samples a second since it was last asked; called on
                the client's loop, so it must be quick.
        """
        self._tell = read

    def leave(self) -> None:
        """Let no round wait for this trainer any more; call it when all was flushed.

        Raises:
            PserverError: a shard did not hear it; there the lease will end.
        """
        self._beating.cancel()
        self._way.revival.rejoin = None
        failure = self._leave_all()
        if failure is not None:
            raise failure

    def _check(self) -> None:
        """Raise what the heartbeat was told."""
        self._way.runtime.check_process()
        if self._failure is not None:
            raise self._failure

    def _join(self, *, first_round: int) -> list[int]:
        """Join, and return the round of each shard that waits for this trainer."""
        requests = [
            (info.shard, self._joining(info, first_round=first_round)) for info in self._way.shards
        ]
        replies = self._way.ask(
            "Join", requests, what=f"join as trainer {self.settings.trainer_id}"
        )
        joined = [parse_small(pb.JoinReply, reply) for reply in replies]
        self.trainers_here = joined[0].trainers_here
        return [reply.open_round for reply in joined]

    def _joining(self, info: ShardInfo, *, first_round: int = 0) -> pb.JoinRequest:
        """Return what makes this client the trainer of its id on a shard."""
        return pb.JoinRequest(
            incarnation=info.incarnation,
            trainer=self._way.trainer,
            trainer_id=self.settings.trainer_id,
            group=group_proto_of(self.settings),
            lease_s=self.settings.lease_s,
            host=f"{platform.node()}:{os.getpid()}",
            first_round=first_round,
        )

    def _leave_all(self) -> PserverError | None:
        """Leave on every shard, and return the first failure."""
        leaving = [self._way.runtime.submit(self._leave(info.shard)) for info in self._way.shards]
        outcomes = [future.result() for future in leaving]
        return next((outcome for outcome in outcomes if outcome is not None), None)

    async def _leave(self, shard: int) -> PserverError | None:
        deadline = Deadline.after(min(_LEAVE_S, self._way.settings.timeout_s))
        info = self._way.shards[shard]
        message = build_small(
            pb.LeaveRequest(incarnation=info.incarnation, trainer=self._way.trainer)
        )
        while True:
            try:
                await self._way.queues[shard].call_past("Leave", message, deadline=deadline)
            except TransientError as error:
                if deadline.remaining_s <= _LEAVE_RETRY_S:
                    return error
                await asyncio.sleep(_LEAVE_RETRY_S)
            except PserverError as error:
                return None if self._is_anew(error) else error
            else:
                return None

    async def _beat(self) -> None:
        """Be heard from until the end, or until a shard says that this trainer is out."""
        pause_s = self.settings.lease_s / _BEATS_A_LEASE
        while self._failure is None:
            await asyncio.sleep(pause_s)
            told = None if self._tell is None else self._tell()
            beats = [self._beat_once(info.shard, pause_s, told) for info in self._way.shards]
            for error in await asyncio.gather(*beats):
                self._failure = self._failure or error
            await self._way.revival.look()

    def _is_anew(self, error: PserverError) -> bool:
        """Return whether a shard is another process now, in which a pull or push will join again."""
        return isinstance(error, RestartedError) and self._way.revival.is_on

    async def _beat_once(
        self, shard: int, timeout_s: float, told: tuple[float, float] | None = None
    ) -> PserverError | None:
        """Send one heartbeat; return the error if this trainer is out."""
        request = pb.HeartbeatRequest(
            incarnation=self._way.shards[shard].incarnation,
            trainer=self._way.trainer,
            step=self._step,
            loss=self._loss,
        )
        if told is not None:
            auc, request.samples_per_s = told
            if not math.isnan(auc):
                request.auc = auc
        try:
            reply = await self._way.queues[shard].call_past(
                "Heartbeat", build_small(request), deadline=Deadline.after(timeout_s)
            )
        except (GroupError, ClusterError) as error:
            return None if self._is_anew(error) else error
        except PserverError:  # a server that is away for a while; calls will tell of it
            return None
        if shard == 0:
            self.trainers_here = parse_small(pb.HeartbeatReply, reply).trainers_here
        return None
