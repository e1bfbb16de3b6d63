"""What ``table.slab`` promises: the arrays of a table's rows, of each kind."""

import mmap
from pathlib import Path

import pytest

from pserver.spec import TableSpec
from pserver.table.initializer import make_initializer
from pserver.table.optimizer import make_optimizer
from pserver.table.slab import FloatSlab, Slab
from pserver.table.slab_half import make_slab
from pserver.table.storage import Storage


def slab_of(optimizer: str, *, row_dtype: str = "float32", folder: Path | None = None) -> Slab:
    kind = "memory" if folder is None else "file"
    spec = TableSpec(name="t", dim=4, capacity_max=65, row_dtype=row_dtype, storage=kind)
    rule = make_initializer("zeros", table="t", seed=0)
    return make_slab(spec, make_optimizer(optimizer, dim=4), rule, storage=Storage(folder))


def test_the_arrays_of_a_slab_fit_its_rows_when_their_number_is_odd() -> None:
    """Rows, epochs, free list and marks have room for each of 65 rows."""
    slab = slab_of("adagrad:state=row")

    assert isinstance(slab, FloatSlab)
    assert slab.rows.size == 65 * 5
    assert slab.epochs.size == slab.free_rows.size == 65
    assert slab.marks.size == 2
    assert slab.rows.ctypes.data % mmap.PAGESIZE == 0


@pytest.mark.parametrize(
    ("row_dtype", "optimizer", "in_row"),
    [
        ("float32", "sgd", 16),
        ("float32", "adagrad:state=row", 20),
        ("bfloat16", "sgd", 8),
        ("bfloat16", "adam", 8 + 36),
        ("float16", "adagrad:state=row", 12),
    ],
)
def test_bytes_of_a_row_are_those_of_its_parts(
    tmp_path: Path, row_dtype: str, optimizer: str, in_row: int
) -> None:
    """Weights of 2 or 4 bytes, state of 4, and an epoch, which is in memory even for a file."""
    memory = slab_of(optimizer, row_dtype=row_dtype)
    file = slab_of(optimizer, row_dtype=row_dtype, folder=tmp_path)

    assert (memory.row_bytes, memory.file_row_bytes) == (in_row + 4, 0)
    assert (file.row_bytes, file.file_row_bytes) == (in_row + 4, in_row)
    assert sum(array.nbytes for array, _ in memory.blocks()) == 65 * in_row
