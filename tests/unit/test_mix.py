"""What ``mix`` promises: the published finalizer, a bijection, and a prefetch that is harmless."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from pserver import mix
from tests import reference
from tests.reference import EDGE_KEYS, GOLDEN, MASK

keys_strategy = st.integers(0, MASK) | st.sampled_from(EDGE_KEYS)


@njit(nogil=True)
def hashes(keys: np.ndarray, out: np.ndarray) -> None:
    for i in range(keys.size):
        out[i] = mix.mix64(keys[i])


@njit(nogil=True)
def touch(array: np.ndarray, index: int) -> None:
    mix.prefetch(array, index)
    mix.prefetch_far(array, index)


@given(st.lists(keys_strategy))
def test_the_hash_is_the_published_one_when_compiled(keys: list[int]) -> None:
    """A kernel computes what Python's own integers give."""
    out = np.empty(len(keys), np.uint64)

    hashes(np.array(keys, np.uint64), out)

    assert out.tolist() == [reference.mix64(key) for key in keys]


def test_the_stream_is_splitmix64s_when_seeded_as_others_print_it() -> None:
    """The first outputs of SplitMix64 from seed 1234567 are those that are published."""
    seeds = np.array([(1234567 + i * GOLDEN) & MASK for i in range(1, 4)], np.uint64)
    out = np.empty(3, np.uint64)

    hashes(seeds, out)

    assert out.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert int(mix.GOLDEN) == GOLDEN


@given(keys_strategy)
def test_every_key_comes_back_when_the_hash_is_undone(key: int) -> None:
    """The hash is a bijection: distinct keys keep distinct hashes."""
    assert reference.unmix64(reference.mix64(key)) == key
    assert reference.mix64(reference.unmix64(key)) == key


def test_prefetch_changes_nothing_when_the_index_is_anywhere() -> None:
    """Far outside the array it neither faults nor writes."""
    array = np.arange(4, dtype=np.float32)

    for index in (0, 3, 4, -1, 2**40, -(2**40)):
        touch(array, index)

    assert array.tolist() == [0, 1, 2, 3]


def test_prefetch_does_nothing_when_called_from_python() -> None:
    """Kernels run as plain Python too."""
    mix.prefetch(np.zeros(1), 5)
    mix.prefetch_far(np.zeros(1), 5)
