"""The format of libsvm and libfm: a label, then features as id:value, separated by blanks.

Rooms before and after: ``reader`` calls ``parse_block`` on each block that ``lines`` cut, and, where that
says None, ``find_fault`` on each line to learn which are bad. ``Longest`` is told every byte beforehand.

    * The label is 1 for a click, 0 or -1 for none; +1 and 1.0 are 1 too.
    * An id has at most 20 digits and is below 2^64. All ids are of one space, so slot 0 is mixed into each:
      an id has one row, wherever in a line it stands. One may be repeated.
    * A value is a decimal number, finite as float32. It is the weight of the occurrence: the row counts value
      times in the model's sum, and so does its gradient. With all values 1 nothing is multiplied.

A row has as many slots as the longest row of the files has features, or ``slots`` of them: the feature at
place i of its line fills slot i, and the slots left over are empty and add nothing. So lr and fm see the
sums over all features, and the models with a deep part see fixed fields where lines have them in order.

What always holds: values equal ``np.float32(float(text))`` to the bit; comments and qid are faults.
"""

import re
from typing import Final, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pserver import mix64
from trainer.dataset.batch import Floats, Offsets
from trainer.dataset.decimal import EXACT, FAULT, NUMBER, UNSURE, read_decimal
from trainer.dataset.keys import Keys, slot_terms
from trainer.dataset.rows import Rows, find_unreadable, shown

LINE_BYTES_MAX: Final = 1 << 18
"""About 13,000 features of 20 bytes; a block of a mebibyte still holds four such lines."""

SLOTS_MAX: Final = LINE_BYTES_MAX // 4

Bytes: TypeAlias = NDArray[np.uint8]

_LABEL = re.compile(r"[+-]?[01](?:\.0*)?", re.ASCII)
_TERM = slot_terms(np.zeros(1, np.int64))[0]
_ID_END = 1 << 64


class LibsvmFormat:
    """libsvm's lines, of a number of slots; no header. Immutable."""

    num_dense = 0
    line_bytes_max = LINE_BYTES_MAX

    def __init__(self, *, slots: int) -> None:
        """Say how many features a row may have.

        Args:
            slots: at least 1; a row with more is a bad line.
        """
        self.num_slots = slots

    def is_header(self, _: bytes) -> bool:
        """Return False: these files have none."""
        return False

    def parse_block(self, data: bytes) -> Rows | None:
        """Return the rows of whole lines, or None if any line has a fault; see ``Format``."""
        count = data.count(b"\n")
        size = data.count(b":")
        keys, weights = np.empty(size, np.uint64), np.empty(size, np.float32)
        offsets = np.empty(count * self.num_slots, np.int64)
        labels = np.empty(count, np.float32)
        block = np.frombuffer(data, np.uint8)
        found = _parse(block, self.num_slots, keys, offsets, weights, labels)
        if found == UNSURE:
            return self._parse_slowly(data)
        if found == FAULT:
            return None
        return self._rows(keys, offsets, weights, labels)

    def _parse_slowly(self, data: bytes) -> Rows | None:
        """Return what ``parse_block`` does, by Python's own numbers."""
        lines = data.split(b"\n")[:-1]
        if any(self.find_fault(line) is not None for line in lines):
            return None
        fields = [line.decode().replace("\t", " ").split() for line in lines]
        pairs = [field.split(":") for line in fields for field in line[1:]]
        counts = np.array([len(line) - 1 for line in fields])
        places = np.minimum(np.arange(self.num_slots), counts[:, None])
        begins = np.cumsum(counts) - counts
        ids = np.array([int(number) for number, _ in pairs], np.uint64)
        keys = np.empty(ids.size, np.uint64)
        _mix(ids, keys)
        return self._rows(
            keys,
            (begins[:, None] + places).reshape(-1).astype(np.int64),
            np.array([float(value) for _, value in pairs], np.float32),
            np.array([float(line[0]) == 1.0 for line in fields], np.float32),
        )

    def _rows(self, keys: Keys, offsets: Offsets, weights: Floats, labels: Floats) -> Rows:
        """Return rows, without offsets where every row is full, and without weights of 1."""
        is_full = keys.size == labels.size * self.num_slots
        is_plain = bool(np.all(weights == 1.0))
        return Rows(
            keys=keys,
            offsets=None if is_full else offsets,
            weights=None if is_plain else weights,
            dense=np.empty((labels.size, 0), np.float32),
            labels=labels,
        )

    def find_fault(self, line: bytes) -> str | None:
        """Return what is wrong with one line, or None; see ``Format``."""
        problem = find_unreadable(line, line_bytes_max=LINE_BYTES_MAX)
        if problem is not None:
            return problem
        label, *features = line.decode().replace("\t", " ").split(" ")
        if not _LABEL.fullmatch(label):
            return f"label must be 1, 0 or -1, got {shown(label)}"
        features = [feature for feature in features if feature]
        for place, feature in enumerate(features, 1):
            problem = _feature_fault(feature)
            if problem is not None:
                return f"feature {place} {problem}"
        if len(features) > self.num_slots:
            return (
                f"must have at most {self.num_slots} features, got {len(features)}; give more slots"
            )
        return None


class Longest:
    """How many features the longest line has, told piece by piece. Owner: who tells it."""

    def __init__(self) -> None:
        """Begin with no line."""
        self._state = np.zeros(2, np.int64)

    def look(self, piece: bytes) -> None:
        """Take in the next bytes of a file."""
        _count_colons(np.frombuffer(piece, np.uint8), self._state)

    @property
    def slots(self) -> int:
        """Return the features of the longest line, at least 1."""
        return max(1, int(self._state[1]))


def _feature_fault(feature: str) -> str | None:
    """Return what one feature must be, or None if it is."""
    number, colon, value = feature.partition(":")
    if not colon or not (number.isascii() and number.isdigit() and len(number) <= 20):
        return f"must be id:value with an id of at most 20 digits, got {shown(feature)}"
    if int(number) >= _ID_END:
        return f"must have an id below 2^64, got {shown(feature)}"
    if not NUMBER.fullmatch(value):
        return f"must have a decimal number as its value, got {shown(feature)}"
    with np.errstate(over="ignore"):
        is_finite = bool(np.isfinite(np.float32(float(value))))
    return None if is_finite else f"must have a value that float32 holds, got {shown(feature)}"


@njit(nogil=True, cache=True, error_model="numpy")
def _count_colons(
    data: Bytes,
    state: NDArray[np.int64],  # (2,) colons in the line so far, most in one line; written
) -> None:
    """Count the colons of each line."""
    for i in range(data.size):
        if data[i] == 58:
            state[0] += 1
            state[1] = max(state[0], state[1])
        elif data[i] == 10:
            state[0] = 0


@njit(nogil=True, cache=True, error_model="numpy")
def _mix(ids: Keys, keys: Keys) -> None:
    """Write the key of each id."""
    for i in range(ids.size):
        keys[i] = mix64(ids[i] + _TERM)


@njit(nogil=True, cache=True, error_model="numpy")
def _parse(  # noqa: C901 - one pass over the bytes
    data: Bytes,  # whole lines
    slots: int,
    keys: Keys,  # (N,) written
    offsets: Offsets,  # (n * slots,) written
    weights: Floats,  # (N,) written
    labels: Floats,  # (n,) written
) -> int:
    """Write the rows; return EXACT, FAULT, or UNSURE if a number is too long for this."""
    state = EXACT
    found = 0  # occurrences
    row = 0
    place = -1  # of the feature in its line; -1 for the label
    line = begin = 0
    for end in range(data.size):
        byte = data[end]
        if byte != 32 and byte != 9 and byte != 10:
            continue
        if place < 0:
            label = _label(data, begin, end)
            if label == FAULT:
                return FAULT
            labels[row] = np.float32(label)
            place = 0
        elif end > begin:
            if place == slots:
                return FAULT
            key, weight, said = _feature(data, begin, end)
            if said == FAULT:
                return FAULT
            state = min(state, said)
            offsets[row * slots + place] = found
            keys[found] = key
            weights[found] = weight
            found += 1
            place += 1
        begin = end + 1
        if byte == 10:
            if end - line > LINE_BYTES_MAX:
                return FAULT
            for left in range(place, slots):
                offsets[row * slots + left] = found
            row += 1
            place = -1
            line = begin
    return state


@njit(nogil=True, cache=True, error_model="numpy")
def _label(data: Bytes, begin: int, end: int) -> int:
    """Return 1 or 0, or FAULT."""
    is_signed = begin < end and (data[begin] == 43 or data[begin] == 45)
    digit = begin + 1 if is_signed else begin
    if digit >= end or (data[digit] != 48 and data[digit] != 49):
        return FAULT
    if digit + 1 < end and data[digit + 1] != 46:
        return FAULT
    for i in range(digit + 2, end):
        if data[i] != 48:
            return FAULT
    return int(data[digit] == 49 and not (is_signed and data[begin] == 45))


@njit(nogil=True, cache=True, error_model="numpy")
def _feature(data: Bytes, begin: int, end: int) -> tuple[np.uint64, np.float32, int]:
    """Return a feature's key and weight, and EXACT, UNSURE or FAULT."""
    number = np.uint64(0)
    colon = begin
    while colon < end and data[colon] >= 48 and data[colon] <= 57:
        digit = np.uint64(data[colon] - 48)
        tens = number * np.uint64(10)
        if number > np.uint64(1844674407370955161) or tens > ~digit:
            return np.uint64(0), np.float32(0.0), FAULT
        number = tens + digit
        colon += 1
    if colon in (begin, end) or colon - begin > 20 or data[colon] != 58:
        return np.uint64(0), np.float32(0.0), FAULT
    weight, said = read_decimal(data, colon + 1, end)
    if said == EXACT and not np.isfinite(weight):
        said = FAULT
    return mix64(number + _TERM), weight, said
