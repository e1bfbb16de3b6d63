"""Arrays to bytes: messages allocated once at their full size and filled in place.

Rooms before and after: ``client`` asks for an empty message and its kernels write into the arrays
that stand in it; ``server.servicer`` does the same for the weights of a reply.
"""

import ctypes
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pserver.arrays import Keys
from pserver.wire.fields import (
    BLOCK,
    BYTES,
    CLICKS,
    COUNTS,
    FIXED64,
    PAD,
    SHOWN,
    SHOWS,
    SLOTS,
    VALUES,
    VARINT,
)
from pserver.wire.messages import PushId, Stamp, TablePush, TableRows, TableSize

_ALIGNMENT = 8
_WIDE_HEAD_BYTES = 5  # a tag of one byte, and a length of four
_U64, _F32, _U32 = np.dtype(np.uint64), np.dtype(np.float32), np.dtype(np.uint32)

_allocate = ctypes.pythonapi.PyBytes_FromStringAndSize
_allocate.restype, _allocate.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t)
_address = ctypes.pythonapi.PyBytes_AsString
_address.restype, _address.argtypes = ctypes.c_void_p, (ctypes.py_object,)
_memory = ctypes.pythonapi.PyMemoryView_FromMemory
_memory.restype = ctypes.py_object
_memory.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_PY_BUF_WRITE = 0x200


@functools.lru_cache(4096)  # the same few tags and sizes come again in every message
def _varint(number: int) -> bytes:
    """Return the protobuf varint of a number in [0, 2^64)."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field: int, number: int) -> bytes:
    """Return a varint field; nothing where it has its default of 0."""
    return _varint(field << 3 | VARINT) + _varint(number) if number else b""


def _fixed64(field: int, number: int) -> bytes:
    """Return a fixed64 field; nothing where it has its default of 0."""
    return _varint(field << 3 | FIXED64) + number.to_bytes(8, "little") if number else b""


def _wide_head(field: int, num_bytes: int) -> bytes:
    """Return tag and length of a nested message, the length always in four bytes.

    Protobuf reads a varint that is longer than it need be, and a head of fixed size lets the
    pads inside the message be computed in one go.
    """
    length = bytes(
        (num_bytes >> shift & 0x7F) | (0x80 if shift < 21 else 0) for shift in (0, 7, 14, 21)
    )
    return _varint(field << 3 | BYTES) + length


def _head(field: int, num_bytes: int) -> bytes:
    """Return the tag and length that stand before a field of bytes."""
    return _varint(field << 3 | BYTES) + _varint(num_bytes)


@dataclass(frozen=True, slots=True)
class _Block:
    """A field of bytes that is an array, its place kept free in the message."""

    field: int
    count: int
    dtype: np.dtype[Any]

    @property
    def num_bytes(self) -> int:
        return self.count * self.dtype.itemsize


def _padded_head(position: int, block: _Block) -> bytes:
    """Return pad and head such that a block written behind them is aligned."""
    head = _head(block.field, block.num_bytes)
    fill = -(position + 2 + len(head)) % _ALIGNMENT
    return _head(PAD, fill) + b"\0" * fill + head


class _Builder:
    """Lays out a message of several tables and allocates it once."""

    def __init__(self, prefix: bytes, table_field: int) -> None:
        self._prefix = prefix
        self._field = table_field
        self._tables: list[tuple[bytes, tuple[_Block, ...]]] = []

    def add(self, small: bytes, *blocks: _Block) -> None:
        self._tables.append((small, tuple(block for block in blocks if block.count)))

    def build(self) -> tuple[bytes, list[dict[int, NDArray[Any]]]]:
        """Return the message and, for each table, the arrays that stand in it, by their fields."""
        pieces: list[tuple[int, bytes]] = [(0, self._prefix)]
        places: list[list[tuple[int, _Block]]] = []
        position = len(self._prefix)
        for small, blocks in self._tables:
            head_at = position
            start = head_at + _WIDE_HEAD_BYTES
            pieces.append((start, small))
            position = start + len(small)
            places.append([])
            for block in blocks:
                block_head = _padded_head(position, block)
                pieces.append((position, block_head))
                position += len(block_head)
                places[-1].append((position, block))
                position += block.num_bytes
            pieces.append((head_at, _wide_head(self._field, position - start)))
        message = _allocate(None, position)
        if position == 0:
            return message, [{} for _ in places]
        view = _memory(_address(message), position, _PY_BUF_WRITE)
        for at, piece in pieces:
            view[at : at + len(piece)] = piece
        arrays = [
            {block.field: np.frombuffer(view, block.dtype, block.count, at) for at, block in table}
            for table in places
        ]
        return message, arrays


def build_pull(
    incarnation: int,
    tables: Sequence[tuple[str, bool, int] | tuple[str, bool, int, bool]],
    *,
    trainer: bytes = b"",
    round_number: int = 0,
) -> tuple[bytes, list[Keys]]:
    """Allocate a PullRequest.

    Args:
        incarnation: of the server that is meant, or 0.
        tables: for each table its name, whether to create rows, the number of keys, and whether
            shows and clicks are wanted too, False if left out.
        trainer: who asks, if it is one of a group.
        round_number: that it pulls for; 0: none.

    Returns:
        The message, and for each table the (U,) uint64 keys in it, for the caller to fill
        before the message is sent, and never after.
    """
    prefix = _fixed64(1, incarnation)
    if trainer:
        prefix += _head(6, len(trainer)) + trainer + _number(7, round_number)
    builder = _Builder(prefix, table_field=2)
    for name, create, count, *shown in tables:
        small = _name(name) + _number(2, int(create)) + _number(SHOWN, sum(shown))
        builder.add(small, _Block(BLOCK, count, _U64))
    message, arrays = builder.build()
    return message, [_filled(table, BLOCK, _U64) for table in arrays]


def build_pull_reply(
    tables: Sequence[tuple[int, int] | tuple[int, int, int]],
) -> tuple[bytes, list[TableRows]]:
    """Allocate a PullReply.

    Args:
        tables: for each table its version, the number of floats, and the number of shows and of
            clicks, 0 if left out.

    Returns:
        The message, and for each table the float32 arrays in it, for the caller to fill.
    """
    builder = _Builder(b"", table_field=1)
    for version, count, *shown in tables:
        blocks = (_Block(field, sum(shown), _F32) for field in (SHOWS, CLICKS))
        builder.add(_number(1, version), _Block(BLOCK, count, _F32), *blocks)
    message, arrays = builder.build()
    return message, [
        TableRows(size[0], *(_filled(table, field, _F32) for field in (BLOCK, SHOWS, CLICKS)))
        for size, table in zip(tables, arrays, strict=True)
    ]


def build_push(
    incarnation: int,
    push_id: PushId,
    tables: Sequence[TableSize],
    *,
    more: bool = False,
    stamp: Stamp | None = None,
    position: int = 0,
) -> tuple[bytes, list[TablePush]]:
    """Allocate a PushRequest.

    Args:
        incarnation: of the server that is meant, or 0.
        push_id: of this push on this shard.
        tables: for each table its name, its numbers of entries and its small fields.
        more: whether further parts of the same push follow.
        stamp: the round that it is a part of, if any.
        position: steps of the trainer's data up to this push; 0: not told.

    Returns:
        The message, and for each table the arrays in it, for the caller to fill.
    """
    prefix = _fixed64(1, incarnation) + _head(2, len(push_id.trainer)) + push_id.trainer
    prefix += _number(3, push_id.counter) + _number(4, int(more))
    if stamp is not None:
        prefix += _number(6, stamp.round) + _number(7, stamp.samples) + _number(8, stamp.messages)
    prefix += _number(9, position)
    builder = _Builder(prefix, table_field=5)
    for size in tables:
        builder.add(
            _name(size.table) + _number(2, size.dense_part) + _number(3, size.pulled),
            _Block(BLOCK, size.num_keys, _U64),
            _Block(VALUES, size.num_values, _F32),
            _Block(COUNTS, size.num_counts, _U32),
            _Block(SHOWS, size.num_shows, _F32),
            _Block(CLICKS, size.num_clicks, _F32),
            _Block(SLOTS, size.num_slots, _U32),
        )
    message, arrays = builder.build()
    return message, [
        TablePush(
            size.table,
            _filled(table, BLOCK, _U64),
            _filled(table, VALUES, _F32),
            _filled(table, COUNTS, _U32),
            size.dense_part,
            size.pulled,
            _filled(table, SHOWS, _F32),
            _filled(table, CLICKS, _F32),
            _filled(table, SLOTS, _U32),
        )
        for size, table in zip(tables, arrays, strict=True)
    ]


def _name(table: str) -> bytes:
    """Return the field that names a table."""
    encoded = table.encode()
    return _head(1, len(encoded)) + encoded


def _filled(arrays: Mapping[int, NDArray[Any]], field: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the block of a table to be filled, or an empty one where nothing was asked for."""
    return arrays[field] if field in arrays else np.empty(0, dtype)
