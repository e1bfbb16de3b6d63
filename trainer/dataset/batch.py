"""One batch of samples, as every reader hands it to the loop.

Rooms before and after: ``reader`` and ``generator`` make it; ``loop`` passes it to ``embedding``,
which pulls the rows of its keys, and to the model, which takes the dense features and labels.

What always holds:
    * Lengths agree with each other, so no value shifts from one slot to another in silence.
    * Keys stand sample by sample, and in a sample slot by slot: occurrence (sample b, slot f)
      is bag b * F + f.
    * Arrays are contiguous and of the dtypes below; a batch of no samples is legal.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainer.dataset.keys import Keys
from trainer.errors import DataError

Floats: TypeAlias = NDArray[np.float32]
"""float32 features, labels, probabilities."""

Offsets: TypeAlias = NDArray[np.int64]
"""int64 positions in ``keys``."""


@dataclass(frozen=True, slots=True)
class Batch:
    """B samples of F slots. Immutable; the arrays are the batch's and must not be written.

    Attributes:
        keys: (N,) uint64, slot mixed in, sample-major.
        offsets: (B * F,) int64, where each bag begins in ``keys``; bag i ends where bag i + 1 begins,
            the last at N. None: each bag has exactly one key, so N = B * F.
        num_slots: F, at least 1.
        dense: (B, num_dense) float32.
        labels: (B,) float32.
        teacher: (B,) float32 true click probabilities, when the data is generated.
        position: rows of the data set read up to the end of this batch; reading with
            ``skip_rows=position`` goes on after it.
        weights: (N,) float32 that each occurrence counts in its bag; None: 1 each.

    Raises:
        DataError: a field does not fit; the message names it, what it must be and what came.
    """

    keys: Keys
    offsets: Offsets | None
    num_slots: int
    dense: Floats
    labels: Floats
    teacher: Floats | None
    position: int
    weights: Floats | None = None

    def __post_init__(self) -> None:
        """Check every field against the labels, which say B."""
        if self.num_slots < 1 or self.position < 0:
            raise DataError(
                "batch: num_slots must be at least 1 and position at least 0, "
                f"got num_slots {self.num_slots}, position {self.position}"
            )
        _require("labels", self.labels, (None,), np.float32)
        samples = self.labels.shape[0]
        _require("dense", self.dense, (samples, None), np.float32)
        if self.teacher is not None:
            _require("teacher", self.teacher, (samples,), np.float32)
        if self.offsets is None:
            _require("keys", self.keys, (samples * self.num_slots,), np.uint64)
        else:
            _require("keys", self.keys, (None,), np.uint64)
            _require("offsets", self.offsets, (samples * self.num_slots,), np.int64)
            _require_ascending(self.offsets, self.num_slots, self.keys.shape[0])
        if self.weights is not None:
            _require("weights", self.weights, self.keys.shape, np.float32)

    @property
    def num_samples(self) -> int:
        """B, the number of samples."""
        return len(self.labels)


def _require(name: str, array: NDArray[Any], shape: tuple[int | None, ...], dtype: type) -> None:
    """Refuse a field of another dtype or shape (None: any length), or of strided memory."""
    fits = array.ndim == len(shape) and all(
        expected is None or expected == got
        for expected, got in zip(shape, array.shape, strict=True)
    )
    if fits and array.dtype == dtype and array.flags.c_contiguous:
        return
    expected_text = ", ".join("any" if length is None else str(length) for length in shape)
    comma = "," if len(shape) == 1 else ""
    layout = "" if array.flags.c_contiguous else " not contiguous"
    raise DataError(
        f"batch: {name} must be ({expected_text}{comma}) {np.dtype(dtype)} contiguous, "
        f"got {array.shape} {array.dtype}{layout}"
    )


def _require_ascending(offsets: Offsets, num_slots: int, num_keys: int) -> None:
    """Refuse offsets that do not cut [0, num_keys) into bags; name the first bad bag."""
    if offsets.size == 0:
        if num_keys:
            raise DataError(f"batch: keys must be (0,) in a batch of no samples, got ({num_keys},)")
        return
    if offsets[0] != 0:
        raise DataError(f"batch: offsets must begin with 0, got {offsets[0]}")
    lengths = np.diff(offsets, append=num_keys)
    if lengths.min() >= 0:
        return
    bag = int(np.argmax(lengths < 0))
    end = int(offsets[bag]) + int(lengths[bag])
    raise DataError(
        f"batch: offsets must not fall nor pass the {num_keys} keys, got sample "
        f"{bag // num_slots} slot {bag % num_slots} from {offsets[bag]} to {end}"
    )
