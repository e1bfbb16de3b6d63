"""What ``trainer.dataset.batch`` promises: a batch whose lengths agree, or a clear refusal."""

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.dataset.batch import Batch
from trainer.errors import DataError


def fields(**changes: Any) -> dict[str, Any]:
    """Return fields of a good batch of 4 samples and 3 slots, some of them changed."""
    good = {
        "keys": np.arange(12, dtype=np.uint64),
        "offsets": None,
        "num_slots": 3,
        "dense": np.zeros((4, 2), np.float32),
        "labels": np.zeros(4, np.float32),
        "teacher": None,
        "position": 4,
    }
    return good | changes


def test_a_batch_keeps_what_it_got() -> None:
    """A batch holds the very arrays it was made of, and knows its number of samples."""
    good = fields(teacher=np.zeros(4, np.float32))

    batch = Batch(**good)

    assert all(getattr(batch, name) is value for name, value in good.items())
    assert batch.num_samples == 4
    with pytest.raises(FrozenInstanceError):
        batch.position = 5  # type: ignore[misc]  # what is tested


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": np.zeros(11, np.uint64)}, r"keys must be \(12,\) uint64 .*, got \(11,\)"),
        ({"keys": np.zeros(13, np.uint64)}, r"keys must be \(12,\) uint64 .*, got \(13,\)"),
        ({"keys": np.zeros(12, np.int64)}, r"keys must be .*, got \(12,\) int64"),
        ({"keys": np.zeros(12, np.float32)}, r"keys must be .*, got \(12,\) float32"),
        ({"keys": np.zeros((4, 3), np.uint64)}, r"keys must be \(12,\) .*, got \(4, 3\)"),
        ({"keys": np.zeros(24, np.uint64)[::2]}, r"keys must be .*, got .* not contiguous"),
        ({"dense": np.zeros((3, 2), np.float32)}, r"dense must be \(4, any\) .*, got \(3, 2\)"),
        ({"dense": np.zeros(4, np.float32)}, r"dense must be \(4, any\)"),
        ({"dense": np.zeros((4, 2))}, r"dense must be .* float32 .*, got \(4, 2\) float64"),
        ({"labels": np.zeros((4, 1), np.float32)}, r"labels must be \(any,\) float32"),
        ({"labels": np.zeros(4, np.int64)}, r"labels must be .*, got \(4,\) int64"),
        ({"teacher": np.zeros(3, np.float32)}, r"teacher must be \(4,\) .*, got \(3,\)"),
        ({"num_slots": 0}, r"num_slots must be at least 1"),
        ({"position": -1}, r"position at least 0, got .* position -1"),
    ],
)
def test_a_field_that_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    """The error names the field, what it must be and what came."""
    with pytest.raises(DataError, match=message):
        Batch(**fields(**changes))


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        (np.zeros(11, np.int64), r"offsets must be \(12,\) int64 .*, got \(11,\)"),
        (np.zeros(12, np.int32), r"offsets must be \(12,\) int64 .*, got \(12,\) int32"),
        (np.arange(1, 13), r"offsets must begin with 0, got 1"),
        (np.array([0, 1, 2, 3, 4, 5, 9, 8, 9, 9, 9, 9]), r"sample 2 slot 0 from 9 to 8"),
        (
            np.array([0] * 11 + [8]),
            r"not fall nor pass the 7 keys, got sample 3 slot 2 from 8 to 7",
        ),
    ],
)
def test_offsets_that_do_not_cut_the_keys_into_bags_are_refused(
    offsets: np.ndarray, message: str
) -> None:
    """The error names the first bag that is wrong by sample and slot, and nothing shifts."""
    with pytest.raises(DataError, match=message):
        Batch(**fields(keys=np.zeros(7, np.uint64), offsets=offsets))


@given(st.lists(st.integers(0, 3), min_size=12, max_size=12))
def test_bags_of_any_lengths_are_accepted(lengths: list[int]) -> None:
    """Offsets from any lengths fit, with empty bags at the start, inside and at the end."""
    offsets = np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64)

    batch = Batch(**fields(keys=np.zeros(sum(lengths), np.uint64), offsets=offsets))

    assert batch.offsets is offsets


def test_a_batch_of_no_samples_is_legal() -> None:
    """Zero samples need zero keys, with and without offsets."""
    none = fields(
        keys=np.empty(0, np.uint64),
        dense=np.empty((0, 2), np.float32),
        labels=np.empty(0, np.float32),
    )

    assert Batch(**none).num_samples == 0
    assert Batch(**none | {"offsets": np.empty(0, np.int64)}).num_samples == 0
    with pytest.raises(
        DataError, match=r"keys must be \(0,\) in a batch of no samples, got \(2,\)"
    ):
        Batch(**none | {"offsets": np.empty(0, np.int64), "keys": np.zeros(2, np.uint64)})
