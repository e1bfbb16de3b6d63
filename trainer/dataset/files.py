"""Find the files of a data set and count their rows.

Rooms before and after: ``job`` names files and patterns; ``reader`` reads ranges of the rows found.

What always holds: files keep the order in which they were named, and a pattern's files are sorted by
path; so every trainer that names the same files sees the same rows under the same numbers.
"""

import bisect
import glob
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.dataset.lines import Mark, first_line, survey
from trainer.dataset.rows import Format
from trainer.errors import DataError


@dataclass(frozen=True, slots=True)
class FileRows:
    """One file whose rows are counted.

    Attributes:
        path: of the file.
        rows: lines that are no header, good or bad.
        num_headers: 1 if the first line names the columns, else 0.
        marks: places where a line begins, in file order, the first at the start.
    """

    path: Path
    rows: int
    num_headers: int
    marks: tuple[Mark, ...]

    def mark_before(self, row: int) -> Mark:
        """Return the last mark that is not after a row, counted from 0."""
        line = 1 + self.num_headers + row
        return self.marks[bisect.bisect_right(self.marks, line, key=lambda mark: mark.line) - 1]


@dataclass(frozen=True, slots=True)
class FileSet:
    """The files of a data set, in the order in which they are read.

    Attributes:
        files: at least one.
        name: what messages call them.
    """

    files: tuple[FileRows, ...]
    name: str

    @property
    def rows(self) -> int:
        """Return the rows of all files."""
        return sum(file.rows for file in self.files)


def find_files(text: str) -> list[Path]:
    """Return the files that are named: paths and patterns, comma-separated.

    Args:
        text: such as ``day1.csv,more/*.csv``; as in a shell, with ``**`` for any folders.

    Raises:
        DataError: a pattern matches nothing, a file is named twice, or one is a pipe.

    >>> find_files("a.txt,b.txt.gz")
    [PosixPath('a.txt'), PosixPath('b.txt.gz')]
    """
    paths: list[Path] = []
    for part in [text] if Path(text).exists() else text.split(","):
        found = sorted(glob.glob(part, recursive=True)) if glob.has_magic(part) else [part]  # noqa: PTH207 - Path.glob takes no absolute pattern
        if not found or not part:
            raise DataError(f"{part or text}: no file is named so")
        paths += map(Path, found)
    seen: set[Path] = set()
    for path in paths:
        if path in seen:
            raise DataError(f"{path}: is named twice; its rows would be trained on twice an epoch")
        if path.is_fifo():
            raise DataError(
                f"{path}: must be a file, not a pipe: it is read more than once (rows are counted "
                "first); write a pipe's output to a file"
            )
        seen.add(path)
    return paths


def count_files(
    paths: Sequence[Path],
    form: Format,
    *,
    name: str,
    look: Callable[[bytes], None] = lambda _: None,
) -> FileSet:
    """Return the files with their rows counted, good or bad, without parsing them.

    Args:
        paths: in the order in which they are read.
        form: of all of them.
        name: what messages call them together.
        look: gets every byte of the files, as ``lines.survey`` hands it out.

    Raises:
        DataError: a file cannot be read.
    """
    return FileSet(tuple(_count(path, form, look) for path in paths), name)


def _count(path: Path, form: Format, look: Callable[[bytes], None]) -> FileRows:
    found = survey(path, look=look)
    top = first_line(path, line_bytes_max=form.line_bytes_max)
    num_headers = int(found.num_lines > 0 and form.is_header(top))
    return FileRows(path, found.num_lines - num_headers, num_headers, found.marks)
