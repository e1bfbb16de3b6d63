"""Where arrays of a fixed size lie: in memory, or on a nameless file that the system tiers.

Rooms before and after: ``slab`` and ``index`` ask for arrays; ``server.app`` says once in which folder
files may lie, and has it tried before the shard takes requests.

Both kinds reserve address space and take nothing until items are touched, so growth copies nothing.
Memory (MAP_NORESERVE) is advised MADV_HUGEPAGE: a random row costs no walk through small page tables
(2x on gather, measured on 8 M rows). A file is sparse, shared with the page cache and advised
MADV_RANDOM: the neighbours of a row are not read with it.

What always holds:
    * Fresh items read as zero; an array keeps its address for life.
    * A file has no name (O_TMPFILE), so no two shards share one, and it is gone with its process,
      however that ends. `df` sees it, `ls` does not.
    * Items below what ``reserve`` returned can be written: a file's blocks are allocated before the
      first touch, in steps. Without that a full disk would end the process with SIGBUS. (What is left
      is a disk that fails, and file systems that copy blocks when they are overwritten: btrfs, zfs.)

Where the pages of rows are not in memory, reads would follow each other, one a row. So once a request
had to wait for the disk, the rows of the next ones are asked for before they are touched (``ask``): 20 us
instead of 260 a row, measured on a virtual disk. That changes no bit.

Owner: the shard's owner thread.
"""

import errno
import mmap
import os
import resource
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pserver.arrays import RowIds
from pserver.errors import ConfigError
from pserver.kernel import pages

_MAP_NORESERVE = 0x4000  # Linux; the mmap module names it from Python 3.13 on only

HUGE_PAGE_BYTES = 2 << 20
"""What the system hands out at once; a table's memory grows in such steps."""

FILE_STEP_BYTES = 16 << 20
"""A file's blocks are allocated in such steps: 130,000 rows of dim 16 with adagrad, a fraction of a
millisecond. Also what a folder must have free when a shard or table begins."""

LEAVE_BYTES = 16 << 20
"""Memory that is of no use any more goes back in such slices: in the worst case 4,096 pages, 1 ms."""

ASKS = 64
"""Requests whose rows are asked for after one that waited for the disk. The next one is not and so
finds out whether that is still worth its microsecond a row."""

_FAULTS_FEW = 16  # reads of a request that are no reason to ask

_TRIAL_BYTES = 1 << 30  # a sparse file of this size must take no room


class Mapping:
    """Anonymous memory of a fixed size, seen as one array; pages are taken when touched."""

    refusal = ""

    def __init__(self, count: int, dtype: DTypeLike, *, what: str) -> None:
        """Reserve address space for ``count`` items.

        Args:
            count: items, at least 1.
            dtype: of the items.
            what: named in the error.

        Raises:
            ConfigError: the system refused, which a limit on address space does.
        """
        num_bytes = count * np.dtype(dtype).itemsize
        rounded = -(-num_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        try:
            self._map = mmap.mmap(-1, rounded, flags=flags)
            self._map.madvise(mmap.MADV_HUGEPAGE)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"{what}: could not reserve {rounded / 2**30:.1f} GiB of address space ({error}); "
                "lower the table's capacity_max, or raise `ulimit -v`"
            ) from error
        self.array: NDArray[Any] = np.frombuffer(self._map, dtype, count)

    def reserve(self, count: int) -> int:
        """Return how many items may be touched: all of them, whatever is asked for."""
        del count
        return self.array.size

    def ask(self, row_ids: RowIds, width: int) -> None:
        """Do nothing: there is nothing to wait for. See ``FileMapping.ask``."""

    def give_back(self, start: int, count: int) -> None:
        """Return the pages of items [start, start + count) to the system; they read as zero.

        Pages that are only partly inside stay.
        """
        size = self.array.itemsize
        first = -(-(start * size) // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (start + count) * size // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def leave(self) -> Iterator[None]:
        """Return all pages to the system, a slice at a time; nobody touches the array any more."""
        for start in range(0, len(self._map), LEAVE_BYTES):
            self._map.madvise(mmap.MADV_DONTNEED, start, min(LEAVE_BYTES, len(self._map) - start))
            yield


class FileMapping:
    """A sparse, nameless file of a fixed size, seen as one array; blocks are taken step by step.

    Attributes:
        array: (count,) the items; only those that ``reserve`` granted may be touched.
        refusal: why the last call of ``reserve`` granted less than was asked for.
    """

    def __init__(self, count: int, dtype: DTypeLike, *, folder: Path, what: str) -> None:
        """Make the file and map it; it takes no room yet.

        Args:
            count: items, at least 1.
            dtype: of the items.
            folder: where the file lies.
            what: named in the error.

        Raises:
            ConfigError: the system refused the file, its size or the address space.
        """
        num_bytes = count * np.dtype(dtype).itemsize
        rounded = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.refusal = ""
        self._reserved = 0
        self._folder = folder
        try:
            self._file = _nameless(folder)
            weakref.finalize(self, os.close, self._file)
            os.truncate(self._file, rounded)
            self._map = mmap.mmap(self._file, rounded, flags=mmap.MAP_SHARED)
            self._map.madvise(mmap.MADV_RANDOM)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"{what}: could not map a sparse file of {rounded / 2**30:.1f} GiB in {folder} "
                f"({error}); lower the table's capacity_max, or choose another --storage-dir"
            ) from error
        self.array: NDArray[Any] = np.frombuffer(self._map, dtype, count)
        self._faults_seen = _major_faults()
        self._asks_left = 0
        pages.ask(self.array, 1, np.empty(0, np.int64))  # so that no request waits for a compiler

    def ask(self, row_ids: RowIds, width: int) -> None:
        """Let the system read the rows of a request side by side, if there are reads to wait for.

        Args:
            row_ids: (U,) int64; -1 means no row.
            width: items a row.
        """
        faults = _major_faults()
        if faults - self._faults_seen > _FAULTS_FEW:
            self._asks_left = ASKS
        self._faults_seen = faults
        if self._asks_left:
            self._asks_left -= 1
            pages.ask(self.array, width, row_ids)

    def reserve(self, count: int) -> int:
        """Allocate blocks for the first ``count`` items, and return how many items have theirs.

        Less than ``count`` if the disk has no room; ``refusal`` says so then. Never takes back.
        """
        wanted = min(count * self.array.itemsize, len(self._map))
        step = -(-wanted // FILE_STEP_BYTES) * FILE_STEP_BYTES
        page = -(-wanted // mmap.PAGESIZE) * mmap.PAGESIZE
        for size in (step, page):
            if self._reserved < wanted:
                self._allocate(min(size, len(self._map)))
        return min(self._reserved // self.array.itemsize, self.array.size)

    def leave(self) -> Iterator[None]:
        """Return all blocks to the file system, as ``Mapping.leave``."""
        for size in reversed(range(0, self._reserved, LEAVE_BYTES)):
            os.truncate(self._file, size)
            yield

    def _allocate(self, size: int) -> None:
        """Give the file's first ``size`` bytes blocks of their own, or keep why that failed."""
        try:
            os.posix_fallocate(self._file, self._reserved, size - self._reserved)
        except OSError as error:
            self.refusal = f"{self._folder} has no room for more rows ({error.strerror})"
        else:
            self._reserved, self.refusal = size, ""


AnyMapping: TypeAlias = Mapping | FileMapping


@dataclass(frozen=True, slots=True)
class Storage:
    """Where the tables of a shard may keep their rows. Immutable.

    Attributes:
        folder: for tables whose storage is ``file``; None if the shard takes none.
    """

    folder: Path | None = None

    def map_rows(self, kind: str, count: int, dtype: DTypeLike, *, table: str) -> AnyMapping:
        """Return an array for the rows of a table.

        Args:
            kind: ``memory`` or ``file``, as the table's spec says.
            count: items.
            dtype: of the items.
            table: named in an error.

        Raises:
            ConfigError: there is no folder, or the system refused.
        """
        what = f"table {table!r}"
        if kind == "memory":
            return Mapping(count, dtype, what=what)
        if self.folder is None:
            raise ConfigError(
                f"{what}: storage is file, and this shard has no folder for files; start it with "
                "--storage-dir, or give the table storage=memory"
            )
        _check_free(self.folder, where=what)
        return FileMapping(count, dtype, folder=self.folder, what=what)


MEMORY_ONLY = Storage()
"""Of a shard that takes no tables on files."""


def open_storage(folder: str | None, *, where: str = "--storage-dir") -> Storage:
    """Return where tables may keep rows, after trying the folder.

    Args:
        folder: for files; None if there is none.
        where: named in an error.

    Raises:
        ConfigError: there is no such folder, it cannot be written to, it has less than
            ``FILE_STEP_BYTES`` free, or its files cannot be sparse.
    """
    if folder is None:
        return Storage()
    path, where = Path(folder), f"{where} {folder}"
    if not path.is_dir():
        raise ConfigError(f"{where}: must be a folder that exists; make it first")
    try:
        _check_free(path, where=where)
        file = _nameless(path)
        try:
            os.truncate(file, _TRIAL_BYTES)
            os.posix_fallocate(file, 0, mmap.PAGESIZE)
            taken = 512 * os.fstat(file).st_blocks
        finally:
            os.close(file)
    except OSError as error:
        raise ConfigError(f"{where}: cannot keep files there: {error.strerror}") from error
    if taken > _TRIAL_BYTES // 2:
        raise ConfigError(
            f"{where}: its file system makes no sparse files ({_TRIAL_BYTES} bytes of nothing took "
            f"{taken}); choose one that does, such as ext4 or xfs"
        )
    return Storage(path)


def _major_faults() -> int:
    """Return how often this thread has waited for a page to be read."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def _check_free(folder: Path, *, where: str) -> None:
    """Refuse a folder that could not take the first rows."""
    facts = os.statvfs(folder)
    free = facts.f_bavail * facts.f_frsize
    if free < FILE_STEP_BYTES:
        raise ConfigError(
            f"{where}: {folder} must have at least {FILE_STEP_BYTES >> 20} MiB free, has "
            f"{free >> 20} MiB"
        )


def _nameless(folder: Path) -> int:
    """Return an open file that no folder lists: it ends with the last process that has it."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
    file, name = tempfile.mkstemp(prefix="pserver-", dir=folder)  # such as NFS
    Path(name).unlink()
    return file
