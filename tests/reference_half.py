"""The oracle of 16-bit floats: every value that there is, in a sorted list. Imported by tests only."""

import numpy as np
from numpy.typing import NDArray

DTYPES = ("bfloat16", "float16")


def value_of(dtype: str, bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return what 16 bits stand for: numpy's float16, or the upper half of a float32."""
    if dtype == "float16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _positive(dtype: str) -> NDArray[np.float64]:
    values = value_of(dtype, np.arange(2**15, dtype=np.uint16))
    return np.sort(values[np.isfinite(values)].astype(np.float64))


POSITIVE = {dtype: _positive(dtype) for dtype in DTYPES}
"""Every finite value from 0 up; value number i has the bits i."""

LARGEST = {dtype: float(values[-1]) for dtype, values in POSITIVE.items()}


def neighbours(dtype: str, value: float) -> tuple[float, float]:
    """Return the values around a number, the smaller magnitude first; both are it if it is one."""
    values, size = POSITIVE[dtype], min(abs(value), LARGEST[dtype])
    place = int(np.searchsorted(values, size))
    low = place if values[place] == size else place - 1
    sign = -1.0 if np.signbit(value) else 1.0
    return sign * float(values[low]), sign * float(values[place])


def nearest(dtype: str, value: float) -> float:
    """Return the nearest value; in the middle the one with even bits; beyond the largest, that."""
    low, high = neighbours(dtype, value)
    size = min(abs(value), LARGEST[dtype])
    below, above = size - abs(low), abs(high) - size
    if below == above:
        return low if int(np.searchsorted(POSITIVE[dtype], abs(low))) % 2 == 0 else high
    return low if below < above else high
