"""Read files as batches: any range of their rows, bad lines by policy; text of one format.

Rooms before and after: ``files`` has found and counted the files, ``lines`` cuts them into blocks, a
format (``rows``) parses those; this room counts what is bad, cuts rows into batches and hands
them to the loop. ``parquet`` reads files that have no lines.

What always holds:
    * A row is a line, good or bad, that is no header; rows are counted from 1 over all files in their
      order, and ``Batch.position`` is the number of its last row. So reading again with
      ``skip_rows=position`` goes on exactly there, and ranges of rows given to several trainers
      neither overlap nor leave gaps.
    * A clean block takes the fast path; a block in which anything is off is looked at line by
      line, and its good lines then take the fast path too, so there is one meaning of a line.
    * Memory is bounded by a few blocks and one batch, whatever the size of the files.

Cost in rows a second and core: Criteo 0.5 million, Avazu 2, libsvm 3 with ten features a row;
gzip halves that.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final, Required, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from trainer.dataset.batch import Batch
from trainer.dataset.files import FileRows, FileSet
from trainer.dataset.lines import Block, read_blocks
from trainer.dataset.rows import Format, ReadCounts, Rows, joined, some_rows
from trainer.errors import DataError

BAD_LINES_MAX: Final = 10_000
"""Bad lines that are skipped before we say that these are no files of the format."""

SHOWN_BAD_LINES_MAX: Final = 5

Ints = NDArray[np.int64]


class Span(TypedDict, total=False):
    """Which rows are read, and how: arguments of each reader.

    Attributes:
        batch_size: rows a batch, at least 1; the last batch may be short.
        skip_rows: rows to pass over, good or bad, without looking at them; 0 if left out.
        rows_max: rows to read after those, good or bad. None, or left out: to the end.
        bad_lines_max: how many may be skipped and counted; with 0, or left out, the first one stops.
    """

    batch_size: Required[int]
    skip_rows: int
    rows_max: int | None
    bad_lines_max: int


class Reader(ABC):
    """Batches of some rows of a data set.

    Iterating begins at ``skip_rows`` each time, with ``counts`` at zero. Iterate once at a time.
    """

    def __init__(self, name: str, *, rows: int, num_slots: int, **span: Unpack[Span]) -> None:
        """Choose the range of rows; files are opened when iteration begins.

        Args:
            name: what messages call the files.
            rows: of all of them.
            num_slots: of each.
            **span: see ``Span``.

        Raises:
            ValueError: an argument is out of its range.
        """
        batch_size, skip_rows = span["batch_size"], span.get("skip_rows", 0)
        rows_max, bad_lines_max = span.get("rows_max"), span.get("bad_lines_max", 0)
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if skip_rows < 0 or bad_lines_max < 0 or (rows_max is not None and rows_max < 0):
            raise ValueError(
                "skip_rows, rows_max and bad_lines_max must be at least 0, got "
                f"skip_rows {skip_rows}, rows_max {rows_max}, bad_lines_max {bad_lines_max}"
            )
        self.counts = ReadCounts()
        self._name = name
        self._num_slots = num_slots
        self._batch_size = batch_size
        self._begin = skip_rows
        self._end = rows if rows_max is None else min(rows, skip_rows + rows_max)
        self._bad_lines_max = bad_lines_max

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches in order.

        Raises:
            DataError: a row is bad (the message says where, what must hold, what came),
                more than ``bad_lines_max`` are, or a file cannot be read or has become shorter. Rows
                of earlier blocks have been yielded but for an unfinished batch.
        """
        self.counts = ReadCounts()
        return self._cut(self._parts())

    @abstractmethod
    def _parts(self) -> Iterator[tuple[Rows, Ints]]:
        """Yield the good rows of each block, with their numbers in the data set, from 1."""

    def _refuse(self, problem: str) -> None:
        """Count one bad line, or raise if it may not be skipped."""
        if self._bad_lines_max == 0:
            raise DataError(problem)
        counts = self.counts
        counts.bad_lines += 1
        if len(counts.first_bad_lines) < SHOWN_BAD_LINES_MAX:
            counts.first_bad_lines.append(problem)
        if counts.bad_lines > self._bad_lines_max:
            raise DataError(
                f"{self._name}: at most {self._bad_lines_max} bad lines may be skipped, "
                f"got one more; the first: {counts.first_bad_lines[0]}"
            )

    def _cut(self, parts: Iterator[tuple[Rows, Ints]]) -> Iterator[Batch]:
        """Yield the rows of all parts as batches: views where one part has a whole batch."""
        rest: list[Batch] = []  # the head of the next batch: fewer than batch_size rows in all
        missing = self._batch_size
        for rows, numbers in parts:
            begin = 0
            while begin < len(numbers):
                end = min(begin + missing, len(numbers))
                slots, position = self._num_slots, int(numbers[end - 1])
                rest.append(some_rows(rows, begin, end, num_slots=slots, position=position))
                missing -= end - begin
                begin = end
                if missing == 0:
                    yield joined(rest)
                    rest = []
                    missing = self._batch_size
        if rest:
            yield joined(rest)


class FileReader(Reader):
    """Batches of some text files, plain or gzip (by the name's .gz)."""

    def __init__(self, files: FileSet, form: Format, **span: Unpack[Span]) -> None:
        """Choose the range of rows; see ``Reader``.

        Args:
            files: in the order in which they are read.
            form: of all of them.
            **span: see ``Span``.
        """
        super().__init__(files.name, rows=files.rows, num_slots=form.num_slots, **span)
        self._files = files
        self._form = form

    @override
    def _parts(self) -> Iterator[tuple[Rows, Ints]]:
        before = 0
        for file in self._files.files:
            begin, end = max(self._begin - before, 0), min(self._end - before, file.rows)
            if begin < end:
                found = begin
                for block in self._blocks(file, begin, end):
                    found += block.num_lines
                    part = self._parse(block, file, before)
                    if part is not None:
                        yield part
                if found < end:
                    raise DataError(
                        f"{file.path}: has {found} rows now and had {file.rows} when they were "
                        "counted; files must not change during a run"
                    )
            before += file.rows

    def _blocks(self, file: FileRows, begin: int, end: int) -> Iterator[Block]:
        return read_blocks(
            file.path,
            line_bytes_max=self._form.line_bytes_max,
            skip_lines=begin + file.num_headers,
            lines_max=end - begin,
            mark=file.mark_before(begin),
        )

    def _parse(self, block: Block, file: FileRows, before: int) -> tuple[Rows, Ints] | None:
        """Return a block's good rows and their numbers; None if there are none."""
        numbers = np.arange(block.first_line, block.first_line + block.num_lines)
        rows = self._form.parse_block(block.data)
        if rows is None:
            lines = block.data.split(b"\n")[:-1]
            faults = [self._form.find_fault(line) for line in lines]
            for number, fault in zip(numbers, faults, strict=True):
                if fault is not None:
                    self._refuse(f"{file.path}:{number}: {fault}")
            good = np.array([fault is None for fault in faults])
            if not good.any():
                return None
            numbers = numbers[good]
            rows = self._form.parse_block(b"".join(lines[i] + b"\n" for i in np.flatnonzero(good)))
            assert rows is not None, f"{file.path}: the two parsers disagree near {numbers[0]}"
        self.counts.rows += len(numbers)
        self.counts.empty_ints += rows.num_empty_ints
        self.counts.empty_ids += rows.num_empty_ids
        return rows, numbers - file.num_headers + before
