"""What a shard answers about loads: step after step of the method Load, and the load before it serves.

Rooms before and after: ``servicer`` hands the method on; the client's ``checkpoint`` asks all shards for
one step after the other; ``checkpoint.load`` does the work, in another thread and into new tables.

What always holds: a load takes over all of a shard's part or nothing, between two requests; the shard is
another incarnation from then on, so no client goes on against other rows without a word.
Owner: the event loop; tables are touched in the owner thread.
"""

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

from pserver.checkpoint.fit import ON_MISMATCH, OnMismatch
from pserver.checkpoint.load import Loaded, Target, load_shard, read_checked
from pserver.checkpoint.manifest import MANIFEST, Manifest
from pserver.checkpoint.store import Store, choose_version, latest_of, opened
from pserver.checkpoint.tensors import checksum
from pserver.config import PART_BYTES_MAX
from pserver.errors import CheckpointError, PserverError, RequestError, nearest
from pserver.server.checkpoint import Saves
from pserver.server.durable import Durable
from pserver.server.methods import Own
from pserver.server.recording import Recorder
from pserver.server.report import Versions, age_s
from pserver.server.save import Shard
from pserver.table.history import History
from pserver.table.registry import Registry
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small, parse_small

Adopt: TypeAlias = Callable[[Registry, Mapping[str, NDArray[Any]], int], list[str]]
"""Takes loaded tables, the shard's other memory and its next incarnation, in the owner thread; returns the
names of the tables that stay as they were."""

_STEPS = ("begin", "look", "commit", "end", "restored", "file")


@dataclass(slots=True)
class _Load:
    """A load that is under way."""

    load_id: str
    version: str
    registry: Registry
    task: "asyncio.Task[Loaded]"
    left: list[str]
    on_mismatch: OnMismatch
    is_loaded: bool = False


class Loads:
    """The method Load of one shard.

    Attributes:
        only_reads: the shard takes no writes, so a version without all rows will do.
    """

    def __init__(
        self,
        shard: Shard,
        saves: Saves,
        *,
        store: Store | None,
        new_registry: Callable[[], Registry],
        adopt: Adopt,
        recorder: Recorder,
    ) -> None:
        """Begin without a load.

        Args:
            shard: whose loads these are.
            saves: of the shard; told what the next delta is one to.
            store: where versions lie; None: there are none here.
            new_registry: makes an empty one.
            adopt: takes over.
            recorder: is told what is taken over.
        """
        self._shard, self._saves, self._store = shard, saves, store
        self._new_registry, self._adopt, self._recorder = new_registry, adopt, recorder
        self.only_reads = False
        self._load: _Load | None = None
        self._restored: Manifest | None = None

    async def answer(self, message: bytes) -> bytes:
        """Do one step of a load."""
        request = parse_small(pb.LoadRequest, message)
        if request.step not in _STEPS:
            hint = nearest(request.step, _STEPS)
            raise RequestError(f"load: unknown step {request.step!r}; {hint}")
        if request.step == "end":
            self._end(request)
            return build_small(pb.LoadReply())
        if request.step in ("restored", "file"):
            return build_small(await self._tell(request))
        if request.step == "begin":
            await self._begin(request)
        load = self._current(request)
        if request.step == "commit":
            await self._commit(load)
        return build_small(_reply(load))

    async def restore(self, wanted: str, *, base: Store | None = None) -> Loaded:
        """Load before the shard takes requests.

        Args:
            wanted: ``latest``, a version's name, or its number.
            base: where it lies; None: with the other versions. Of a version that lies elsewhere no delta
                is made, and trainers are told nothing.

        Raises:
            CheckpointError, TableFullError: as ``load_shard``.
        """
        store, registry = base or opened(self._store), self._new_registry()
        version = await asyncio.to_thread(choose_version, store, wanted)
        target = Target(
            shard=self._shard.shard,
            num_shards=self._shard.num_shards,
            only_reads=self.only_reads,
        )
        loaded = await asyncio.to_thread(load_shard, store, version, registry, target)
        await self._take_over(store, registry, loaded, on_mismatch="fail")
        if base is not None:
            self._restored = self._saves.durable = None
        return loaded

    def replay(self, body: bytes) -> None:
        """Load again what a record says was loaded; in the owner thread, before there are requests.

        Raises:
            CheckpointError: the version is not there any more, or is another one.
        """
        record = json.loads(body)
        store, registry, version = opened(self._store), self._new_registry(), record["version"]
        choose_version(store, version)
        if checksum(store.read(version, MANIFEST)) != record["sha256"]:
            raise CheckpointError(f"{store.where}: {version} is not the one that was loaded then")
        target = Target(
            shard=self._shard.shard,
            num_shards=self._shard.num_shards,
            wanted=self._shard.registry.specs(),
            on_mismatch=record["on_mismatch"],
        )
        loaded = load_shard(store, version, registry, target)
        self._put(registry, loaded, record["incarnation"])

    async def _tell(self, request: pb.LoadRequest) -> pb.LoadReply:
        """Tell of the version that the tables came from, or send a trainer's file of it."""
        manifest = self._restored
        if manifest is None:
            return pb.LoadReply()
        reply = pb.LoadReply(version=manifest.version, round=manifest.round)
        if request.step == "restored":
            reply.trainers = json.dumps(manifest.trainers)
            reply.positions.update({int(who): n for who, n in manifest.positions.items()})
            return reply
        for file in manifest.files:
            if file.kind == "trainer" and file.name == request.name:
                data = await asyncio.to_thread(
                    read_checked, opened(self._store), manifest.version, file
                )
                end = request.offset + PART_BYTES_MAX
                reply.data, reply.more = data[request.offset : end], end < len(data)
                return reply
        raise CheckpointError(f"{manifest.version}: no trainer left a file {request.name!r}")

    async def _begin(self, request: pb.LoadRequest) -> None:
        """Begin to read into new tables."""
        if self._load is not None and self._load.load_id == request.load_id:
            return
        if request.on_mismatch not in ON_MISMATCH:
            hint = nearest(request.on_mismatch, ON_MISMATCH)
            raise RequestError(f"load: unknown on_mismatch {request.on_mismatch!r}; {hint}")
        store, registry = opened(self._store), self._new_registry()
        version = await asyncio.to_thread(choose_version, store, request.version)
        wanted = await self._shard.executor.run(self._shard.registry.specs)
        target = Target(
            shard=self._shard.shard,
            num_shards=self._shard.num_shards,
            wanted=wanted,
            on_mismatch=request.on_mismatch,
        )
        if self._load is not None:
            self._load.task.cancel()
        task = asyncio.ensure_future(
            asyncio.to_thread(load_shard, store, version, registry, target)
        )
        self._load = _Load(
            request.load_id, version, registry, task, sorted(wanted), target.on_mismatch
        )

    async def _commit(self, load: _Load) -> None:
        """Take the tables over, unless that was done."""
        if not load.is_loaded:
            loaded, store = await load.task, opened(self._store)
            load.left = await self._take_over(
                store, load.registry, loaded, on_mismatch=load.on_mismatch
            )
            load.is_loaded = True

    def _end(self, request: pb.LoadRequest) -> None:
        """Forget the load."""
        if self._load is not None and self._load.load_id == request.load_id:
            self._load.task.cancel()
            self._load = None

    @property
    def version(self) -> str:
        """Return the version that the tables came from, or an empty text."""
        return self._restored.version if self._restored else ""

    @property
    def versions(self) -> Versions:
        """Return what is known here of versions: the one that the tables came from, and the last saved."""
        created = self._restored.created if self._restored else ""
        if self._saves.saved:
            return Versions(created, self._saves.saved, self._saves.age_s())
        return Versions(created, self.version, age_s(created) if created else 0.0)

    async def newest(self) -> str:
        """Return the newest version that has all rows, or an empty text if there is none."""
        store = opened(self._store)
        versions = await asyncio.to_thread(store.versions)
        return await asyncio.to_thread(latest_of, store, versions) if versions else ""

    async def follow(self, version: str) -> None:
        """Take a version over under readers, who go on: only for a shard that takes no writes.

        Raises:
            CheckpointError, TableFullError: as ``load_shard``; nothing was taken over.
        """
        registry = self._new_registry()
        target = Target(shard=self._shard.shard, num_shards=self._shard.num_shards)
        loaded = await asyncio.to_thread(load_shard, opened(self._store), version, registry, target)

        def take() -> None:
            self._shard.registry.adopt(registry)
            self._restored = loaded.manifest

        await self._shard.executor.run(take)

    async def _take_over(
        self, store: Store, registry: Registry, loaded: Loaded, *, on_mismatch: OnMismatch
    ) -> list[str]:
        """Put loaded tables in the place of those that are there."""
        await self._saves.close()
        incarnation = secrets.randbits(63) | 1
        version = loaded.manifest.version
        record = {
            "version": version,
            "sha256": checksum(await asyncio.to_thread(store.read, version, MANIFEST)),
            "on_mismatch": on_mismatch,
            "incarnation": incarnation,
        }

        def take() -> list[str]:
            self._recorder.note(Own.LOAD, json.dumps(record).encode())
            return self._put(registry, loaded, incarnation)

        return await self._shard.executor.run(take)

    def _put(self, registry: Registry, loaded: Loaded, incarnation: int) -> list[str]:
        """Take over what was loaded; in the owner thread."""
        left = self._adopt(registry, loaded.parts, incarnation)
        self._restored = loaded.manifest
        self._saves.durable, self._saves.saved = None, ""
        if loaded.is_exact and not left:
            self._saves.durable = _durable(self._shard.registry, loaded)
        return left

    def _current(self, request: pb.LoadRequest) -> _Load:
        if self._load is None or self._load.load_id != request.load_id:
            raise CheckpointError(
                f"load: shard {self._shard.shard} knows no load {request.load_id!r}: it was "
                "restarted, or another load took its place"
            )
        return self._load


def _durable(registry: Registry, loaded: Loaded) -> Durable:
    """Return what the next delta is one to: the version that was loaded."""
    version, epoch = loaded.manifest.version, loaded.manifest.epoch
    histories = {table.spec.name: History(table) for table in registry}
    for history in histories.values():
        history.forget_erased(epoch)
    return Durable(version, epoch, histories)


def _reply(load: _Load) -> pb.LoadReply:
    """Return how far a load is."""
    reply = pb.LoadReply(version=load.version, state="reading")
    if not load.task.done():
        return reply
    error = load.task.exception()
    if error is not None:
        is_ours = isinstance(error, PserverError)
        reply.state = "failed"
        reply.error = str(error) if is_ours else f"{type(error).__name__}: {error}"
        return reply
    loaded = load.task.result()
    reply.state = "loaded" if load.is_loaded else "read"
    reply.tables.extend(loaded.tables)
    reply.left.extend(sorted({*load.left} - {*loaded.tables}))
    reply.rows, reply.bytes, reply.seconds = loaded.rows, loaded.bytes, loaded.seconds
    reply.rows_of_version = loaded.rows_of_version
    reply.state_taken, reply.state_tables = loaded.state
    return reply
