"""Bytes to arrays: views of what came, checked for shape.

Rooms before and after: ``client.channel`` or gRPC bring the bytes; ``server.servicer`` and
``client`` read the views. A view keeps its message alive and must not be written to.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pserver.errors import ShapeError
from pserver.wire.fields import BLOCK, CLICKS, COUNTS, SHOWN, SHOWS, SLOTS, VALUES, read_fields
from pserver.wire.messages import (
    TRAINER_BYTES,
    PullRequest,
    PushId,
    PushRequest,
    Stamp,
    TablePull,
    TablePush,
    TableRows,
)

_Fields = dict[int, int | memoryview]

_Kind = type[np.uint64] | type[np.float32] | type[np.uint32]

_SAID: Sequence[tuple[str, int, _Kind]] = (
    ("counts", COUNTS, np.uint32),
    ("shows", SHOWS, np.float32),
    ("clicks", CLICKS, np.float32),
    ("slots", SLOTS, np.uint32),
)
"""What a push may say of its keys, each a block of that field."""

_NOTHING: Mapping[_Kind, NDArray[Any]] = {
    kind: np.frombuffer(b"", kind) for kind in (np.uint64, np.float32, np.uint32)
}
"""What stands for a block that was left out: most of them are, and to make an array takes its time."""


def _read_message(message: memoryview, table_field: int) -> tuple[_Fields, list[_Fields]]:
    """Return the small fields of a message and the fields of each of its tables."""
    small: _Fields = {}
    tables: list[_Fields] = []
    for field, value in read_fields(message):
        if field == table_field:
            tables.append(dict(read_fields(_bytes(value, field))))
        else:
            small[field] = value
    return small, tables


def _bytes(value: int | memoryview, field: int) -> memoryview:
    """Return a field that must be bytes."""
    if isinstance(value, int):
        raise ShapeError(f"field {field} must be bytes, got a number")
    return value


def _number(fields: _Fields, field: int) -> int:
    """Return a field that must be a number; 0 where it was left out."""
    value = fields.get(field, 0)
    if not isinstance(value, int):
        raise ShapeError(f"field {field} must be a number, got {len(value)} bytes")
    return value


def _text(fields: _Fields, field: int) -> str:
    """Return a field that must be UTF-8 text; empty where it was left out."""
    try:
        return bytes(_bytes(fields.get(field, memoryview(b"")), field)).decode()
    except UnicodeDecodeError as error:
        raise ShapeError(f"field {field} must be UTF-8 text: {error}") from error


def _array(fields: _Fields, field: int, kind: _Kind, what: str, table: str = "") -> NDArray[Any]:
    """Return a block as a read-only array, in place if it is aligned; ``what`` of ``table`` is for errors."""
    if field not in fields:
        return _NOTHING[kind]
    block = _bytes(fields[field], field)
    array: NDArray[Any] = np.frombuffer(block, kind, len(block) // _NOTHING[kind].itemsize)
    if array.nbytes != len(block):
        of = f" of table {table!r}" if table else ""
        raise ShapeError(
            f"{what}{of} must be a multiple of {array.itemsize} bytes, got {len(block)}"
        )
    if not array.flags.aligned:
        array = array.copy()
        array.flags.writeable = False
    return array


def parse_pull(message: bytes) -> PullRequest:
    """Read a PullRequest.

    Raises:
        ShapeError: the bytes are not one.
    """
    small, tables = _read_message(memoryview(message), table_field=2)
    return PullRequest(
        _number(small, 1),
        [
            TablePull(
                _text(table, 1),
                bool(_number(table, 2)),
                _array(table, BLOCK, np.uint64, "keys"),
                bool(_number(table, SHOWN)),
            )
            for table in tables
        ],
        _trainer(small, 6) if 6 in small else b"",
        _number(small, 7),
    )


def _trainer(fields: _Fields, field: int) -> bytes:
    """Return a trainer's uuid."""
    trainer = bytes(_bytes(fields.get(field, memoryview(b"")), field))
    if len(trainer) != TRAINER_BYTES:
        raise ShapeError(f"trainer must be {TRAINER_BYTES} bytes, got {len(trainer)}")
    return trainer


def parse_pull_reply(message: bytes) -> list[TableRows]:
    """Read a PullReply.

    Raises:
        ShapeError: the bytes are not one.
    """
    _, tables = _read_message(memoryview(message), table_field=1)
    return [
        TableRows(
            _number(table, 1),
            _array(table, BLOCK, np.float32, "weights"),
            _array(table, SHOWS, np.float32, "shows"),
            _array(table, CLICKS, np.float32, "clicks"),
        )
        for table in tables
    ]


def parse_push(message: bytes) -> PushRequest:
    """Read a PushRequest.

    Raises:
        ShapeError: the bytes are not one, or what it says of its keys does not fit them.
    """
    small, tables = _read_message(memoryview(message), table_field=5)
    push_id = PushId(_trainer(small, 2), _number(small, 3))
    stamp = None
    if 6 in small:
        stamp = Stamp(_number(small, 6), _number(small, 7), _number(small, 8))
        if not (stamp.round and stamp.messages):
            raise ShapeError("a part of a round must name the round and its number of messages")
    return PushRequest(
        _number(small, 1),
        push_id,
        bool(_number(small, 4)),
        [_table_push(table) for table in tables],
        stamp,
        _number(small, 9),
    )


def _table_push(fields: _Fields) -> TablePush:
    """Read the part of a push for one table."""
    name = _text(fields, 1)
    keys = _array(fields, BLOCK, np.uint64, "keys", name)
    values = _array(fields, VALUES, np.float32, "values", name)
    said = []
    for what, field, kind in _SAID:
        array = _array(fields, field, kind, what, name)
        if array.size not in (0, keys.size):
            raise ShapeError(f"table {name!r}: {keys.size} keys came with {array.size} {what}")
        said.append(array)
    numbers = (_number(fields, 2), _number(fields, 3))
    return TablePush(name, keys, values, said[0], *numbers, *said[1:])
