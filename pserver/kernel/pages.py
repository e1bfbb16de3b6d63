"""Rows that may lie on a disk: all of a request's are asked for at once, before the first is touched.

Rooms before and after: ``table.storage`` calls this when requests had to wait for a disk. Touching rows
one after the other would wait for one read after the other; asked for together they are read side by
side, as many at once as the disk takes.

What always holds: nothing changes but what the system keeps in memory; no Python object is touched.

Cost: a system call a row, about a microsecond where the row is in memory already.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from pserver.arrays import RowIds

PAGE_BYTES = 4096
"""Of every Linux that we run on; where pages are larger, a page is asked for by each of its parts."""

_WILLNEED = 3  # MADV_WILLNEED of Linux on every processor


def _will_need(address: int, num_bytes: int) -> None:
    """Ask the system to read the pages of a file mapping soon; does not wait.

    ``address`` begins a page. In plain Python this does nothing at all.
    """


def _emit_will_need(_typing_context: Any, address: Any, num_bytes: Any) -> Any:
    """Return the signature of the call of ``madvise``, and what emits it."""
    signature = types.void(types.intp, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        int32, word = ir.IntType(32), context.get_value_type(types.intp)
        function_type = ir.FunctionType(int32, [word, word, int32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "madvise")
        builder.call(function, [*args, int32(_WILLNEED)])  # a refusal is no harm: it is a hint
        return context.get_dummy_value()

    return signature, codegen


_call: Any = intrinsic(_emit_will_need)


@overload(_will_need)
def _compiled_will_need(address: Any, num_bytes: Any) -> Any:
    """Let kernels that call ``_will_need`` have the system call."""

    def compiled(address: Any, num_bytes: Any) -> Any:
        return _call(address, num_bytes)

    return compiled


@njit(nogil=True, cache=True, error_model="numpy")
def ask(
    memory: NDArray[Any],  # (C * width,) a file mapping, which begins a page
    width: int,  # items a row
    row_ids: RowIds,  # (U,) in [-1, C)
) -> None:
    """Ask the system for the pages of the named rows."""
    address = np.int64(memory.ctypes.data)
    row_bytes = width * memory.itemsize
    for i in range(row_ids.size):
        if row_ids[i] < 0:
            continue
        start = row_ids[i] * row_bytes
        first = start // PAGE_BYTES * PAGE_BYTES
        _will_need(address + first, start + row_bytes - first)
