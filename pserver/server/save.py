"""One save on one shard: slices between requests, sorting in another thread, the disk in a third.

Rooms before and after: ``checkpoint`` takes it from step to step as the saving client asks;
``table.history`` and ``table.dense_dump`` hold the cuts; ``checkpoint.snapshot`` makes files.

What always holds: whatever fails, the tables go on without a cut, and nothing is published. No request
waits for more than one slice, ``SLICE_BYTES`` of rows. Owner: the event loop; what touches tables runs in
the owner thread.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import structlog
from numpy.typing import NDArray

from pserver.checkpoint.manifest import FileEntry, Part, ShardEntry, TableEntry, part_name
from pserver.checkpoint.snapshot import (
    Keep,
    RowFiles,
    arrays_file,
    dense_files,
    distinct,
    filter_files,
    sparse_entry,
)
from pserver.checkpoint.store import Store
from pserver.checkpoint.tensors import Encoded, encoded
from pserver.errors import CheckpointError, OverloadedError, PserverError
from pserver.placement import partitions_of_shard
from pserver.server.executor import Executor
from pserver.server.methods import Own
from pserver.server.recording import number_body
from pserver.table.cut import Cut
from pserver.table.dense_dump import DenseCut
from pserver.table.history import History
from pserver.table.registry import Registry
from pserver.table.sparse import SparseTable

log = structlog.get_logger(__name__)

T = TypeVar("T")


def _step_back() -> None:
    """Let every other thread go first: on a busy machine a save takes longer, and training does not."""
    # By the process's own: a thread that one of these starts would go back twice.
    own = os.getpriority(os.PRIO_PROCESS, os.getpid())
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), own + 10)


_THREAD = concurrent.futures.ThreadPoolExecutor(1, "pserver-save", initializer=_step_back)
"""Sorts and hashes for all shards of this process, while the file before is being written."""

_DISK = concurrent.futures.ThreadPoolExecutor(1, "pserver-disk", initializer=_step_back)
"""Writes and syncs for all shards of this process, which is waiting for the most part."""

SLICE_BYTES = 1 << 19
"""Rows copied between two requests: 0.2 ms, and 5 to 10 where memory is as slow as it was ever seen."""

_SHARE = 4.0  # slices are followed by this many times their length for requests, if there are any
_REST_S = 0.002  # the shortest rest that is worth it: the loop's clock is one of milliseconds
_FILE_SHARE = (
    1.5  # a file is followed by this many times what it took, for requests, if there were any
)
_BUSY_S = 0.005  # before a slice is tried again that a full queue refused

Capture = Callable[[], Callable[[], dict[str, NDArray[Any]]]]
"""Called at the cut in the owner thread; what it returns makes arrays of that moment, in any thread."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Who saves: what a save needs of its shard.

    Attributes:
        shard, num_shards: where in which cluster.
        registry: its tables.
        executor: its owner thread.
        parts: what it remembers beside tables, by name.
        journal: the journal's position, read in the owner thread; None without a journal.
        note: is told what is about to change, by kind of record.
        drop_covered: is told, in any thread, the position up to which a durable version covers the
            journal.
    """

    shard: int
    num_shards: int
    registry: Registry
    executor: Executor
    parts: Mapping[str, Capture]
    journal: Callable[[], dict[str, int] | None] = lambda: None
    note: Callable[[int, bytes], None] = lambda kind, body: None
    drop_covered: Callable[[int], None] = lambda _: None


@dataclass(slots=True)
class Progress:
    """How far a save is; see ``SaveReply``."""

    state: str = "begun"
    error: str = ""
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    longest_pause_s: float = 0.0
    rows_max: int = 0


@dataclass(slots=True)
class Save:
    """A save that is under way.

    Attributes:
        save_id: drawn by who saves.
        version: that it will be.
        since: rows that did not change after this epoch are left out; 0: none.
        keeps: of each table the rows that are written, where not all are.
        is_whole: all rows are in it, or in its bases: a journal may go on from it.
        progress: how far it is.
        epoch: of the cut.
        journal: the journal's position at the cut.
    """

    shard: Shard
    store: Store
    save_id: str
    version: str
    since: int
    keeps: Callable[[SparseTable], Keep | None] = lambda _: None
    is_whole: bool = True
    progress: Progress = field(default_factory=Progress)
    epoch: int = 0
    cuts: dict[str, Cut] = field(default_factory=dict)
    dense_cuts: dict[str, DenseCut] = field(default_factory=dict)
    _incarnation: int = 0
    _captured: dict[str, Callable[[], dict[str, NDArray[Any]]]] = field(default_factory=dict)
    journal: dict[str, int] | None = None
    _files: list[FileEntry] = field(default_factory=list)
    _tables: list[TableEntry] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None
    _begin_s: float = 0.0
    _num_put: int = 0
    _rest_s: float = 0.0  # that requests are to have yet
    _writing: "concurrent.futures.Future[None] | None" = None

    async def cut(self, epoch: int, *, incarnation: int, check: Callable[[], None]) -> None:
        """Mark the instant, and begin to copy.

        Args:
            epoch: that all shards agreed on: none of their rows has a later one.
            incarnation: of this process.
            check: called in the turn of the cut; raises if it is not to be made.
        """

        def mark() -> None:
            check()
            self._mark(epoch)

        self._incarnation = incarnation
        self._begin_s = time.perf_counter()
        await self._own(mark)
        self.progress.state = "copying"
        self._task = asyncio.ensure_future(self._write_all())

    async def written(self) -> None:
        """Return when this shard's files and part are there.

        Raises:
            CheckpointError: they could not be written; the tables go on without the cut.
        """
        assert self._task is not None, "the cut was marked"
        await asyncio.wait([self._task])
        if self.progress.state != "done":
            raise CheckpointError(self.progress.error or f"save {self.version} was dropped")

    def is_published(self) -> None:
        """Note that the version is there; the copies that it was made of go."""
        self.progress.state = "published"
        self.progress.seconds = time.perf_counter() - self._begin_s
        self.cuts, self.dense_cuts, self._captured = {}, {}, {}

    async def end(self) -> None:
        """Let the tables go on without the cut; what was not done stays undone."""
        if self._task is not None:
            if not self._task.cancelling():  # a second time would cut short what ends the cuts
                self._task.cancel()
            await asyncio.wait([self._task])

    # --- in the owner thread ------------------------------------------------------------------

    def _mark(self, epoch: int) -> None:
        """Mark the cut of every table between two requests."""
        registry = self.shard.registry
        self.shard.note(Own.EPOCH, number_body(epoch + 1))
        registry.raise_epoch(epoch)
        self.epoch = epoch
        for table in registry:
            history = table.watch if isinstance(table.watch, History) else History(table)
            self.cuts[table.spec.name] = history.begin_cut(since=self.since)
        for dense in registry.dense:
            self.dense_cuts[dense.spec.name] = DenseCut(dense)
        self.progress.rows_max = sum(cut.num_rows for cut in self.cuts.values())
        registry.raise_epoch(epoch + 1)
        self._captured = {name: capture() for name, capture in self.shard.parts.items()}
        self.journal = self.shard.journal() if self.is_whole else None

    def _end_cuts(self) -> None:
        for cut in self.cuts.values():
            if isinstance(cut.table.watch, History):
                cut.table.watch.end_cut()
        for dense in self.dense_cuts.values():
            dense.end()

    # --- on the event loop --------------------------------------------------------------------

    async def _own(self, work: Callable[[], T], *, is_short: bool = False) -> T:
        """Do something as the owner of the tables, and remember how long it held up requests.

        Args:
            work: what to do.
            is_short: it takes less than handing it to the owner thread does.
        """

        def timed() -> tuple[T, float]:
            begin = time.perf_counter()
            return work(), time.perf_counter() - begin

        executor = self.shard.executor
        run = executor.run_short if is_short else executor.run
        while True:
            try:
                result, seconds = await run(timed)
            except OverloadedError:
                await asyncio.sleep(_BUSY_S)
                continue
            self.progress.longest_pause_s = max(self.progress.longest_pause_s, seconds)
            await self._rest(seconds)
            return result

    async def _rest(self, seconds: float) -> None:
        """Leave the shard to requests for a while, if there were any since the last slice."""
        if self.shard.executor.num_put > self._num_put + 1:
            self._rest_s += _SHARE * seconds
        if self._rest_s >= _REST_S:
            rest_s, self._rest_s = self._rest_s, 0.0
            await asyncio.sleep(rest_s)
        self._num_put = self.shard.executor.num_put

    async def _aside(self, work: Callable[[], T]) -> T:
        """Run something in the thread of saves, which lets others go first."""
        return await asyncio.get_running_loop().run_in_executor(_THREAD, work)

    async def _pace(self, work: Callable[[], object]) -> None:
        """Run something long in the thread of saves, then leave the processors to requests, if there were any."""
        begin, executor = time.perf_counter(), self.shard.executor
        await self._aside(work)
        if executor.num_put > self._num_put:
            await asyncio.sleep(_FILE_SHARE * (time.perf_counter() - begin))
        self._num_put = executor.num_put

    async def _write_all(self) -> None:
        """Copy all tables and write their files, then the shard's part."""
        state, error = "stopped", ""
        try:
            for cut in self.cuts.values():
                await self._write_table(cut)
            for dense in self.dense_cuts.values():
                await self._write_dense(dense)
            await self._aside(self._write_part)
            state = "done"
        except PserverError as problem:
            error = str(problem)
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
            log.exception("save failed by our own mistake", version=self.version)
        finally:
            with contextlib.suppress(PserverError):  # of a save that fails: nothing is written late
                await self._aside(self._settle)
            await self._own(self._end_cuts)  # before anybody hears of it: the next cut may come
            self.progress.state, self.progress.error = state, error

    async def _write_table(self, cut: Cut) -> None:
        name, shard = cut.table.spec.name, self.shard
        own = partitions_of_shard(shard.shard, shard.num_shards)
        files = RowFiles(
            self._write,
            cut.blocks,
            table=name,
            shard=shard.shard,
            partitions=own,
        )
        files.keep = self.keeps(cut.table)
        if self.since:
            history = cut.table.watch
            assert isinstance(history, History)
            erased = await self._own(lambda: history.erased_until(cut.epoch))
            files.erased = await self._aside(lambda: distinct(erased))
        rows_max = max(SLICE_BYTES // cut.table.row_bytes, 1)
        is_short = cut.table.spec.storage == "memory"  # a row on a file may wait for a disk
        while not cut.is_done:
            files.add(await self._own(lambda: cut.copy_some(rows_max), is_short=is_short))
            if files.is_due:
                await self._pace(functools.partial(files.flush, cut.next_partition))
                self.progress.rows = sum(file.rows for file in self._files) + files.num_rows
        self._files += await self._aside(files.finish)
        self._files += await self._aside(
            lambda: filter_files(self._write, cut, shard=shard.shard, partitions=own)
        )
        self._tables.append(sparse_entry(cut, files))

    async def _write_dense(self, cut: DenseCut) -> None:
        while not cut.is_done:
            await self._own(cut.copy_some)
        shard = self.shard
        file, table = await self._aside(
            lambda: dense_files(self._write, cut, shard=shard.shard, num_shards=shard.num_shards)
        )
        self._files.append(file)
        self._tables.append(table)

    # --- in another thread --------------------------------------------------------------------

    def _write(self, name: str, data: Encoded) -> None:
        """Let a file be written, once the one before is: one file waits at most."""
        self._settle()
        self._writing = _DISK.submit(self.store.write, self.version, name, data)
        self.progress.bytes += data.num_bytes

    def _settle(self) -> None:
        """Return when what was to be written is durable, or raise why it is not."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write_part(self) -> None:
        """Write what the shard remembers beside tables, and what the manifest says of it."""
        arrays = {
            f"{name}.{key}": array
            for name, make in self._captured.items()
            for key, array in make().items()
        }
        arrays["shard"] = np.array([self.shard.shard, self.shard.num_shards], np.uint64)
        shard = self.shard.shard
        self._files.append(arrays_file(self._write, "shard", arrays, table="", shard=shard))
        self.progress.seconds = time.perf_counter() - self._begin_s
        entry = ShardEntry(
            shard=shard,
            incarnation=self._incarnation,
            seconds=self.progress.seconds,
            longest_pause_s=self.progress.longest_pause_s,
            journal=self.journal,
        )
        part = Part(save_id=self.save_id, shard=entry, tables=self._tables, files=self._files)
        self.progress.rows = sum(file.rows for file in self._files if file.kind == "rows")
        data = memoryview(part.model_dump_json().encode())
        self._settle()
        self.store.write(self.version, part_name(shard), encoded([data]))
