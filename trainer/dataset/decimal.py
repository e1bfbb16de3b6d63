"""Decimal numbers of a text as float32, exactly as ``np.float32(float(text))`` has them.

Rooms before and after: ``libsvm`` reads labels and values with it, inside its kernel.

A number is ``-12``, ``+0.5``, ``.5``, ``3.`` or ``1e-3``; no blanks, names or underscores.

What always holds: a result is exact, or the kernel says that it is not sure. With up to 19 digits and a power
of ten up to 10^22, which is exact in a double, two roundings lie between the text and the double, which is
then within two units of the last place. If both ends of that range round to one float32, that one is right;
else, once in about 2^27 numbers, and with more digits or powers, ``float`` of the text must tell.
"""

import re
from typing import Final, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]

NUMBER: Final = re.compile(
    r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?", re.ASCII
)
"""What ``read_decimal`` takes for a number."""

FAULT: Final = -1
UNSURE: Final = -2
EXACT: Final = 0

_POWERS = 10.0 ** np.arange(23)
_POWER_MAX = 22
_DIGITS_MAX = 19
_SLACK = 4.0 * 2.0**-53


@njit(nogil=True, cache=True, error_model="numpy")
def read_decimal(  # noqa: C901 - one pass over the bytes
    data: Bytes, begin: int, end: int
) -> tuple[np.float32, int]:
    """Return the number in ``data[begin:end]``, and EXACT, UNSURE or FAULT.

    >>> read_decimal(np.frombuffer(b"-0.5", np.uint8), 0, 4)
    (-0.5, 0)
    """
    position = begin
    is_negative = False
    if position < end and (data[position] == 43 or data[position] == 45):
        is_negative = data[position] == 45
        position += 1
    mantissa = np.uint64(0)
    digits, seen, power = 0, 0, 0  # significant digits, digits at all, and those after the point
    is_after_point = False
    while position < end:
        byte = data[position]
        if byte >= 48 and byte <= 57:
            seen += 1
            digits += int(mantissa > 0 or byte > 48)
            if digits <= _DIGITS_MAX:
                mantissa = mantissa * np.uint64(10) + np.uint64(byte - 48)
            power -= int(is_after_point)
        elif byte == 46 and not is_after_point:
            is_after_point = True
        else:
            break
        position += 1
    if seen == 0:
        return np.float32(0.0), FAULT
    if position < end:
        exponent, is_good = _exponent(data, position, end)
        if not is_good:
            return np.float32(0.0), FAULT
        power += exponent
    if mantissa == 0:
        return np.float32(-0.0 if is_negative else 0.0), EXACT
    if digits > _DIGITS_MAX or abs(power) > _POWER_MAX:
        return np.float32(0.0), UNSURE
    value = np.float64(mantissa)
    value = value * _POWERS[power] if power >= 0 else value / _POWERS[-power]
    low, high = np.float32(value * (1.0 - _SLACK)), np.float32(value * (1.0 + _SLACK))
    if low != high:
        near = np.float32(value)
        is_exact = mantissa < np.uint64(1 << 53)  # then there was one rounding, to the true double
        return -near if is_negative else near, EXACT if is_exact else UNSURE
    return -low if is_negative else low, EXACT


@njit(nogil=True, cache=True, error_model="numpy")
def _exponent(data: Bytes, begin: int, end: int) -> tuple[int, bool]:
    """Return the number after an e, and whether there is one of at most six digits."""
    if data[begin] != 69 and data[begin] != 101:
        return 0, False
    position = begin + 1
    is_negative = False
    if position < end and (data[position] == 43 or data[position] == 45):
        is_negative = data[position] == 45
        position += 1
    if position == end or end - position > 6:
        return 0, False
    exponent = 0
    for i in range(position, end):
        if data[i] < 48 or data[i] > 57:
            return 0, False
        exponent = exponent * 10 + int(data[i] - 48)
    return -exponent if is_negative else exponent, True
