"""What ``trainer.dataset.keys`` promises: the rule, exactly, and who is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pserver import GOLDEN, mix64
from trainer.dataset.keys import slot_keys
from trainer.errors import DataError

MASK = (1 << 64) - 1


def slow_key(raw: int, slot: int) -> int:
    """The rule in Python's own integers."""
    x = (raw + (slot + 1) * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


@settings(deadline=None)  # the first example compiles
@given(st.lists(st.integers(0, MASK), min_size=1), st.integers(0, 1 << 20))
def test_keys_follow_the_rule(raw: list[int], slot: int) -> None:
    """A key is mix64(id + (slot + 1) * golden) modulo 2^64, for every id."""
    keys = slot_keys(np.array(raw, np.uint64), np.full(len(raw), slot))

    assert keys.tolist() == [slow_key(value, slot) for value in raw]


def test_mix64_is_the_published_finalizer() -> None:
    """The first outputs of SplitMix64 from seed 1234567 are those that others print."""
    stream = [int(mix64(np.uint64((1234567 + i * int(GOLDEN)) & MASK))) for i in range(1, 4)]

    assert stream == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_signed_ids_are_taken_bit_for_bit() -> None:
    """An int64 id has the key of the uint64 with the same bits."""
    signed = np.array([[-1, -(1 << 63), 5]], np.int64)
    slots = np.arange(3)

    assert np.array_equal(slot_keys(signed, slots), slot_keys(signed.view(np.uint64), slots))


def test_narrow_and_strided_ids_are_converted_exactly() -> None:
    """An int32 or strided array gives the keys of its values."""
    ids = np.arange(40, dtype=np.uint64).reshape(4, 10)
    slots = np.arange(5)

    keys = slot_keys(ids[:, ::2].astype(np.int32), slots)

    assert np.array_equal(keys, slot_keys(np.ascontiguousarray(ids[:, ::2]), slots))
    assert np.array_equal(slot_keys(ids[:, ::2], slots), keys)


def test_ids_below_2_to_53_in_800_slots_cannot_collide() -> None:
    """Multiples of the golden ratio up to 800 are further than 2^53 from 0, modulo 2^64."""
    multiples = [(k * int(GOLDEN)) & MASK for k in range(1, 800)]

    assert min(min(m, MASK + 1 - m) for m in multiples) > 1 << 53


def test_equal_ids_in_two_slots_have_two_keys() -> None:
    """One id gives another key in each of 1000 slots."""
    assert len(set(slot_keys(np.full(1000, 7), np.arange(1000)).tolist())) == 1000


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.bool_])
def test_ids_that_are_no_integers_are_refused(dtype: type) -> None:
    """A float or bool id is refused with its dtype and first value."""
    with pytest.raises(
        DataError, match=rf"ids must be integers, got {np.dtype(dtype)}, first value"
    ):
        slot_keys(np.ones((2, 3), dtype), np.arange(3))


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        (np.arange(4), r"slot_indexes must be \(3,\), one a column of ids, got \(4,\)"),
        (np.zeros((1, 3), np.int64), r"slot_indexes must be \(3,\)"),
        (np.array([0, -1, 2]), r"at least 0, got -1"),
        (np.array([0.0, 1.0, 2.0]), r"slot_indexes must be integers, got float64"),
    ],
)
def test_slots_that_do_not_fit_are_refused(slots: np.ndarray, message: str) -> None:
    """Slots of another number than the ids' columns, negative or not integers are refused."""
    with pytest.raises(DataError, match=message):
        slot_keys(np.ones((2, 3), np.int64), slots)


def test_no_ids_give_no_keys() -> None:
    """An empty array of ids keeps its shape."""
    assert slot_keys(np.empty((0, 3), np.int64), np.arange(3)).shape == (0, 3)
