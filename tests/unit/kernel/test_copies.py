"""Whole rows out of memory, and which of them a cut wants."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pserver.kernel import copies
from pserver.table.values import read_only


@given(st.data(), st.integers(1, 40), st.integers(0, 200))
def test_take_rows_copies_what_numpy_would(data: st.DataObject, width: int, count: int) -> None:
    """Any items of any rows, in any order and as often as they are named."""
    begin = data.draw(st.integers(0, width))
    end = data.draw(st.integers(begin, width))
    memory = np.arange(50 * width, dtype=np.float32)
    row_ids = np.array(
        data.draw(st.lists(st.integers(0, 49), min_size=count, max_size=count)), np.int64
    )
    out = np.empty(count * (end - begin), np.float32)

    copies.take_rows(memory, width, read_only(row_ids), begin, end, out)

    expected = memory.reshape(50, width)[row_ids, begin:end]
    assert np.array_equal(out, expected.reshape(-1))


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=100),
    st.integers(0, 6),
    st.integers(0, 6),
    st.randoms(use_true_random=False),
)
def test_find_old_finds_what_changed_between_two_saves(
    all_epochs: list[int], since: int, cut: int, shuffled: random.Random
) -> None:
    """After the one, and not after the other; positions and epochs in the order of the row ids."""
    epochs = np.array(all_epochs, np.uint32)
    ids = list(range(epochs.size))
    shuffled.shuffle(ids)
    row_ids = np.array(ids, np.int64)
    picked, old = np.empty(row_ids.size, np.int64), np.empty(row_ids.size, np.uint32)

    count = copies.find_old(epochs, row_ids, np.uint32(since), np.uint32(cut), picked, old)

    expected = [i for i, row_id in enumerate(ids) if since < all_epochs[row_id] <= cut]
    assert picked[:count].tolist() == expected
    assert old[:count].tolist() == [all_epochs[ids[i]] for i in expected]
