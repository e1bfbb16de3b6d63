"""What a format makes of a block of lines, and what a format is.

Rooms before and after: ``criteo``, ``avazu`` and ``libsvm`` are formats; ``reader`` calls them and makes
batches of their rows.

What always holds: a line is accepted by ``parse_block`` if and only if ``find_fault`` has nothing
to say, so a file means the same whether it is clean or not.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from trainer.dataset.batch import Batch, Floats, Offsets
from trainer.dataset.keys import Keys

_SHOWN_MAX = 80  # characters of a bad line in a message


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a block. Immutable; arrays as in ``Batch``.

    Attributes:
        keys: (N,) uint64.
        offsets: (n * F,) int64, or None: one key a slot.
        weights: (N,) float32, or None: all 1.
        dense: (n, num_dense) float32.
        labels: (n,) float32.
        num_empty_ints: empty integers, which became 0.0.
        num_empty_ids: empty categorical values, which became an id of their own.
    """

    keys: Keys
    offsets: Offsets | None
    weights: Floats | None
    dense: Floats
    labels: Floats
    num_empty_ints: int = 0
    num_empty_ids: int = 0


class Format(Protocol):
    """How the lines of a file are read. Immutable.

    Attributes:
        num_slots: F, of every row.
        num_dense: dense features of every row.
        line_bytes_max: of a line that may be good.
    """

    num_slots: int
    num_dense: int
    line_bytes_max: int

    def is_header(self, line: bytes) -> bool:
        """Return whether the first line of a file names the columns and is no row."""
        ...

    def parse_block(self, data: bytes) -> Rows | None:
        """Return the rows of whole lines, or None if any line has a fault.

        Args:
            data: lines that end with a newline each, at least one, without carriage returns.
        """
        ...

    def find_fault(self, line: bytes) -> str | None:
        """Return what is wrong with one line (without its newline), or None if nothing is."""
        ...


@dataclass(slots=True)
class ReadCounts:
    """What one pass over the files has met so far. Owned by the thread that iterates.

    Attributes:
        rows: good rows parsed; up to a block more than were handed out.
        bad_lines: lines skipped.
        first_bad_lines: "file:line: reason" of the first five.
        empty_ints: empty integers, which became 0.0.
        empty_ids: empty categorical values, which became an id of their own.
    """

    rows: int = 0
    bad_lines: int = 0
    first_bad_lines: list[str] = field(default_factory=list)
    empty_ints: int = 0
    empty_ids: int = 0


def some_rows(rows: Rows, begin: int, end: int, *, num_slots: int, position: int) -> Batch:
    """Return rows ``begin`` to ``end`` as a batch, without a copy but for offsets.

    Args:
        rows: of a block.
        begin: the first, from 0.
        end: one more than the last.
        num_slots: of the format.
        position: of the last one in the data set.
    """
    first, last = begin * num_slots, end * num_slots
    offsets = None
    if rows.offsets is not None:
        offsets = rows.offsets[first:last]
        last = int(rows.offsets[last]) if last < rows.offsets.size else rows.keys.size
        first = int(offsets[0]) if offsets.size else last
        offsets = offsets - first
    return Batch(
        keys=rows.keys[first:last],
        offsets=offsets,
        num_slots=num_slots,
        dense=rows.dense[begin:end],
        labels=rows.labels[begin:end],
        teacher=None,
        position=position,
        weights=None if rows.weights is None else rows.weights[first:last],
    )


def joined(pieces: list[Batch]) -> Batch:
    """Return one batch with the samples of all pieces, in order."""
    if len(pieces) == 1:
        return pieces[0]
    num_slots = pieces[0].num_slots
    offsets = weights = None
    if any(piece.offsets is not None for piece in pieces):
        begins = np.cumsum([0, *(piece.keys.size for piece in pieces[:-1])])
        offsets = np.concatenate(
            [_offsets(piece) + begin for piece, begin in zip(pieces, begins, strict=True)]
        )
    if any(piece.weights is not None for piece in pieces):
        weights = np.concatenate(
            [np.ones(p.keys.size, np.float32) if p.weights is None else p.weights for p in pieces]
        )
    return Batch(
        keys=np.concatenate([piece.keys for piece in pieces]),
        offsets=offsets,
        num_slots=num_slots,
        dense=np.concatenate([piece.dense for piece in pieces]),
        labels=np.concatenate([piece.labels for piece in pieces]),
        teacher=None,
        position=pieces[-1].position,
        weights=weights,
    )


def _offsets(batch: Batch) -> Offsets:
    """Return where each bag begins, spelled out."""
    if batch.offsets is not None:
        return batch.offsets
    return np.arange(batch.keys.size, dtype=np.int64)


def shown(text: str) -> str:
    """Return the text as a message shows it: escaped, and cut."""
    return repr(text) if len(text) <= _SHOWN_MAX else repr(text[:_SHOWN_MAX]) + "..."


def find_unreadable(line: bytes, *, line_bytes_max: int) -> str | None:
    """Return why a line cannot be a row of any format, or None: then it is short UTF-8 text."""
    try:
        text = line[: line_bytes_max + 1].decode()
    except UnicodeDecodeError as error:
        if len(line) <= line_bytes_max or error.start < line_bytes_max - 4:
            return f"must be UTF-8, got byte 0x{line[error.start]:02x} at offset {error.start}"
        text = line[: error.start].decode()  # cut inside a character
    if len(line) > line_bytes_max:
        return f"must have at most {line_bytes_max} bytes, got {shown(text)}"
    if "\0" in text:
        return f"must have no NUL byte, got {shown(text)}"
    return None
