"""Read the Criteo click logs: label, 13 integers and 26 hex ids a line, TAB-separated.

Rooms before and after: ``lines`` cuts the file into blocks and ``criteo_block`` parses them; this
room counts what is bad, cuts rows into batches and hands them to the loop.

What always holds:
    * A row is a line of the file, good or bad; ``Batch.position`` is the number of its last row.
      So reading again with ``skip_rows=position`` goes on exactly there, and ranges of rows
      given to several trainers neither overlap nor leave gaps.
    * A clean block takes the fast path; a block in which anything is off is looked at line by
      line, and its good lines then take the fast path too, so there is one meaning of a line.
    * Memory is bounded by a few blocks and one batch, whatever the size of the file.

Cost: about 0.5 million rows a second and core, more than half of it in the parser; gzip halves that.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

import numpy as np

from trainer.dataset.batch import Batch
from trainer.dataset.criteo_block import NUM_SLOTS, Ints, Rows, find_fault, parse_block
from trainer.dataset.lines import Block, count_lines, read_blocks
from trainer.errors import DataError

BAD_LINES_MAX: Final = 10_000
"""Bad lines that are skipped before we say that this is not a Criteo file."""

SHOWN_BAD_LINES_MAX: Final = 5

BadLines = Literal["fail", "skip"]


@dataclass(slots=True)
class ReadCounts:
    """What one pass over the file has met so far. Owned by the thread that iterates.

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


class CriteoReader:
    """Batches of a Criteo file, plain or gzip (by the name's .gz).

    Iterating begins at ``skip_rows`` each time, with ``counts`` at zero. Iterate once at a time.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        batch_size: int,
        skip_rows: int = 0,
        rows_max: int | None = None,
        bad_lines: BadLines = "fail",
        bad_lines_max: int = BAD_LINES_MAX,
    ) -> None:
        """Choose the file and the range of rows; the file is opened when iteration begins.

        Args:
            path: the file.
            batch_size: rows a batch, at least 1; the last batch may be short.
            skip_rows: lines to pass over, good or bad, without looking at them.
            rows_max: lines to read after those, good or bad. None: to the end.
            bad_lines: "fail" stops at a bad line; "skip" passes over it and counts it.
            bad_lines_max: how many may be skipped.

        Raises:
            ValueError: an argument is out of its range.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if skip_rows < 0 or bad_lines_max < 0 or (rows_max is not None and rows_max < 0):
            raise ValueError(
                "skip_rows, rows_max and bad_lines_max must be at least 0, got "
                f"skip_rows {skip_rows}, rows_max {rows_max}, bad_lines_max {bad_lines_max}"
            )
        if bad_lines not in get_args(BadLines):
            raise ValueError(f"bad_lines must be one of {get_args(BadLines)}, got {bad_lines!r}")
        self.counts = ReadCounts()
        self._path = Path(path)
        self._batch_size = batch_size
        self._skip_rows = skip_rows
        self._rows_max = rows_max
        self._bad_lines_max = bad_lines_max if bad_lines == "skip" else None

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches in order.

        Raises:
            DataError: a line is bad (the message is "file:line: what must hold, what came"),
                more than ``bad_lines_max`` are, or the file cannot be read. Rows of earlier
                blocks have been yielded but for an unfinished batch.
        """
        self.counts = ReadCounts()
        blocks = read_blocks(self._path, skip_lines=self._skip_rows, lines_max=self._rows_max)
        parts = (part for block in blocks if (part := self._parse(block)) is not None)
        return _cut(parts, self._batch_size)

    def _parse(self, block: Block) -> tuple[Rows, Ints] | None:
        """Return a block's good rows and their line numbers; None if there are none."""
        numbers = np.arange(block.first_line, block.first_line + block.num_lines)
        rows = parse_block(block.data)
        if rows is None:
            lines = block.data.split(b"\n")[:-1]
            faults = [find_fault(line) for line in lines]
            for number, fault in zip(numbers, faults, strict=True):
                if fault is not None:
                    self._refuse(f"{self._path}:{number}: {fault}")
            good = np.array([fault is None for fault in faults])
            if not good.any():
                return None
            numbers = numbers[good]
            rows = parse_block(b"".join(lines[i] + b"\n" for i in np.flatnonzero(good)))
            assert rows is not None, f"{self._path}: the two parsers disagree near {numbers[0]}"
        self.counts.rows += len(numbers)
        self.counts.empty_ints += rows.num_empty_ints
        self.counts.empty_ids += rows.num_empty_ids
        return rows, numbers

    def _refuse(self, problem: str) -> None:
        """Count one bad line, or raise if it may not be skipped."""
        if self._bad_lines_max is None:
            raise DataError(problem)
        counts = self.counts
        counts.bad_lines += 1
        if len(counts.first_bad_lines) < SHOWN_BAD_LINES_MAX:
            counts.first_bad_lines.append(problem)
        if counts.bad_lines > self._bad_lines_max:
            raise DataError(
                f"{self._path}: at most {self._bad_lines_max} bad lines may be skipped, "
                f"got one more; the first: {counts.first_bad_lines[0]}"
            )


def count_rows(path: str | Path) -> int:
    """Return the number of rows of a file, good or bad, without parsing them.

    Raises:
        DataError: the file cannot be read.
    """
    return count_lines(Path(path))


def _cut(parts: Iterator[tuple[Rows, Ints]], batch_size: int) -> Iterator[Batch]:
    """Yield the rows of all parts as batches: views where one part has a whole batch."""
    rest: list[Batch] = []  # the head of the next batch: fewer than batch_size rows in all
    missing = batch_size
    for rows, numbers in parts:
        begin = 0
        while begin < len(numbers):
            piece = _slice(rows, numbers, slice(begin, begin + missing))
            begin += piece.num_samples
            missing -= piece.num_samples
            rest.append(piece)
            if missing == 0:
                yield _join(rest)
                rest = []
                missing = batch_size
    if rest:
        yield _join(rest)


def _slice(rows: Rows, numbers: Ints, which: slice) -> Batch:
    """Return some rows of a part as a batch, without a copy."""
    return Batch(
        keys=rows.keys[which].reshape(-1),
        offsets=None,
        num_slots=NUM_SLOTS,
        dense=rows.dense[which],
        labels=rows.labels[which],
        teacher=None,
        position=int(numbers[which][-1]),
    )


def _join(pieces: list[Batch]) -> Batch:
    """Return one batch with the rows of all pieces, in order."""
    if len(pieces) == 1:
        return pieces[0]
    return Batch(
        keys=np.concatenate([piece.keys for piece in pieces]),
        offsets=None,
        num_slots=NUM_SLOTS,
        dense=np.concatenate([piece.dense for piece in pieces]),
        labels=np.concatenate([piece.labels for piece in pieces]),
        teacher=None,
        position=pieces[-1].position,
    )
