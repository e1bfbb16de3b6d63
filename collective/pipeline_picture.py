"""Draws a timetable: as text, and as a PNG that needs no library.

Rooms before and after: ``pipeline_timetable`` gives it; ``trainer pipeline plan`` shows it.

A column is a tick, a row a rank. Blue is forward, green backward, orange the gradients of weights alone,
white the bubble; the number is the micro-batch. Stages of one rank differ in shade.
"""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from collective.pipeline_timetable import Kind, Timetable, bubble_formula

_TICK_PX, _ROW_PX, _GAP_PX = 26, 22, 2

_COLOURS: dict[Kind, tuple[int, int, int]] = {
    "F": (120, 170, 240),
    "B": (120, 205, 130),
    "W": (245, 180, 95),
}

_DIGITS = (
    (7, 5, 5, 5, 7),
    (2, 6, 2, 2, 7),
    (7, 1, 7, 4, 7),
    (7, 1, 7, 1, 7),
    (5, 5, 7, 1, 1),
    (7, 4, 7, 1, 7),
    (7, 4, 7, 5, 7),
    (7, 1, 1, 1, 1),
    (7, 5, 7, 5, 7),
    (7, 5, 7, 1, 7),
)
"""Each digit as five rows of three pixels."""

PIXELS_MAX = 1 << 26
"""A picture wider than any screen helps nobody: 64 million pixels are a tenth of a gigabyte."""


def timetable_text(timetable: Timetable) -> str:
    """Return a timetable as lines, one a rank, with the bubble's share below."""
    several = timetable.stages > len(timetable.columns)
    rows = []
    for rank, column in enumerate(timetable.columns):
        cells = ["."] * timetable.ticks
        for action in column:
            stage = f"{action.stage}:" if several else ""
            cells[action.start] = f"{action.kind}{stage}{action.micro_batch}"
            cells[action.start + 1 : action.end] = ["="] * (action.ticks - 1)
        rows.append((f"rank {rank}", cells))
    width = max(len(cell) for _, cells in rows for cell in cells)
    lines = [
        f"{name} |" + " ".join(cell.ljust(width) for cell in cells) + "|" for name, cells in rows
    ]
    formula = bubble_formula(len(timetable.columns), timetable.micro_batches)
    held = ", ".join(str(count) for count in timetable.under_way)
    lines += [
        f"bubble {timetable.bubble_share:.1%} of {timetable.ticks} ticks; "
        f"(S-1)/(M+S-1) = {formula:.1%}",
        f"forward passes held at once, by rank: {held}",
    ]
    return "\n".join(lines)


def timetable_png(timetable: Timetable) -> bytes:
    """Return a timetable as a PNG file.

    Raises:
        ValueError: it would have more than ``PIXELS_MAX`` pixels.
    """
    height = len(timetable.columns) * _ROW_PX + _GAP_PX
    width = timetable.ticks * _TICK_PX + _GAP_PX
    if height * width > PIXELS_MAX:
        raise ValueError(
            f"a picture of {width} x {height} pixels is too large; take fewer micro-batches"
        )
    pixels = np.full((height, width, 3), 255, np.uint8)
    for rank, column in enumerate(timetable.columns):
        for action in column:
            top = rank * _ROW_PX + _GAP_PX
            left = action.start * _TICK_PX + _GAP_PX
            right = action.end * _TICK_PX
            chunk = action.stage // len(timetable.columns)
            shade = np.array(_COLOURS[action.kind]) * 0.8 ** (chunk % 4)
            pixels[top : top + _ROW_PX - _GAP_PX, left:right] = shade.astype(np.uint8)
            _write_number(pixels, action.micro_batch, top=top + 5, left=left + 4)
    return _png(pixels)


def _write_number(pixels: NDArray[np.uint8], number: int, *, top: int, left: int) -> None:
    """Write a number in black, digits of 6 by 10 pixels, as many as there is room for."""
    for digit in str(number):
        for row, bits in enumerate(_DIGITS[int(digit)]):
            for column in range(3):
                if bits >> (2 - column) & 1:
                    y, x = top + 2 * row, left + 2 * column
                    pixels[y : y + 2, x : x + 2] = 0
        left += 8


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode (height, width, 3) pixels.

    Source:
        PNG specification, third edition, sections 5 and 11: signature, IHDR, IDAT, IEND.
    """
    height, width, _ = pixels.shape
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)  # filter 0 on each line
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, true colour
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )
