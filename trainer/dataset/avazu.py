"""The format of the Avazu click logs: 24 comma-separated fields a line, a header or none.

Rooms before and after: ``reader`` calls ``parse_block`` on each block that ``lines`` cut, and, where that
says None, ``find_fault`` on each line to learn which are bad.

The fields are id, click, hour, C1, banner_pos, site_id, site_domain, site_category, app_id, app_domain,
app_category, device_id, device_ip, device_model, device_type, device_conn_type and C14 to C21:

    * The id has 1 to 20 digits and is not used. The click is ``0`` or ``1``, the label.
    * The hour is YYMMDDHH. Its slot has the hour of the day, 0 to 23: a whole date never comes back.
    * The nine fields from site_id to device_model have at most 8 hex digits, the others are integers of at
      most 18 digits after leading zeros, and may have a minus sign; each is the id of its slot, negative
      ones bit for bit. An empty one is ``EMPTY_ID``, a value of its own in each slot.

So a row has 22 slots, those from hour to C21, and no dense features.

What always holds: nothing is guessed or rounded: quotes, blanks, "NaN", "+1" and "1.0" are faults.
"""

import re
from typing import Final, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pserver import mix64
from trainer.dataset.batch import Floats
from trainer.dataset.keys import Keys, slot_terms
from trainer.dataset.rows import Rows, find_unreadable, shown

HEADER: Final = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,"
    "device_id,device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
)
"""The columns, as the first line of a file may have them."""

NAMES: Final = tuple(HEADER.split(","))

NUM_SLOTS: Final = len(NAMES) - 2
LINE_BYTES_MAX: Final = 1024
"""24 fields with the longest numbers are below 400 bytes."""

EMPTY_ID: Final = 1 << 63
"""The id of an empty value: no integer of 18 digits and no 8 hex digits spell it."""

Bytes: TypeAlias = NDArray[np.uint8]

_HEX_FIRST, _HEX_LAST = NAMES.index("site_id"), NAMES.index("device_model")
_ID = re.compile(r"[0-9]{1,20}", re.ASCII)
_HOUR = re.compile(r"[0-9]{6}(?:[01][0-9]|2[0-3])", re.ASCII)
_INT = re.compile(r"(?:-?0*[0-9]{1,18})?", re.ASCII)
_HEX = re.compile(r"[0-9a-fA-F]{0,8}", re.ASCII)
_TERMS = slot_terms(np.arange(NUM_SLOTS))
_EMPTY = np.uint64(EMPTY_ID)
_BAD = -1


class AvazuFormat:
    """Avazu's lines. Immutable."""

    num_slots = NUM_SLOTS
    num_dense = 0
    line_bytes_max = LINE_BYTES_MAX

    def is_header(self, line: bytes) -> bool:
        """Return whether a first line is the names of the columns."""
        return line == HEADER.encode()

    def parse_block(self, data: bytes) -> Rows | None:
        """Return the rows of whole lines, or None if any line has a fault; see ``Format``."""
        count = data.count(b"\n")
        keys = np.empty(count * NUM_SLOTS, np.uint64)
        labels = np.empty(count, np.float32)
        num_empty = _parse(np.frombuffer(data, np.uint8), _TERMS, keys, labels)
        if num_empty == _BAD:
            return None
        dense = np.empty((count, 0), np.float32)
        return Rows(keys, None, None, dense, labels, num_empty_ids=num_empty)

    def find_fault(self, line: bytes) -> str | None:
        """Return what is wrong with one line, or None; see ``Format``."""
        problem = find_unreadable(line, line_bytes_max=LINE_BYTES_MAX)
        if problem is not None:
            return problem
        fields = line.decode().split(",")
        if len(fields) != len(NAMES):
            return (
                f"must have {len(NAMES)} comma-separated fields, got {len(fields)}: "
                f"{shown(line.decode())}"
            )
        for index, field in enumerate(fields):
            wanted = _field_fault(index, field)
            if wanted is not None:
                return f"{NAMES[index]} must be {wanted}, got {shown(field)}"
        return None


def _field_fault(index: int, field: str) -> str | None:
    """Return what one field must be, or None if it is."""
    if index == 0:
        return None if _ID.fullmatch(field) else "1 to 20 digits"
    if index == 1:
        return None if field in ("0", "1") else "0 or 1"
    if index == 2:
        return None if _HOUR.fullmatch(field) else "YYMMDDHH with HH from 00 to 23"
    if _HEX_FIRST <= index <= _HEX_LAST:
        return None if _HEX.fullmatch(field) else "at most 8 hex digits"
    return None if _INT.fullmatch(field) else "an integer of at most 18 digits"


@njit(nogil=True, cache=True, error_model="numpy")
def _parse(  # noqa: C901, PLR0912 - one pass over the bytes
    data: Bytes,  # whole lines
    terms: Keys,  # (22,) what each slot adds to an id
    keys: Keys,  # (n * 22,) written
    labels: Floats,  # (n,) written
) -> int:
    """Write keys and labels; return how many ids are empty, or -1 if a line has a fault."""
    num_empty = 0
    begin = 0  # of the field
    line = 0  # where it begins
    row = 0
    index = 0  # of the field
    for end in range(data.size):
        byte = data[end]
        if byte != 44 and byte != 10:  # neither a comma nor a newline
            continue
        if index == 0:
            if not _is_digits(data, begin, end) or end - begin > 20 or end == begin:
                return _BAD
        elif index == 1:
            if end - begin != 1 or data[begin] < 48 or data[begin] > 49:
                return _BAD
            labels[row] = np.float32(data[begin] - 48)
        elif index > 23:
            return _BAD
        else:
            if begin == end and index != 2:
                num_empty += 1
                value = _EMPTY
            else:
                value, is_good = _value(data, begin, end, index)
                if not is_good:
                    return _BAD
            keys[row * 22 + index - 2] = mix64(value + terms[index - 2])
        begin = end + 1
        index += 1
        if byte == 10:
            if index != 24 or end - line > LINE_BYTES_MAX:
                return _BAD
            index = 0
            row += 1
            line = begin
    return num_empty


@njit(nogil=True, cache=True, error_model="numpy")
def _value(data: Bytes, begin: int, end: int, index: int) -> tuple[np.uint64, bool]:
    """Return the id that a field spells, and whether it spells one."""
    if index == 2:
        if end - begin == 8 and _is_digits(data, begin, end):
            hour = int(data[end - 2] - 48) * 10 + int(data[end - 1] - 48)
            return np.uint64(hour), hour < 24
        return np.uint64(0), False
    if 5 <= index <= 13:
        return _hex(data, begin, end)
    is_negative = bool(data[begin] == 45)
    first = begin + 1 if is_negative else begin
    if first == end or not _is_digits(data, first, end):
        return np.uint64(0), False
    while first < end - 18 and data[first] == 48:
        first += 1
    value = np.uint64(0)
    for i in range(first, end):
        value = value * np.uint64(10) + np.uint64(data[i] - 48)
    if is_negative:
        value = np.uint64(0) - value
    return value, end - first <= 18


@njit(nogil=True, cache=True, error_model="numpy")
def _hex(data: Bytes, begin: int, end: int) -> tuple[np.uint64, bool]:
    """Return the number that at most 8 hex digits spell, and whether they do."""
    value = np.uint64(0)
    for i in range(begin, end):
        byte = data[i]
        letter = byte | 32
        if byte >= 48 and byte <= 57:
            digit = np.uint64(byte - 48)
        elif letter >= 97 and letter <= 102:
            digit = np.uint64(letter - 87)
        else:
            return np.uint64(0), False
        value = (value << np.uint64(4)) | digit
    return value, end - begin <= 8


@njit(nogil=True, cache=True, error_model="numpy")
def _is_digits(data: Bytes, begin: int, end: int) -> bool:
    """Return whether all bytes are digits."""
    position = begin
    while position < end and data[position] >= 48 and data[position] <= 57:
        position += 1
    return position == end
