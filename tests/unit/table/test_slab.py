"""What ``table.slab`` promises: the arrays of a table's rows."""

import mmap

from pserver.table.optimizer import make_optimizer
from pserver.table.slab import Slab
from pserver.table.storage import MEMORY_ONLY


def test_the_arrays_of_a_slab_fit_its_rows_when_their_number_is_odd() -> None:
    """Rows, epochs, free list and marks have room for each of 65 rows."""
    rule = make_optimizer("adagrad:state=row", dim=4)

    slab = Slab(65, rule, table="t", kind="memory", storage=MEMORY_ONLY)

    assert slab.rows.size == 65 * 5
    assert slab.epochs.size == slab.free_rows.size == 65
    assert slab.marks.size == 2
    assert slab.rows.ctypes.data % mmap.PAGESIZE == 0
    assert slab.row_bytes == 4 * 5 + 4
