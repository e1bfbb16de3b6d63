"""The memory of a table: rows, epochs and the free list, reserved once and never moved.

Rooms before and after: ``sparse`` asks for room; the kernels read and write the arrays.

Address space for ``rows_max`` rows is reserved at creation (MAP_NORESERVE: no memory is taken)
and advised MADV_HUGEPAGE, so growth touches new pages and copies nothing, and a random row
costs no walk through small page tables (2x on gather, measured on 8 M rows).

What always holds: fresh memory reads as zero; the arrays keep their addresses for life. Owner:
the shard's owner thread.
"""

import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pserver.arrays import Epochs, Floats, RowIds, Words
from pserver.errors import ConfigError

_MAP_NORESERVE = 0x4000  # Linux; the mmap module names it from Python 3.13 on only

HUGE_PAGE_BYTES = 2 << 20
"""What the system hands out at once; a table's memory grows in such steps."""


class Mapping:
    """Anonymous memory of a fixed size, seen as one array; pages are taken when touched."""

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

    def give_back(self, start: int, count: int) -> None:
        """Return the pages of items [start, start + count) to the system; they read as zero.

        Pages that are only partly inside stay.
        """
        size = self.array.itemsize
        first = -(-(start * size) // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (start + count) * size // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)


class Slab:
    """The arrays that hold a table's rows.

    Attributes:
        rows: (rows_max * stride,) float32; a row is weights, then optimizer state.
        epochs: (rows_max,) uint32: the table's epoch when the row last changed.
        free_rows: (rows_max,) int64: a stack of freed row ids; its height is in the index.
        marks: (rows_max / 64,) uint64: all zero between calls, see ``rows.first_repeat``.
    """

    def __init__(self, rows_max: int, stride: int, *, table: str) -> None:
        """Reserve address space for ``rows_max`` rows of ``stride`` floats."""
        what = f"table {table!r}"
        self._mappings = (
            Mapping(rows_max * stride, np.float32, what=what),
            Mapping(rows_max, np.uint32, what=what),
            Mapping(rows_max, np.int64, what=what),
            Mapping(-(-rows_max // 64), np.uint64, what=what),
        )
        self.rows: Floats = self._mappings[0].array
        self.epochs: Epochs = self._mappings[1].array
        self.free_rows: RowIds = self._mappings[2].array
        self.marks: Words = self._mappings[3].array
        self.stride = stride
