"""What a shard answers: bytes in, bytes out, whatever carried them.

Rooms before and after: ``app`` puts gRPC in front of ``call``, ``embedded`` calls it in process;
behind it are the owner thread (``executor``), ``pushes``, ``group``, and the tables.

What always holds:
    * Large messages are parsed and tables touched in a turn of ``executor`` only: one request at a time.
    * A request that has to wait for other trainers waits on the event loop, outside of a turn.
    * A request meant for another incarnation of this server, or for another shard's keys, is
      refused before it is looked at.
"""

import functools
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pserver.arrays import Keys
from pserver.checkpoint.store import Store
from pserver.errors import ClusterError, ConfigError, RestartedError, UnavailableError
from pserver.metrics import Metrics
from pserver.placement import first_foreign, partitions_of_shard
from pserver.server.align import Align
from pserver.server.bad_values import BadValues
from pserver.server.checkpoint import Saves
from pserver.server.dense import DenseMethods
from pserver.server.durable_series import durable_series
from pserver.server.executor import Executor
from pserver.server.follow import refuse_change
from pserver.server.gate import Gate
from pserver.server.geo import GeoMethods
from pserver.server.group import GROUP_METHODS, Group
from pserver.server.group_series import group_series
from pserver.server.leases import Leases
from pserver.server.lifecycle import LifecycleMethods
from pserver.server.load import Loads
from pserver.server.memory import Memory
from pserver.server.merge import Merge
from pserver.server.methods import METHODS, Effect, Own
from pserver.server.once import Once
from pserver.server.pulls import Pulls
from pserver.server.pushes import Pushes
from pserver.server.quota import Quota
from pserver.server.recording import Recorder, number_of, rows_of
from pserver.server.recovery import Recovery
from pserver.server.report import Report, Tallies, describe, stats
from pserver.server.role import Role
from pserver.server.save import Shard
from pserver.server.series import series
from pserver.server.waiting import Progress, Waiting
from pserver.status import to_status
from pserver.table.registry import Registry
from pserver.table.storage import MEMORY_ONLY, Storage
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small, parse_small, proto_of, spec_of


class Servicer:
    """One shard. Public methods run on the event loop; ``_on_...`` run one at a time, see ``executor``."""

    def __init__(
        self,
        *,
        shard: int,
        num_shards: int,
        queue_max: int,
        storage: Storage = MEMORY_ONLY,
        on_loop: Collection[str] = (),
        store: Store | None = None,
    ) -> None:
        """Begin without tables.

        Args:
            shard: index of this shard.
            num_shards: of the cluster.
            queue_max: requests that may wait for the owner thread.
            storage: where rows lie that are to be on a file.
            on_loop: methods whose work the event loop does itself; see ``executor``.
            store: where checkpoints lie; None: saves and loads are refused.

        Raises:
            ConfigError: ``shard`` is not in [0, num_shards).
        """
        if not 0 <= shard < num_shards:
            raise ConfigError(
                f"shard must be in [0, {num_shards - 1}] for a cluster of {num_shards}, got {shard}"
            )
        self.shard, self.num_shards = shard, num_shards
        self.incarnation = secrets.randbits(63) | 1  # never 0, which means "any"
        self.is_draining = self.is_read_only = False
        self._partitions = partitions_of_shard(shard, num_shards)
        self._executor = Executor(name=f"shard-{shard}", queue_max=queue_max)
        self._run_of = dict.fromkeys(on_loop, self._executor.run_short)
        self._registry = Registry(storage=storage)
        self._once = Once()
        self._tallies, self._bad_values = Tallies(), BadValues()
        self._geo = GeoMethods(self._registry, check_incarnation=self._check_incarnation)
        self._progress, self._recorder = Progress(), Recorder()
        self._waiting = Waiting(self._progress)
        self.role = Role.of(self._recorder, self._executor)
        self._group = Group(
            self._executor,
            Merge(self._registry, self._tallies, self._geo),
            self._progress,
            self._recorder,
            check_incarnation=self._check_incarnation,
        )
        self._align = Align(self._group.members, self._group.rounds, self._progress)
        self.pushes = self._make_pushes()
        self._started_s = time.monotonic()
        groups = group_series(self._group.members, self._group.rounds)
        durable = durable_series(self.role, lambda: self._saves)
        self.metrics = Metrics([*series(self._report), *groups, *durable])
        self._work, self._gate = self._methods(), Gate()
        self.quota: Quota | None = None  # asked before anything is recorded; a replay does not ask
        self._saves, self.loads, self.recovery = self._checkpoints(
            store, functools.partial(Registry, storage=storage)
        )

    def _make_pushes(self) -> Pushes:
        """Return what answers the methods that write to sparse tables."""
        return Pushes(
            registry=self._registry,
            once=self._once,
            tallies=self._tallies,
            bad_values=self._bad_values,
            geo=self._geo,
            members=self._group.members,
            rounds=self._group.rounds,
            progress=self._progress,
            align=self._align,
            check_incarnation=self._check_incarnation,
            check_keys=self._check_keys,
        )

    def _checkpoints(
        self, store: Store | None, new_registry: Callable[[], Registry]
    ) -> tuple[Saves, Loads, Recovery]:
        """Return what answers Save and Load, and what brings the shard back after a restart."""
        memory = Memory(
            self._registry,
            self._group.members,
            self._group.rounds,
            self._leases,
            self._lifecycle,
            self._geo,
            self.pushes,
        )
        owner = Shard(
            shard=self.shard,
            num_shards=self.num_shards,
            registry=self._registry,
            executor=self._executor,
            parts={"once": self._once.capture, "memory": memory.capture},
            journal=self._recorder.covered,
            note=self._recorder.note,
            drop_covered=self.role.feed.drop_covered,
        )
        saves = Saves(owner, self._gate, self._align, store=store)
        loads = Loads(
            owner,
            saves,
            store=store,
            new_registry=new_registry,
            adopt=self._adopt,
            recorder=self._recorder,
        )
        recovery = Recovery(
            shard=owner,
            store=store,
            loads=loads,
            recorder=self._recorder,
            memory=memory,
            group=self._group,
            lifecycle=self._lifecycle,
            replays=self._replays(loads) | saves.replays() | self.pushes.replays(),
            become=self._become,
        )
        return saves, loads, recovery

    def _replays(self, loads: Loads) -> dict[int, Callable[[bytes], object]]:
        """Return what applies each kind of record again, in the owner thread."""

        def rows(body: bytes) -> None:
            name, keys = rows_of(body)
            table = self._registry.get(name)
            table.pull(keys, np.empty(keys.size * table.spec.dim, np.float32))

        own: dict[int, Callable[[bytes], object]] = {
            METHODS["Shrink"].number: self._lifecycle.shrink,
            Own.ROWS: rows,
            Own.EPOCH: lambda body: self._registry.raise_epoch(number_of(body)),
            Own.SLICE: lambda body: self._lifecycle.advance(number_of(body)),
            Own.LOAD: loads.replay,
            Own.INCARNATION: lambda body: self._become(number_of(body)),
        }
        written = {
            METHODS[name].number: work
            for name, work in self._work.items()
            if METHODS[name].effect is Effect.WRITES
        }
        return written | self._group.replays() | own

    def _methods(self) -> dict[str, Callable[[bytes], bytes]]:
        """Return what answers each method in the owner thread."""
        self._leases = Leases(
            self._group.members, self._progress, check_incarnation=self._check_incarnation
        )
        pulls = Pulls(
            self._registry,
            self.pushes,
            self._tallies,
            self._recorder,
            self._check_incarnation,
            self._check_keys,
            lambda: not self.is_read_only,
        )
        work: dict[str, Callable[[bytes], bytes]] = {
            "Describe": self._on_describe,
            "CreateTable": self._on_create_table,
            "Pull": pulls.pull,
            "Push": self.pushes.push,
            "Assign": self.pushes.assign,
            "PushDelta": self.pushes.add,
            "Inspect": pulls.inspect,
            "Lease": self._leases.lease,
        }
        dense = DenseMethods(
            shard=self.shard,
            num_shards=self.num_shards,
            registry=self._registry,
            once=self._once,
            tallies=self._tallies,
            check_incarnation=self._check_incarnation,
            pushes=self.pushes,
            progress=self._progress,
        )
        self._lifecycle = LifecycleMethods(
            self._registry,
            self._executor,
            self._group.members,
            self._geo.forget,
            self._recorder,
            check_incarnation=self._check_incarnation,
        )
        return work | dense.methods() | self._geo.methods() | self._lifecycle.methods()

    async def call(self, method: str, message: bytes) -> bytes:
        """Answer one request.

        Args:
            method: one of ``METHODS``.
            message: the request's bytes.

        Returns:
            The reply's bytes.

        Raises:
            PserverError: as the method's errors are; nothing was applied.
        """
        begin = time.perf_counter()
        code, sent = "CANCELLED", 0  # what it stays if the caller goes away
        try:
            self.role.check(method)
            if self.is_read_only:
                refuse_change(method)
            if method == "Stats":  # answered even while the owner thread is busy
                counters = stats(self._report(), self.metrics.recent())
                counters.group.CopyFrom(self._group.stats() or pb.GroupStats())
                reply = build_small(counters)
            elif self.is_draining and method != "Describe":
                raise UnavailableError(f"shard {self.shard} is draining: it takes no new requests")
            elif method in GROUP_METHODS:
                reply = await self._group.call(method, message)
                await self._recorder.durable()
            else:
                reply = await self._answer(method, message)
            code, sent = "OK", len(reply)
            self._lifecycle.note()
        except Exception as error:
            code = to_status(error)[0].name
            raise
        finally:
            self.metrics.count(
                method,
                code,
                seconds=time.perf_counter() - begin,
                received=len(message),
                sent=sent,
            )
        return reply

    async def _answer(self, method: str, message: bytes) -> bytes:
        """Answer in the owner thread, or step by step where that takes longer than a request may."""
        if method == "Save":
            return await self._saves.answer(message, self.incarnation)
        if method == "Load":
            return await self.loads.answer(message)
        if method in ("Feed", "Promote"):
            return await self.role.answer(method, message)
        await self._gate.passed(method)
        run = self._run_of.get(method, self._executor.run)
        if method == "Push" and self._group.members.is_sync:
            run = self._executor.run  # it may close a round: the work of all trainers' parts
        if self.quota is not None:
            message = self.quota.adapted(method, message)
        work = functools.partial(self._work[method], message)
        entry = METHODS[method]
        if entry.effect is Effect.WRITES:
            work = functools.partial(self._recorder.write, entry.number, message, work)
        if self.quota is not None:
            work = functools.partial(self.quota.guard, method, message, work)
        reply = await self._waiting.run(run, work)
        if entry.effect in (Effect.WRITES, Effect.NOTES):
            await self._recorder.durable()
        return reply

    def wait_for_standby(self) -> None:
        """Hold replies until the standby has what they acknowledge."""
        self._recorder.until_taken = self.role.feed.until_taken

    async def end_saves(self) -> None:
        """Drop a save that is under way: the shard is going to close."""
        await self._saves.close()

    def close(self) -> None:
        """Finish what waits for the owner thread, and end it; on the event loop."""
        self._group.close()
        self._executor.close()
        self._recorder.close()
        self.role.close()

    # --- one at a time, as owner of the tables ------------------------------------------------------------------

    def _on_describe(self, message: bytes) -> bytes:
        parse_small(pb.DescribeRequest, message)
        return build_small(describe(self._report()))

    def _on_create_table(self, message: bytes) -> bytes:
        request = parse_small(pb.CreateTableRequest, message)
        self._check_incarnation(request.incarnation)
        spec = spec_of(request.spec)
        is_new = self._registry.find(spec.name) is None
        table = self._registry.create(spec)
        if is_new:
            self._lifecycle.made(table)
        return build_small(pb.CreateTableReply(spec=proto_of(table.spec)))

    def _become(self, incarnation: int) -> None:
        """Take an incarnation: requests that name another one are refused."""
        self.incarnation = incarnation
        self._recorder.became(incarnation)

    def _adopt(
        self, registry: Registry, parts: Mapping[str, NDArray[Any]], incarnation: int
    ) -> list[str]:
        """Take over what was loaded; the shard is another incarnation from now on."""
        named = {name.split(".", 1)[1]: parts[name] for name in parts if name.startswith("once.")}
        self._once.restore(named)
        self._group.end("a checkpoint was loaded")
        self._become(incarnation)
        return self._registry.adopt(registry)

    def _check_incarnation(self, incarnation: int) -> None:
        """Refuse a request that was meant for the process or the tables that were here before."""
        if incarnation not in (0, self.incarnation):
            raise RestartedError(
                f"shard {self.shard} was restarted, or loaded a checkpoint: it has not the rows that "
                "the client connected to; start the run again"
            )

    def _check_keys(self, table: str, keys: Keys) -> None:
        """Refuse keys of another shard: the sender has another idea of the cluster."""
        position = first_foreign(keys, *self._partitions)
        if position >= 0:
            raise ClusterError(
                f"table {table!r}: key {keys[position]} does not belong to shard {self.shard} of "
                f"{self.num_shards}; the sender counts shards differently"
            )

    def _report(self) -> Report:
        """Return where the shard's facts are read from."""
        return Report(
            shard=self.shard,
            num_shards=self.num_shards,
            incarnation=self.incarnation,
            state="draining" if self.is_draining else self.role.state,
            tables=list(self._registry),
            dense_tables=list(self._registry.dense),
            tallies=self._tallies,
            bad_values=self._bad_values,
            queued=self._executor.queued,
            started_s=self._started_s,
            versions=self.loads.versions,
            term=self.role.fence.place.term,
        )
