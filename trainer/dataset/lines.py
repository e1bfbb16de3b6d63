"""A text file as blocks of whole lines, read in bounded memory.

Rooms before and after: below is the file, plain or gzip; a reader such as ``criteo`` parses the
blocks and never sees a half line, a byte-order mark or a carriage return before a newline.

What always holds:
    * Lines are numbered as an editor numbers them, from 1, whatever was skipped.
    * A block is at most twice ``BLOCK_BYTES``, whatever the length of the file or of a line.
    * A line longer than ``LINE_BYTES_MAX`` may come cut, but still longer than that, so that
      the parser refuses it.
    * Half a line is never delivered because the gzip data ended early.
"""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, cast

import numpy as np

from trainer.errors import DataError

BLOCK_BYTES: Final = 1 << 20
"""Bytes read at once: about 4500 lines of Criteo. Twice the size gained nothing, measured."""

LINE_BYTES_MAX: Final = 1024
"""A line of 40 fields with the longest numbers is below 500 bytes."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines in file order. Immutable.

    Attributes:
        data: the lines, each ended by one newline.
        first_line: number of the first one in the file, from 1.
        num_lines: how many.
    """

    data: bytes
    first_line: int
    num_lines: int


def read_blocks(
    path: Path, *, skip_lines: int = 0, lines_max: int | None = None
) -> Iterator[Block]:
    """Yield the lines after the first ``skip_lines``, at most ``lines_max`` of them.

    Skipped lines are read but not looked at.

    Raises:
        DataError: the file cannot be opened or read, or its gzip data is damaged. Blocks
            yielded before are whole.
    """
    line = 1
    first = 1 + skip_lines
    stop = None if lines_max is None else first + lines_max
    if stop == first:
        return
    with _opened(path) as file:
        for piece in _whole_lines(file):
            end = line + piece.count(b"\n")
            if end > first:
                begin = max(line, first)
                until = end if stop is None else min(end, stop)
                whole = (begin, until) == (line, end)
                data = piece if whole else _some_lines(piece, begin - line, until - line)
                yield Block(_no_returns(data), begin, until - begin)
            line = end
            if stop is not None and line >= stop:
                return


def count_lines(path: Path) -> int:
    """Return the number of lines; the last one counts with or without its newline.

    Raises:
        DataError: the file cannot be opened or read, or its gzip data is damaged.
    """
    with _opened(path) as file:
        return sum(piece.count(b"\n") for piece in _whole_lines(file))


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, through gzip if it is named .gz; say what failed, also while it is read."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as unpacked:
                yield cast("BinaryIO", unpacked)
        else:
            with path.open("rb") as file:
                yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: must be whole gzip data, got: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield pieces of the file that end with a newline; one is added to a last line without."""
    rest = b""
    data = file.read(BLOCK_BYTES).removeprefix(_BYTE_ORDER_MARK)
    while data:
        cut = data.rfind(b"\n") + 1
        if cut:
            yield rest + data[:cut]
            rest = data[cut:]
        else:  # a line longer than a block: keep enough to see that it is too long, CR aside
            rest = (rest + data)[: LINE_BYTES_MAX + 2]
        data = file.read(BLOCK_BYTES)
    if rest:
        yield rest.removesuffix(b"\r") + b"\n"


def _some_lines(piece: bytes, begin: int, until: int) -> bytes:
    """Return lines ``begin`` to ``until``, counted from 0, of a piece that has them."""
    ends = np.flatnonzero(np.frombuffer(piece, np.uint8) == ord("\n")) + 1
    return piece[ends[begin - 1] if begin else 0 : ends[until - 1]]


def _no_returns(piece: bytes) -> bytes:
    """Return the piece with each CRLF made a newline; looking for a CR first costs nothing."""
    return piece.replace(b"\r\n", b"\n") if b"\r" in piece else piece
