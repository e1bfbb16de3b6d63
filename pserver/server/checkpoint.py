"""What a shard answers about saves: step after step of the method Save.

Rooms before and after: ``servicer`` hands the method on; the client's ``saving`` asks all shards for
one step after the other; ``save`` does the work, ``ending`` waits for the other shards,
``checkpoint.publish`` does the last step.

A client takes a save as far as ``commit``; from there the shards bring it to its end, whether the client
stays or not, and ``look`` tells how far they are.

What always holds:
    * One save at a time. One that is not committed, and whose client has not asked for ``IDLE_S``, gives
      way to the next.
    * A delta holds what changed since the last version that was published, or it is refused.
Owner: the event loop; files are written in other threads, tables touched in the owner thread.
"""

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import Callable

import structlog

from pserver.checkpoint.manifest import FileEntry, Manifest, Mode
from pserver.checkpoint.publish import Facts, publish
from pserver.checkpoint.store import Store, next_version, opened
from pserver.checkpoint.tensors import encoded
from pserver.errors import (
    CheckpointError,
    JournalError,
    PserverError,
    RequestError,
    RestartedError,
    nearest,
)
from pserver.server import ending
from pserver.server.align import Align, Marks
from pserver.server.durable import Durable, check_delta, remember
from pserver.server.ending import parts_of_all, published
from pserver.server.gate import Gate
from pserver.server.methods import Own
from pserver.server.save import Save, Shard
from pserver.server.save_modes import checked_mode, keep_of, replay, reset_all
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small, parse_small

log = structlog.get_logger(__name__)

_LOOK_S = 0.001  # between two looks at what must come before a cut


class Saves:
    """The method Save of one shard.

    Attributes:
        durable: what the next delta would be one to; None: a full save must come first.
        pause_s, num_failed: the longest that the last save held up requests; saves that failed.
        saved: the version that was saved last since the tables were made or loaded; empty: none.
    """

    def __init__(self, shard: Shard, gate: Gate, align: Align, *, store: Store | None) -> None:
        """Begin without a save.

        Args:
            shard: whose saves these are.
            gate: holds writes back.
            align: lets those through that the cut must have.
            store: where versions lie; None: there are none here.
        """
        self.durable: Durable | None = None
        self.pause_s, self.num_failed, self._saved_s, self.saved = 0.0, 0, time.monotonic(), ""
        self._shard, self._gate, self._align, self._store = shard, gate, align, store
        self._save: Save | None = None
        self._put: dict[str, bytearray] = {}
        self._extra: dict[str, FileEntry] = {}
        self._mode: Mode = "full"
        self._positions: dict[str, int] = {}
        self._base = ""
        self._asked_s = self._held_s = 0.0
        self._cutting: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._publishing: asyncio.Task[Manifest] | None = None

    async def answer(self, message: bytes, incarnation: int) -> bytes:
        """Do one step of a save."""
        request = parse_small(pb.SaveRequest, message)
        if request.incarnation not in (0, incarnation):
            raise RestartedError(
                f"save: shard {self._shard.shard} is another incarnation than the client connected to"
            )
        steps = {
            "wait": self._on_wait,
            "begin": self._on_begin,
            "hold": self._on_hold,
            "align": self._on_align,
            "cut": self._on_cut,
            "look": self._on_look,
            "put": self._on_put,
            "commit": self._on_commit,
            "end": self._on_end,
        }
        if request.step not in steps:
            hint = nearest(request.step, steps)
            raise RequestError(f"save: unknown step {request.step!r}; {hint}")
        await steps[request.step](request, incarnation)
        if request.save_id:  # and not somebody who only looks
            self._asked_s = time.monotonic()
        return build_small(self._reply())

    async def close(self) -> None:
        """Drop what is under way."""
        save, self._save = self._save, None
        if save is not None:
            await self._drop(save)
            with contextlib.suppress(CheckpointError):  # the other shards see that it was given up
                await asyncio.to_thread(save.store.abandon, save.version)

    def replays(self) -> dict[int, Callable[[bytes], object]]:
        """Return what applies a save's own records again, in the owner thread."""
        return {Own.MARKS: lambda body: replay(self._shard.registry, body)}

    # --- the steps of a save ------------------------------------------------------------------

    async def _on_wait(self, request: pb.SaveRequest, _: int) -> None:
        """Wait for rounds that the cut is to have, before anything is held back."""
        await self._align.until_round(request.marks.round)

    async def _on_begin(self, request: pb.SaveRequest, _: int) -> None:
        """Choose or find the version's place."""
        if self._save is not None and self._save.save_id == request.save_id:
            return
        store, mode = opened(self._store), checked_mode(request.mode, self._shard.registry)
        await self._make_way()
        self._mode = mode
        since = 0
        if request.mode == "delta":
            since = check_delta(self.durable, self._shard.registry, shard=self._shard.shard)
            assert self.durable is not None
            self._base = self.durable.version
        if self._shard.shard == 0:
            version = await asyncio.to_thread(next_version, store)
            await asyncio.to_thread(store.begin, version)
        else:
            version = request.version
            if not await asyncio.to_thread(store.has_begun, version):
                raise CheckpointError(
                    f"{store.where}: shard 0 began {version}, but shard {self._shard.shard} does not "
                    "see it there; all shards must use one folder"
                )
        self._put.clear()
        self._extra.clear()
        self._cutting = self._ending = self._publishing = None
        self._save = Save(
            self._shard,
            store,
            request.save_id,
            version,
            since,
            keeps=functools.partial(keep_of, mode),
            is_whole=mode != "base",
        )

    async def _on_hold(self, request: pb.SaveRequest, _: int) -> None:
        """Let writes wait, and finish those that are in the queue."""
        save = self._current(request)
        if save.progress.state != "begun":
            return
        self._gate.shut()
        self._held_s = time.perf_counter()
        await self._shard.executor.run(lambda: None)
        save.progress.state = "held"

    async def _on_align(self, request: pb.SaveRequest, _: int) -> None:
        """Let through what other shards have already, and wait until it is here."""
        save = self._current(request)
        if save.progress.state != "held":
            return
        pushes = {mark.trainer: mark.pushes for mark in request.marks.trainers}
        limit = Marks(request.marks.round, pushes)
        self._align.set(limit)
        self._gate.open()
        while not self._align.is_reached(limit):
            if self._align.has_expired:
                raise self._align.missing(limit)
            await asyncio.sleep(_LOOK_S)

    async def _on_cut(self, request: pb.SaveRequest, incarnation: int) -> None:
        """Mark the cut, and let writes go on."""
        save = self._current(request)
        if save.progress.state not in ("begun", "held"):
            return
        if self._cutting is None:
            self._cutting = asyncio.ensure_future(self._cut(save, request, incarnation))
        # As with a commit: a try whose caller went away does not stop it half-way.
        await asyncio.shield(self._cutting)

    async def _cut(self, save: Save, request: pb.SaveRequest, incarnation: int) -> None:
        was_held = save.progress.state == "held"

        def check() -> None:
            self._align.check_cut(request.marks.round)
            self._positions = self._align.positions()

        try:
            if was_held and (self._gate.has_expired or self._align.has_expired):
                raise CheckpointError(
                    f"save {save.version}: writes were held back for too long before the cut; "
                    "is a shard stopped? Try again"
                )
            await save.cut(
                request.epoch,
                incarnation=incarnation,
                check=check,
            )
        finally:
            self._gate.open()
            self._align.lift()
        if was_held:
            pause_s = time.perf_counter() - self._held_s
            save.progress.longest_pause_s = max(save.progress.longest_pause_s, pause_s)

    async def _on_look(self, request: pb.SaveRequest, _: int) -> None:
        """Tell how far it is; without a name, how far the last save is, whoever's it was."""
        if request.save_id:
            self._current(request)

    async def _on_put(self, request: pb.SaveRequest, _: int) -> None:
        """Take the next bytes of a trainer's file."""
        save = self._current(request)
        data = self._put.setdefault(request.name, bytearray())
        if request.offset > len(data):
            raise CheckpointError(f"save: {request.name} has a gap at byte {len(data)}")
        data[request.offset :] = request.data  # a repeated step changes nothing
        if request.more:
            return
        whole = encoded([memoryview(bytes(data))])
        await asyncio.to_thread(save.store.write, save.version, request.name, whole)
        if request.name not in self._extra:
            save.progress.bytes += whole.num_bytes
        self._extra[request.name] = FileEntry(
            name=request.name,
            kind="trainer",
            shard=-1,
            bytes=whole.num_bytes,
            sha256=whole.sha256,
        )

    async def _on_commit(self, request: pb.SaveRequest, _: int) -> None:
        """Let the shards bring it to its end by themselves."""
        save = self._current(request)
        if save.progress.state in ("begun", "held"):
            raise CheckpointError(f"save {save.version}: there is no cut yet; step cut comes first")
        if self._ending is None and save.progress.state != "published":
            self._ending = asyncio.ensure_future(self._finish(save, request))

    async def _finish(self, save: Save, request: pb.SaveRequest) -> None:
        """Publish the version, or learn that shard 0 did; whatever fails is told by ``look``."""
        store, version = save.store, save.version
        try:
            await save.written()
            if self._shard.shard == 0:
                await parts_of_all(store, version, num_shards=self._shard.num_shards)
                self._publishing = asyncio.ensure_future(self._publish(save, request))
                await asyncio.shield(self._publishing)
            else:
                await published(store, version)
            if save.is_whole:
                self.durable = await self._shard.executor.run(lambda: remember(save))
            if self._mode in ("delta", "base"):
                await reset_all(self._shard, self._mode, epoch=save.epoch)
            if save.journal is not None:
                await self._drop_covered(save.journal["position"])
        except Exception as problem:
            if not isinstance(problem, PserverError):
                log.exception("save failed by our own mistake", version=version)
            await self._fail(save, problem)
            return
        self._saved_s, self.pause_s = time.monotonic(), save.progress.longest_pause_s
        self.saved = save.version
        save.is_published()  # last: who waits finds all of it done
        self._put.clear()
        self._say(save)

    async def _fail(self, save: Save, problem: Exception) -> None:
        """Take away what was begun, so that the other shards see it, and say why."""
        text = str(problem)
        with contextlib.suppress(CheckpointError):
            places = (save.store.has_begun, save.store.has)
            if not any([await asyncio.to_thread(is_there, save.version) for is_there in places]):
                text = str(ending.gone(save.store, save.version))  # why nothing was written
            await asyncio.to_thread(save.store.abandon, save.version)
        self.num_failed += 1
        save.progress.state, save.progress.error = "failed", text  # last: the next save may begin
        hint = "the version before is whole; see to the reason, and save again"
        log.error("save failed", version=save.version, epoch=save.epoch, error=text, hint=hint)

    def age_s(self) -> float:
        """Return the seconds since the last version, or the start; 0 where there is no place for one."""
        return 0.0 if self._store is None else time.monotonic() - self._saved_s

    def _say(self, save: Save) -> None:
        """Say that a version is there, if this process has logs: one that embeds shards has none."""
        where, done = f"{save.store.where}/{save.version}", save.progress
        if structlog.is_configured():
            facts = {"rows": done.rows, "bytes": done.bytes, "seconds": round(done.seconds, 2)}
            log.info("saved", where=where, epoch=save.epoch, **facts)

    async def _publish(self, save: Save, request: pb.SaveRequest) -> Manifest:
        facts = Facts(
            mode=self._mode,
            base=self._base if save.since else None,
            epoch=save.epoch,
            num_shards=self._shard.num_shards,
            cut=request.cut,
            trainers=json.loads(request.trainers or "{}"),
            round=request.marks.round,
            pushes={mark.trainer.hex(): mark.pushes for mark in request.marks.trainers},
            positions=self._positions,
            save_id=save.save_id,
        )
        extra = list(self._extra.values())
        return await asyncio.to_thread(publish, save.store, save.version, facts, extra=extra)

    async def _on_end(self, request: pb.SaveRequest, _: int) -> None:
        """Drop a save that is not published."""
        save = self._save
        if save is None or save.save_id != request.save_id:
            return
        self._gate.open()
        self._align.lift()
        await self._drop(save)
        if save.progress.state == "published":
            return
        if self._shard.shard == 0:
            await asyncio.to_thread(save.store.abandon, save.version)
        if self._save is save:
            self._save = None

    async def _drop_covered(self, position: int) -> None:
        """Let the journal go up to the cut; what cannot be removed costs room, and nothing else."""
        try:
            await asyncio.to_thread(self._shard.drop_covered, position)
        except JournalError as error:
            log.warning("segments of the journal stay", reason=str(error))

    def _current(self, request: pb.SaveRequest) -> Save:
        if self._save is None or self._save.save_id != request.save_id:
            raise CheckpointError(
                f"save: shard {self._shard.shard} knows no save {request.save_id!r}: it was "
                "restarted, or another save took its place"
            )
        return self._save

    def _reply(self) -> pb.SaveReply:
        save = self._save
        if save is None:
            return pb.SaveReply()
        progress = save.progress
        return pb.SaveReply(
            state=progress.state,
            error=progress.error,
            version=save.version,
            epoch=self._shard.registry.epoch,
            base=self._base if save.since else "",
            rows=progress.rows,
            bytes=progress.bytes,
            seconds=progress.seconds,
            longest_pause_s=progress.longest_pause_s,
            rows_max=progress.rows_max,
            marks=self._align.told() if progress.state == "held" else None,
        )

    async def _drop(self, save: Save) -> None:
        """End a save, and the cut that is being made for it; not one that is being published."""
        if self._cutting is not None:
            await asyncio.wait([self._cutting])
        if self._ending is not None:
            if self._publishing is None:
                self._ending.cancel()
            await asyncio.wait([self._ending])
        await save.end()

    async def _make_way(self) -> None:
        """Drop a save whose client is gone, or refuse another one beside it."""
        running = self._save
        if running is None or running.progress.state == "published":
            return
        is_alone = time.monotonic() - self._asked_s >= ending.IDLE_S
        goes_on = not is_alone if self._ending is None else not self._ending.done()
        if goes_on and running.progress.state not in ("stopped", "failed"):
            raise CheckpointError(
                f"save: {running.version} is being saved now; wait until it is done"
            )
        log.warning("dropping a save whose client is gone", version=running.version)
        await self._drop(running)
        if self._save is running:
            self._save = None
