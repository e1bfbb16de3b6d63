"""What ``table.slab`` promises: memory that is taken when touched and can be given back."""

import mmap

import numpy as np
import psutil
import pytest

from pserver.errors import ConfigError
from pserver.table.slab import Mapping, Slab


def test_no_memory_is_taken_when_address_space_is_reserved() -> None:
    """A mapping of 64 GiB costs nothing until it is touched, and reads as zero."""
    before = psutil.Process().memory_info().rss

    mapping = Mapping(1 << 33, np.uint64, what="x")

    assert mapping.array.size == 1 << 33
    assert mapping.array[-1] == 0
    assert psutil.Process().memory_info().rss - before < 64 << 20


def test_pages_read_as_zero_when_they_were_given_back() -> None:
    """Whole pages inside the range go; what is only partly inside stays."""
    per_page = mmap.PAGESIZE // 8
    mapping = Mapping(8 * per_page, np.uint64, what="x")
    mapping.array[:] = 7

    mapping.give_back(per_page - 1, 3 * per_page + 2)

    assert (mapping.array[:per_page] == 7).all()
    assert not mapping.array[per_page : 4 * per_page].any()
    assert (mapping.array[4 * per_page :] == 7).all()


def test_nothing_goes_when_the_range_holds_no_whole_page() -> None:
    """A range of less than a page gives nothing back."""
    mapping = Mapping(1024, np.uint64, what="x")
    mapping.array[:] = 7

    mapping.give_back(1, 510)

    assert (mapping.array == 7).all()


@pytest.mark.parametrize("count", [1 << 60, 1 << 62])
def test_the_table_is_refused_when_the_system_has_no_such_address_space(count: int) -> None:
    """The error names the table and says what to change."""
    with pytest.raises(ConfigError, match=r"table 'ads': could not reserve .* GiB .*capacity_max"):
        Mapping(count, np.uint64, what="table 'ads'")


def test_the_arrays_of_a_slab_fit_its_rows_when_their_number_is_odd() -> None:
    """Rows, epochs, free list and marks have room for each of 65 rows."""
    slab = Slab(65, 5, table="t")

    assert slab.rows.size == 65 * 5
    assert slab.epochs.size == slab.free_rows.size == 65
    assert slab.marks.size == 2
    assert slab.rows.ctypes.data % mmap.PAGESIZE == 0
