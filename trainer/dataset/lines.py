"""A text file as blocks of whole lines, read in bounded memory.

Rooms before and after: below is the file, plain or gzip; ``reader`` has a format parse the blocks,
which never sees a half line, a byte-order mark or a carriage return before a newline.

What always holds:
    * Lines are numbered as an editor numbers them, from 1, whatever was skipped.
    * A block is at most twice ``BLOCK_BYTES``, whatever the length of the file or of a line.
    * A line longer than ``line_bytes_max`` may come cut, but still longer than that, so that
      the parser refuses it.
    * Half a line is never delivered because the gzip data ended early.
    * Reading from a mark gives what reading from the start and skipping gives.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, cast

import numpy as np

from trainer.errors import DataError

BLOCK_BYTES: Final = 1 << 20
"""Bytes read at once: about 4500 lines of Criteo. Twice the size gained nothing, measured."""

MARK_EVERY_BYTES: Final = 4 << 20
"""How far marks are apart: a range of rows is found after reading less than that in vain."""

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


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a plain file where a line begins.

    Attributes:
        line: its number, from 1.
        offset: bytes before it.
    """

    line: int
    offset: int


START: Final = Mark(1, 0)


@dataclass(frozen=True, slots=True)
class Survey:
    """What one look over a file found.

    Attributes:
        num_lines: the last one counts with or without its newline.
        marks: in file order, the first at the start; that one alone where the file is packed.
    """

    num_lines: int
    marks: tuple[Mark, ...]


def read_blocks(
    path: Path,
    *,
    line_bytes_max: int,
    skip_lines: int = 0,
    lines_max: int | None = None,
    mark: Mark = START,
) -> Iterator[Block]:
    """Yield the lines after the first ``skip_lines``, at most ``lines_max`` of them.

    Skipped lines are read from the mark on but not looked at.

    Args:
        path: the file.
        line_bytes_max: of a line that may be good.
        skip_lines: lines to pass over.
        lines_max: lines to deliver; None: to the end.
        mark: one of the file's, not after the first line wanted.

    Raises:
        DataError: the file cannot be opened or read, or its gzip data is damaged. Blocks
            yielded before are whole.
    """
    line = mark.line
    first = 1 + skip_lines
    stop = None if lines_max is None else first + lines_max
    if stop == first:
        return
    with _opened(path) as file:
        file.seek(mark.offset)
        for piece in _whole_lines(file, line_bytes_max, is_start=mark.offset == 0):
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


def first_line(path: Path, *, line_bytes_max: int) -> bytes:
    """Return the first line without its end; empty if there is none.

    Raises:
        DataError: the file cannot be opened or read.
    """
    blocks = read_blocks(path, line_bytes_max=line_bytes_max, lines_max=1)
    return next((block.data.removesuffix(b"\n") for block in blocks), b"")


def survey(path: Path, *, look: Callable[[bytes], None] = lambda _: None) -> Survey:
    """Return how many lines a file has, and where some of them begin.

    Args:
        path: the file.
        look: gets every byte of the file, piece by piece.

    Raises:
        DataError: the file cannot be opened or read, or its gzip data is damaged.
    """
    lines, offset, data = 0, 0, b""
    marks = [START]
    with _opened(path) as file:
        piece = file.read(BLOCK_BYTES)
        while piece:
            data = piece if offset else piece.removeprefix(_BYTE_ORDER_MARK)
            look(data)
            lines += data.count(b"\n")
            cut = offset + piece.rfind(b"\n") + 1
            if cut > offset and cut - marks[-1].offset >= MARK_EVERY_BYTES:
                marks.append(Mark(lines + 1, cut))
            offset += len(piece)
            piece = file.read(BLOCK_BYTES)
    if data and not data.endswith(b"\n"):
        lines += 1
    return Survey(lines, (START,) if path.suffix == ".gz" else tuple(marks))


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


def _whole_lines(file: BinaryIO, line_bytes_max: int, *, is_start: bool) -> Iterator[bytes]:
    """Yield pieces of the file that end with a newline; one is added to a last line without."""
    rest = b""
    data = file.read(BLOCK_BYTES)
    if is_start:
        data = data.removeprefix(_BYTE_ORDER_MARK) or file.read(BLOCK_BYTES)
    while data:
        cut = data.rfind(b"\n") + 1
        if cut:
            yield rest + data[:cut]
            rest = data[cut:]
        else:  # a line longer than a block: keep enough to see that it is too long, CR aside
            rest = (rest + data)[: line_bytes_max + 2]
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
