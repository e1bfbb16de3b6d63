"""The words of rows: one record a row, read by name."""

import numpy as np
import pytest

from pserver.errors import ConfigError
from pserver.table.fields import Field, Fields

SHOW, AGE = Field("show", "float32", 0.5), Field("age", "uint32", 7)


def test_new_rows_have_first_values_when_their_memory_was_used_before() -> None:
    """Begin writes every word of the named rows and of no others."""
    fields = Fields(10, (SHOW, AGE), table="t")
    fields.view("show")[:] = 3.0
    fields.view("age")[:] = 9

    fields.begin(np.array([2, 5]))

    assert fields.view("show")[:6].tolist() == [3.0, 3.0, 0.5, 3.0, 3.0, 0.5]
    assert fields.view("age")[:6].tolist() == [9, 9, 7, 9, 9, 7]


def test_words_of_a_row_are_side_by_side() -> None:
    """A kernel finds the words of row r at r * stride, in the order of their names."""
    fields = Fields(4, (SHOW, AGE), table="t")
    fields.view("show")[2] = 1.25
    fields.view("age")[2] = 4000000000

    assert fields.stride == 2
    assert fields.row_bytes == 8
    assert fields.floats[2 * 2 + fields.position("show")] == np.float32(1.25)
    assert fields.words[2 * 2 + fields.position("age")] == 4000000000
    assert fields.row(2) == {"show": 1.25, "age": 4000000000}


def test_no_words_take_no_memory() -> None:
    """Without fields there is no record, and beginning one does nothing."""
    fields = Fields(10, (), table="t")

    fields.begin(np.array([1, 2]))

    assert fields.row_bytes == 0
    assert fields.row(3) == {}
    assert fields.words.size == 0


def test_names_are_unique_and_memory_is_named_when_refused() -> None:
    """A word named twice is our mistake; memory that is not there is the world's."""
    with pytest.raises(AssertionError, match="named twice"):
        Fields(1, (SHOW, SHOW), table="t")
    with pytest.raises(ConfigError, match="table 't'"):
        Fields(2**60, (SHOW,), table="t")
