"""What ``pserver.client.inputs`` promises: exact or refused, and never another reading of bits."""

import re
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.client.inputs import as_block, as_counts, as_keys
from pserver.errors import ShapeError

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
EXACT_BELOW = {"float16": 2**11, "float32": 2**24, "float64": 2**53}


def keys_of(values: Any) -> list[int]:
    """Return the keys as Python's integers, after a look at their form."""
    keys = as_keys(values, where="pull 'ads'")
    assert keys.dtype == np.uint64
    assert keys.ndim == 1
    assert keys.flags.c_contiguous
    return [int(key) for key in keys]


def refused(values: Any) -> str:
    """Return why keys are refused."""
    with pytest.raises(ShapeError) as caught:
        as_keys(values, where="pull 'ads'")
    message = str(caught.value)
    assert message.startswith("pull 'ads': ")
    return message


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_keep_their_value_modulo_2_to_64(dtype: str, order: Literal["<", ">"]) -> None:
    """Every integer width and byte order gives the value; a negative one that plus 2^64."""
    info = np.iinfo(dtype)
    values = [int(info.min), 0, 1, int(info.max)]

    array = np.array(values, np.dtype(dtype).newbyteorder(order))

    assert keys_of(array) == [value % 2**64 for value in values]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_signed_keys_are_taken_bit_for_bit(values: list[int]) -> None:
    """An int64 key and the uint64 with the same bits are one key."""
    assert keys_of(np.array(values, np.int64)) == [value % 2**64 for value in values]


@pytest.mark.parametrize("dtype", EXACT_BELOW)
def test_floats_are_taken_when_they_are_whole_and_exact(dtype: str) -> None:
    """Whole floats below the first that the type rounds are taken by value."""
    top = EXACT_BELOW[dtype] - 1

    assert keys_of(np.array([0.0, -0.0, 5.0, -1.0, top, -top], dtype)) == [
        value % 2**64 for value in (0, 0, 5, -1, top, -top)
    ]


@pytest.mark.parametrize("dtype", EXACT_BELOW)
def test_floats_are_refused_when_they_may_have_been_rounded(dtype: str) -> None:
    """The float that 2^53 and 2^53 + 1 share is refused, since two keys would become one."""
    limit = EXACT_BELOW[dtype]

    for value in (limit, -limit, limit * 4):
        message = refused(np.array([1, value], dtype))
        assert dtype in message
        assert f"under {limit}" in message
        assert re.search(r"value 1 is -?\d", message)


@pytest.mark.parametrize("bad", [0.5, -1.25, float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", EXACT_BELOW)
def test_floats_are_refused_when_they_are_not_whole(dtype: str, bad: float) -> None:
    """A fraction, NaN or infinity is refused with dtype, position and value of the first one."""
    message = refused(np.array([[3.0, 4.0], [bad, 7.5]], dtype))

    assert dtype in message
    assert f"value 2 is {np.dtype(dtype).type(bad)}" in message


def test_float_bits_are_never_read_as_keys() -> None:
    """Pairs of float32 that fill eight bytes are values or an error, never one int64."""
    pairs = np.array([-1.0, -1.0, 749.0, 1.0], np.float32)

    assert keys_of(pairs) == [2**64 - 1, 2**64 - 1, 749, 1]
    assert "-4647714812233515008" not in refused(np.array([-1.0, 749.25], np.float32))


@pytest.mark.parametrize(
    ("values", "dtype", "first"),
    [
        (np.array([True, False]), "bool", "True"),
        (["a", "b"], "<U1", "'a'"),
        ([b"ab"], "|S2", "b'ab'"),
        ([None, 1], "object", "None"),
        ([2**64], "object", "18446744073709551616"),
        (np.array([1 + 2j]), "complex128", "(1+2j)"),
        (np.array(["2026-01-31"], "datetime64[D]"), "datetime64[D]", "2026-01-31"),
        (np.array([1.0], np.longdouble), np.dtype(np.longdouble).name, "1.0"),
    ],
)
def test_other_kinds_are_refused_with_dtype_and_first_value(
    values: Any, dtype: str, first: str
) -> None:
    """Bool, text, objects and the like are no keys; the message shows what came."""
    message = refused(values)

    assert dtype in message
    assert first in message


def test_bool_is_refused_when_it_is_empty() -> None:
    """An empty bool array is refused as a full one is: the column is the wrong one."""
    assert "bool" in refused(np.empty(0, bool))


@pytest.mark.parametrize("values", [[], (), np.empty(0, np.float32), np.empty((0, 3), np.int64)])
def test_nothing_gives_no_keys(values: Any) -> None:
    """An empty batch of whatever shape is no keys."""
    assert keys_of(values) == []


def test_strided_and_deep_arrays_are_flattened_in_order() -> None:
    """Strides, negative strides, Fortran order and more dimensions give the values, row by row."""
    block = np.arange(24, dtype=np.int32).reshape(4, 6)

    for array in (block[:, ::2], block[::-1], block.T, np.asfortranarray(block), block[1:1]):
        assert keys_of(array) == array.reshape(-1).tolist()
        assert keys_of(array.astype(np.float64)[...]) == array.reshape(-1).tolist()
    assert keys_of(7) == [7]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "uint8"])
def test_block_is_float32_by_value(dtype: str) -> None:
    """Gradients of any number type become the float32 of the same value, rows in order."""
    block = np.arange(12, dtype=dtype).reshape(4, 3)[::-1]

    flat = as_block(block, num_keys=4, dim=3, where="push 'ads'", what="grads")

    assert flat.dtype == np.float32
    assert flat.tolist() == block.reshape(-1).tolist()
    assert np.array_equal(as_block(flat, num_keys=4, dim=3, where="push 'ads'", what="grads"), flat)


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((4, 2), np.float32),
        np.zeros((3, 4), np.float32),
        np.zeros((1, 4, 3), np.float32),
        np.zeros(11, np.float32),
        np.zeros((4, 3), bool),
        np.zeros((4, 3), np.complex64),
        np.zeros((4, 3), "<U1"),
    ],
)
def test_block_is_refused_when_it_does_not_fit(bad: Any) -> None:
    """Another shape or kind is refused with what must hold and what came."""
    with pytest.raises(ShapeError) as caught:
        as_block(bad, num_keys=4, dim=3, where="push 'ads'", what="grads")

    assert str(caught.value) == (
        f"push 'ads': grads must be (4, 3) float32, got {bad.shape} {bad.dtype}"
    )


def test_counts_keep_their_value() -> None:
    """Counts of any integer type up to 2^32 - 1 are taken."""
    assert as_counts([0, 1, 2**32 - 1], num_keys=3, where="push").tolist() == [0, 1, 2**32 - 1]
    assert as_counts(np.array([3, 1], np.uint8), num_keys=2, where="push").dtype == np.uint32
    assert as_counts(np.empty(0, np.int64), num_keys=0, where="push").size == 0


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ([1, 2], "must be (3,) integers, got (2,) int64"),
        ([[1, 2, 3]], "got (1, 3) int64"),
        ([1.0, 2.0, 3.0], "got (3,) float64"),
        ([True, True, True], "got (3,) bool"),
        ([1, -2, 3], "must be in [0, 2^32 - 1], got -2"),
        ([1, 2, 2**32], "must be in [0, 2^32 - 1], got 4294967296"),
    ],
)
def test_counts_are_refused_when_they_do_not_fit(bad: Any, what: str) -> None:
    """Another length, no integers, or a count that a uint32 does not hold is refused and shown."""
    with pytest.raises(ShapeError) as caught:
        as_counts(bad, num_keys=3, where="push 'ads'")

    assert str(caught.value).startswith("push 'ads': counts ")
    assert what in str(caught.value)
