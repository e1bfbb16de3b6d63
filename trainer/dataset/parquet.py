"""Read Parquet files as batches: a label, dense features and slots are columns by name.

Rooms before and after: ``data`` names files and columns; ``reader`` cuts rows into batches and counts what is
bad; ``parquet_columns`` says what a column is for and makes keys of it.

What always holds:
    * Rows are numbered from 1 over all files in their order, so ranges of rows given to several trainers neither
      overlap nor leave gaps, and reading with ``skip_rows=position`` goes on exactly there.
    * Only the columns that are used are read, and of a range only the row groups that it touches.
    * All files have the same columns of the same kinds, so a value has one key.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Unpack

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from typing_extensions import override

from trainer.dataset.parquet_columns import Columns, Wanted, check_alike, choose_columns
from trainer.dataset.reader import Ints, Reader, Span
from trainer.dataset.rows import Rows
from trainer.errors import DataError

BLOCK_ROWS: Final = 16_384
"""Rows decoded at once."""


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """One file.

    Attributes:
        path: of the file.
        groups: rows of each row group, in file order.
    """

    path: Path
    groups: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Return the rows of the file."""
        return sum(self.groups)


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """The files of a data set, in the order in which they are read; see ``Source``.

    Attributes:
        files: at least one.
        name: what messages call them.
        columns: that are read.
    """

    files: tuple[ParquetFile, ...]
    name: str
    columns: Columns

    @property
    def rows(self) -> int:
        """Return the rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def num_slots(self) -> int:
        """Return F, of every row."""
        return len(self.columns.slots)

    @property
    def num_dense(self) -> int:
        """Return the dense features of every row."""
        return len(self.columns.dense)

    def reader(self, **span: Unpack[Span]) -> "ParquetReader":
        """Return the batches of a range of rows; see ``Reader``."""
        return ParquetReader(self, **span)


def find_parquet(paths: Sequence[Path], wanted: Wanted, *, name: str) -> ParquetFiles:
    """Return the files with their rows counted, from what stands at their ends.

    Args:
        paths: in the order in which they are read.
        wanted: what columns are for, as far as the user says it.
        name: what messages call the files together.

    Raises:
        DataError: a file is no Parquet, or its columns do not fit what is wanted or the first file's.
    """
    files: list[ParquetFile] = []
    columns: Columns | None = None
    for path in paths:
        with _opened(path) as file:
            found = choose_columns(file.schema_arrow, wanted, where=str(path))
            if columns is None:
                columns = found
            check_alike(columns, found, first=str(paths[0]), where=str(path))
            counts = (file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))
            files.append(ParquetFile(path, tuple(counts)))
    assert columns is not None, "at least one file was named"
    return ParquetFiles(tuple(files), name, columns)


class ParquetReader(Reader):
    """Batches of some Parquet files."""

    def __init__(self, files: ParquetFiles, **span: Unpack[Span]) -> None:
        """Choose the range of rows; see ``Reader``.

        Args:
            files: in the order in which they are read.
            **span: see ``Span``.
        """
        super().__init__(files.name, rows=files.rows, num_slots=files.num_slots, **span)
        self._files = files

    @override
    def _parts(self) -> Iterator[tuple[Rows, Ints]]:
        before = 0
        for file in self._files.files:
            begin, end = max(self._begin - before, 0), min(self._end - before, file.rows)
            if begin < end:
                for first, block in self._blocks(file, begin, end):
                    part = self._parse(block, file.path, first, before)
                    if part is not None:
                        yield part
            before += file.rows

    def _blocks(
        self, file: ParquetFile, begin: int, end: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows from ``begin`` to ``end`` of a file, with the number of the first, from 0."""
        starts = np.cumsum([0, *file.groups])
        groups = [i for i, start in enumerate(starts[:-1]) if start < end and starts[i + 1] > begin]
        row = int(starts[groups[0]])
        with _opened(file.path) as opened:
            if opened.metadata.num_rows != file.rows:
                raise DataError(
                    f"{file.path}: has {opened.metadata.num_rows} rows now and had {file.rows} when they "
                    "were counted; files must not change during a run"
                )
            names = self._files.columns.names
            try:
                for block in opened.iter_batches(BLOCK_ROWS, row_groups=groups, columns=names):
                    first, last = max(row, begin), min(row + block.num_rows, end)
                    if first < last:
                        yield first, block.slice(first - row, last - first)
                    row += block.num_rows
            except (pa.ArrowException, OSError) as error:
                raise DataError(
                    f"{file.path}: cannot be read near row {row + 1} ({error})"
                ) from error

    def _parse(
        self, block: pa.RecordBatch, path: Path, first: int, before: int
    ) -> tuple[Rows, Ints] | None:
        """Return a block's good rows and their numbers; None if there are none."""
        numbers = np.arange(first + 1, first + 1 + block.num_rows)
        columns = self._files.columns
        faults = columns.faults(block)
        if faults:
            for row, fault in sorted(faults.items()):
                self._refuse(f"{path}: row {numbers[row]}: {fault}")
            good = np.ones(len(numbers), bool)
            good[list(faults)] = False
            if not good.any():
                return None
            block, numbers = block.filter(pa.array(good)), numbers[good]
        rows = columns.rows(block)
        self.counts.rows += len(numbers)
        self.counts.empty_ints += rows.num_empty_ints
        self.counts.empty_ids += rows.num_empty_ids
        return rows, numbers + before


def _opened(path: Path) -> parquet.ParquetFile:
    """Open a file.

    Raises:
        DataError: it is not there, or no Parquet.
    """
    try:
        return parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: is no Parquet file that can be read ({error})") from error
