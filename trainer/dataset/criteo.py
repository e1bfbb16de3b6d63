"""The format of the Criteo click logs: label, 13 integers and 26 hex ids a line, TAB-separated.

Rooms before and after: ``reader`` calls ``parse_block`` on each block that ``lines`` cut, and, where that
says None, ``find_fault`` on each line to learn which are bad.

A line is a label, 13 integers and 26 categorical values, TAB-separated:

    * The label is ``0`` or ``1``.
    * An integer has at most 18 digits after leading zeros and may have a minus sign. It becomes
      sign(x) * log1p(|x|): monotone, 0 at 0, and tame for the long tails of counters. An empty
      one becomes 0.0.
    * A categorical value has 1 to 8 hex digits and is the id they spell. An empty one is
      ``EMPTY_ID``, a value of its own in each slot.

What always holds: nothing is guessed or rounded: "NaN", "NULL", "+1", " 1" and "1.0" are faults.
"""

import re
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray
from pyarrow import csv

from pserver import mix64
from trainer.dataset.batch import Floats
from trainer.dataset.keys import Keys, slot_terms
from trainer.dataset.lines import BLOCK_BYTES
from trainer.dataset.rows import Rows, find_unreadable, shown

NUM_DENSE: Final = 13
NUM_SLOTS: Final = 26
NUM_FIELDS: Final = 1 + NUM_DENSE + NUM_SLOTS

LINE_BYTES_MAX: Final = 1024
"""A line of 40 fields with the longest numbers is below 500 bytes."""

EMPTY_ID: Final = 1 << 32
"""The id of an empty categorical value: one more than 8 hex digits can spell."""

Ints: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]
StringOffsets: TypeAlias = NDArray[np.int32]

_MAGNITUDE_END = 10**18
_PLAIN_BYTES = b"0123456789abcdefABCDEF-\t\n"
_TERMS = slot_terms(np.arange(NUM_SLOTS))
_NAMES = [f"f{index}" for index in range(NUM_FIELDS)]
_TYPES = [pa.string()] + [pa.int64()] * NUM_DENSE + [pa.string()] * NUM_SLOTS

_INT = re.compile(r"(?:-?0*[0-9]{1,18})?", re.ASCII)
_HEX = re.compile(r"[0-9a-fA-F]{0,8}", re.ASCII)
_LINE = re.compile(
    rb"[01](?:\t(?:-?0*[0-9]{1,18})?){%d}(?:\t[0-9a-fA-F]{0,8}){%d}" % (NUM_DENSE, NUM_SLOTS)
)

# One thread, so that a trainer's core count says what it uses; one chunk a block.
_READ = csv.ReadOptions(use_threads=False, block_size=4 * BLOCK_BYTES, column_names=_NAMES)
_PARSE = csv.ParseOptions(
    delimiter="\t", quote_char=False, double_quote=False, ignore_empty_lines=False
)
_CONVERT = csv.ConvertOptions(
    column_types=dict(zip(_NAMES, _TYPES, strict=True)),
    null_values=[""],
    strings_can_be_null=False,
    check_utf8=False,  # only ASCII comes so far
)


class CriteoFormat:
    """Criteo's lines; no header. Immutable."""

    num_slots = NUM_SLOTS
    num_dense = NUM_DENSE
    line_bytes_max = LINE_BYTES_MAX

    def is_header(self, _: bytes) -> bool:
        """Return False: these files have none."""
        return False

    def parse_block(self, data: bytes) -> Rows | None:
        """Return the rows of whole lines, or None if any line has a fault; see ``Format``."""
        if data.translate(None, _PLAIN_BYTES):
            return None
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
        if np.diff(ends, prepend=-1).max() > LINE_BYTES_MAX + 1:
            return None
        try:
            table = csv.read_csv(pa.BufferReader(data), _READ, _PARSE, _CONVERT)
        except pa.ArrowInvalid:
            return None
        columns = [column.combine_chunks() for column in table.columns]
        labels = _parse_labels(columns[0])
        dense = _parse_ints(columns[1 : 1 + NUM_DENSE])
        keys = np.empty((len(ends), NUM_SLOTS), np.uint64)
        num_empty_ids = _parse_ids(columns[1 + NUM_DENSE :], keys)
        if labels is None or dense is None or num_empty_ids < 0:
            return None
        return Rows(
            keys=keys.reshape(-1),
            offsets=None,
            weights=None,
            dense=dense,
            labels=labels,
            num_empty_ints=sum(column.null_count for column in columns[1 : 1 + NUM_DENSE]),
            num_empty_ids=num_empty_ids,
        )

    def find_fault(self, line: bytes) -> str | None:
        """Return what is wrong with one line, or None; see ``Format``."""
        if len(line) <= LINE_BYTES_MAX and _LINE.fullmatch(line):
            return None
        problem = find_unreadable(line, line_bytes_max=LINE_BYTES_MAX)
        return _find_bad_field(line.decode()) if problem is None else problem


def _find_bad_field(text: str) -> str:
    """Return what is wrong with a line that does not fit the pattern."""
    fields = text.split("\t")
    if len(fields) != NUM_FIELDS:
        return f"must have {NUM_FIELDS} TAB-separated fields, got {len(fields)}: {shown(text)}"
    if fields[0] not in ("0", "1"):
        return f"label must be 0 or 1, got {shown(fields[0])}"
    for index, field in enumerate(fields[1 : 1 + NUM_DENSE], 1):
        if not _INT.fullmatch(field):
            return f"I{index} must be an integer of at most 18 digits, got {shown(field)}"
    for index, field in enumerate(fields[1 + NUM_DENSE :], 1):
        if not _HEX.fullmatch(field):
            return f"C{index} must be at most 8 hex digits, got {shown(field)}"
    raise AssertionError(f"no fault found in {text!r}")


def _string_buffers(column: Any) -> tuple[StringOffsets, Bytes]:
    """Return a string column's (n + 1) offsets and its bytes, without a copy."""
    _, offsets, data = column.buffers()
    first = column.offset
    view = np.frombuffer(offsets, np.int32)[first : first + len(column) + 1]
    return view, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)


def _parse_labels(column: Any) -> Floats | None:
    """Return the labels, or None if one is not exactly "0" or "1"."""
    offsets, data = _string_buffers(column)
    if np.any(np.diff(offsets) != 1):
        return None
    digits = data[offsets[0] : offsets[-1]] - np.uint8(ord("0"))
    return digits.astype(np.float32) if digits.max() <= 1 else None


def _parse_ints(columns: list[Any]) -> Floats | None:
    """Return the dense features (n, 13), or None if a number has too many digits."""
    ints: Ints = np.stack([column.fill_null(0).to_numpy() for column in columns], axis=1)
    if ints.max() >= _MAGNITUDE_END or ints.min() <= -_MAGNITUDE_END:
        return None
    values = ints.astype(np.float64)
    return np.copysign(np.log1p(np.abs(values)), values).astype(np.float32)


def _parse_ids(columns: list[Any], keys: Keys) -> int:
    """Write the keys (n, 26); return how many ids are empty, or -1 if one is not hex."""
    num_empty = 0
    for slot, column in enumerate(columns):
        empty = _parse_hex(*_string_buffers(column), _TERMS[slot], keys[:, slot])
        if empty < 0:
            return -1
        num_empty += empty
    return num_empty


@njit(nogil=True, cache=True)
def _parse_hex(
    offsets: StringOffsets,  # (n + 1,)
    data: Bytes,
    term: np.uint64,  # what the slot adds to an id
    keys: Keys,  # (n,) strided, written
) -> int:
    """Write the keys of one slot; return how many ids are empty, or -1 if one is not hex."""
    num_empty = 0
    for row in range(keys.shape[0]):
        begin, end = offsets[row], offsets[row + 1]
        if end - begin > 8:
            return -1
        value = np.uint64(0)
        for position in range(begin, end):
            byte = data[position]
            if byte == 45:  # a minus sign, the one plain byte that is no hex digit
                return -1
            # "0" to "9" are 0x30 to 0x39, letters 0x41 or 0x61 to 0x46 or 0x66
            digit = (byte & 15) + 9 * (byte >> 6)
            value = (value << np.uint64(4)) | np.uint64(digit)
        if begin == end:
            num_empty += 1
            value = np.uint64(EMPTY_ID)
        keys[row] = mix64(value + term)
    return num_empty
