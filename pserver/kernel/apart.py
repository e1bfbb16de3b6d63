"""Reads and writes of the parts of a row that promise the compiler that the parts lie apart.

Rooms before and after: kernels that move three or more parts of a row in one loop use them, such as
``optim_adam``; the others index arrays as they are.

Without the promise each row begins with a test, for each pair of the parts, that they do not overlap: a
quarter of adam's instructions at dim 16, and with them the loads of the rows that follow come too late.

What always holds: what is read and written is what plain indexing would; nothing is checked, so an index
is in range and not negative. The promise holds for a whole kernel: no two accesses with different parts
touch one float, of any two rows. Rows of one stride, and a gradient that is no view of the slab, keep it.
"""

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

GRADS, WEIGHTS, FIRST, SECOND, LARGEST = range(5)
"""The parts: gradients of the push; weights of a row; its moments."""

_NUM_PARTS = 5


def read(array: NDArray[Any], index: Any, part: int) -> Any:
    """Return ``array[index]`` (1-D), which is of ``part``."""
    del part
    return array[index]


def write(array: NDArray[Any], index: Any, part: int, value: Any) -> None:
    """Write ``array[index] = value`` (1-D), which is of ``part``."""
    del part
    array[index] = value


def _promise(builder: Any, access: Any, part: int) -> None:
    """Say of a load or a store that it touches one part and none of the others.

    Source:
        LLVM Language Reference, "noalias" and "alias.scope" metadata.
    """
    module = builder.module
    domain = module.add_metadata(["pserver: parts of rows"])
    scopes = [module.add_metadata([f"pserver: part {i}", domain]) for i in range(_NUM_PARTS)]
    others = [scope for i, scope in enumerate(scopes) if i != part]
    access.set_metadata("alias.scope", module.add_metadata([scopes[part]]))
    access.set_metadata("noalias", module.add_metadata(others))


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """Return the address of ``array[index]``."""
    struct = context.make_array(array_type)(context, builder, array)
    return cgutils.gep_inbounds(builder, struct.data, index)


def _emit_read(_typing_context: Any, array: Any, index: Any, part: Any) -> Any:
    """Return the signature of a read, and what emits it."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        position = context.cast(builder, args[1], sig.args[1], types.intp)
        value = builder.load(_pointer(context, builder, sig.args[0], args[0], position))
        _promise(builder, value, part.literal_value)
        return value

    return array.dtype(array, index, part), codegen


def _emit_write(_typing_context: Any, array: Any, index: Any, part: Any, value: Any) -> Any:
    """Return the signature of a write, and what emits it."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        position = context.cast(builder, args[1], sig.args[1], types.intp)
        stored = context.cast(builder, args[3], sig.args[3], sig.args[0].dtype)
        target = _pointer(context, builder, sig.args[0], args[0], position)
        _promise(builder, builder.store(stored, target), part.literal_value)
        return context.get_dummy_value()

    return types.void(array, index, part, value), codegen


_read: Any = intrinsic(prefer_literal=True)(_emit_read)
_write: Any = intrinsic(prefer_literal=True)(_emit_write)


@overload(read, prefer_literal=True)
def _compiled_read(array: Any, index: Any, part: Any) -> Any:
    """Let kernels that call ``read`` have the load."""

    def compiled(array: Any, index: Any, part: Any) -> Any:
        return _read(array, index, part)

    return compiled


@overload(write, prefer_literal=True)
def _compiled_write(array: Any, index: Any, part: Any, value: Any) -> Any:
    """Let kernels that call ``write`` have the store."""

    def compiled(array: Any, index: Any, part: Any, value: Any) -> Any:
        return _write(array, index, part, value)

    return compiled
