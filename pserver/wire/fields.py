"""The field numbers of the large messages, and how protobuf lays bytes out.

Rooms before and after: ``build`` writes fields, ``parse`` reads them.
"""

from collections.abc import Iterator

from pserver.errors import ShapeError

VARINT, FIXED64, BYTES = 0, 1, 2
"""Protobuf's wire types that occur here."""

PAD, BLOCK, VALUES, COUNTS = 12, 13, 14, 15
"""Fields of a table: filling, keys or weights, gradients or weights, occurrences."""

SHOWS, CLICKS, SLOTS = 16, 17, 18
"""Further fields of a table, in pushes and, the first two, in answers to a pull."""

SHOWN = 17
"""Field of a pull of one table: whether shows and clicks are asked for."""

_FIXED32 = 5


def read_varint(message: memoryview, position: int) -> tuple[int, int]:
    """Return the varint at a position, and the position behind it.

    Raises:
        ShapeError: the bytes end inside it, or it is longer than ten bytes.
    """
    number = 0
    for i in range(10):
        if position + i >= len(message):
            raise ShapeError("message ends inside a varint; it was cut")
        byte = message[position + i]
        number |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return number & 0xFFFFFFFFFFFFFFFF, position + i + 1
    raise ShapeError("message holds a varint of more than ten bytes")


def read_fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield each field's number with its value: an int, or a view of its bytes.

    Raises:
        ShapeError: the bytes are not a protobuf message.
    """
    position, end = 0, len(message)
    while position < end:
        tag = message[position]
        position += 1
        if tag > 0x7F:  # rare: our own fields have tags of one byte
            tag, position = read_varint(message, position - 1)
        field, kind = tag >> 3, tag & 7
        if field == 0:
            raise ShapeError("message holds a field numbered 0")
        if kind == VARINT:
            number, position = read_varint(message, position)
            yield field, number
            continue
        if kind == BYTES:
            size, position = read_varint(message, position)
        elif kind == FIXED64:
            size = 8
        elif kind == _FIXED32:
            size = 4
        else:
            raise ShapeError(f"field {field} has wire type {kind}, which is not in use")
        if position + size > end:
            raise ShapeError(
                f"field {field} needs {size} bytes and {end - position} are left; "
                "the message was cut"
            )
        value = message[position : position + size]
        position += size
        yield field, value if kind == BYTES else int.from_bytes(value, "little")
