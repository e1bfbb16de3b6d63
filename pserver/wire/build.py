"""Arrays to bytes: messages allocated once at their full size and filled in place.

Rooms before and after: ``client`` asks for an empty message and its kernels write into the arrays
that stand in it; ``server.servicer`` does the same for the weights of a reply.
"""

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pserver.arrays import Floats, Keys
from pserver.wire.fields import BLOCK, BYTES, COUNTS, FIXED64, PAD, VALUES, VARINT
from pserver.wire.messages import PushId, Stamp, TablePush, TableSize

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

    def build(self) -> tuple[bytes, list[list[NDArray[Any]]]]:
        """Return the message and, for each table, the arrays that stand in it, to be filled."""
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
            return message, [[] for _ in places]
        view = _memory(_address(message), position, _PY_BUF_WRITE)
        for at, piece in pieces:
            view[at : at + len(piece)] = piece
        arrays = [
            [np.frombuffer(view, block.dtype, block.count, at) for at, block in table]
            for table in places
        ]
        return message, arrays


def build_pull(
    incarnation: int,
    tables: Sequence[tuple[str, bool, int]],
    *,
    trainer: bytes = b"",
    round_number: int = 0,
) -> tuple[bytes, list[Keys]]:
    """Allocate a PullRequest.

    Args:
        incarnation: of the server that is meant, or 0.
        tables: for each table its name, whether to create rows, and the number of keys.
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
    for name, create, count in tables:
        encoded = name.encode()
        small = _head(1, len(encoded)) + encoded + _number(2, int(create))
        builder.add(small, _Block(BLOCK, count, _U64))
    message, arrays = builder.build()
    return message, [_first(table, np.uint64) for table in arrays]


def build_pull_reply(tables: Sequence[tuple[int, int]]) -> tuple[bytes, list[Floats]]:
    """Allocate a PullReply.

    Args:
        tables: for each table its version and the number of floats.

    Returns:
        The message, and for each table the float32 weights in it, for the caller to fill.
    """
    builder = _Builder(b"", table_field=1)
    for version, count in tables:
        builder.add(_number(1, version), _Block(BLOCK, count, _F32))
    message, arrays = builder.build()
    return message, [_first(table, np.float32) for table in arrays]


def build_push(
    incarnation: int,
    push_id: PushId,
    tables: Sequence[TableSize],
    *,
    more: bool = False,
    stamp: Stamp | None = None,
) -> tuple[bytes, list[TablePush]]:
    """Allocate a PushRequest.

    Args:
        incarnation: of the server that is meant, or 0.
        push_id: of this push on this shard.
        tables: for each table its name, its numbers of entries and its small fields.
        more: whether further parts of the same push follow.
        stamp: the round that it is a part of, if any.

    Returns:
        The message, and for each table the arrays in it, for the caller to fill.
    """
    prefix = _fixed64(1, incarnation) + _head(2, len(push_id.trainer)) + push_id.trainer
    prefix += _number(3, push_id.counter) + _number(4, int(more))
    if stamp is not None:
        prefix += _number(6, stamp.round) + _number(7, stamp.samples) + _number(8, stamp.messages)
    builder = _Builder(prefix, table_field=5)
    for size in tables:
        encoded = size.table.encode()
        builder.add(
            _head(1, len(encoded))
            + encoded
            + _number(2, size.dense_part)
            + _number(3, size.pulled),
            _Block(BLOCK, size.num_keys, _U64),
            _Block(VALUES, size.num_values, _F32),
            _Block(COUNTS, size.num_counts, _U32),
        )
    message, arrays = builder.build()
    pushes = []
    for size, table in zip(tables, arrays, strict=True):
        blocks = iter(table)
        keys = next(blocks) if size.num_keys else np.empty(0, np.uint64)
        values = next(blocks) if size.num_values else np.empty(0, np.float32)
        counts = next(blocks) if size.num_counts else np.empty(0, np.uint32)
        pushes.append(TablePush(size.table, keys, values, counts, size.dense_part, size.pulled))
    return message, pushes


def _first(arrays: list[NDArray[Any]], dtype: DTypeLike) -> NDArray[Any]:
    """Return the one array of a table, or an empty one where nothing was asked for."""
    return arrays[0] if arrays else np.empty(0, dtype)
