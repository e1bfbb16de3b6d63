"""What ``wire.fields`` promises: protobuf's layout, or ``ShapeError`` and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.errors import ShapeError
from pserver.wire.build import _varint
from pserver.wire.fields import read_fields, read_varint

EDGES = (0, 1, 127, 128, 16_383, 16_384, 2**21 - 1, 2**21, 2**32, 2**63, 2**64 - 1)


def fields(message: bytes) -> list[tuple[int, int | bytes]]:
    return [
        (field, value if isinstance(value, int) else bytes(value))
        for field, value in read_fields(memoryview(message))
    ]


@given(st.integers(0, 2**64 - 1) | st.sampled_from(EDGES), st.binary(max_size=5))
def test_a_varint_is_read_back_when_other_bytes_follow(number: int, rest: bytes) -> None:
    """Number and end are what was written; what follows is not touched."""
    encoded = _varint(number)

    assert read_varint(memoryview(b"x" + encoded + rest), 1) == (number, 1 + len(encoded))


@pytest.mark.parametrize("number", EDGES)
def test_a_varint_is_refused_when_it_is_cut(number: int) -> None:
    """Each proper beginning of a varint says that the message was cut."""
    encoded = _varint(number)
    for size in range(len(encoded)):
        with pytest.raises(ShapeError, match="ends inside a varint; it was cut"):
            read_varint(memoryview(encoded[:size]), 0)


def test_a_varint_is_read_when_it_is_longer_than_need_be() -> None:
    """Padding zeros are legal, up to ten bytes; bits beyond 64 are dropped as protobuf does."""
    assert read_varint(memoryview(b"\x81\x80\x80\x00"), 0) == (1, 4)
    assert read_varint(memoryview(b"\xff" * 9 + b"\x7f"), 0) == (2**64 - 1, 10)
    with pytest.raises(ShapeError, match="more than ten bytes"):
        read_varint(memoryview(b"\x80" * 10 + b"\x00"), 0)


def test_every_wire_type_in_use_is_read_when_it_comes() -> None:
    """Varints, fixed 64 and 32 bits, and bytes, with field numbers of one and two bytes."""
    message = b"\x08\x96\x01" + b"\x11" + b"\x01" + b"\0" * 6 + b"\x80"
    message += b"\x1d\x02\0\0\0" + b"\x22\x03abc" + b"\xaa\x06\x00"

    assert fields(message) == [(1, 150), (2, 2**63 + 1), (3, 2), (4, b"abc"), (101, b"")]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"\x00\x00", "field numbered 0"),
        (b"\x0b", "field 1 has wire type 3, which is not in use"),
        (b"\x0f\x00", "field 1 has wire type 7"),
        (b"\x0a\x05abc", "field 1 needs 5 bytes and 3 are left; the message was cut"),
        (b"\x09\x00", "field 1 needs 8 bytes and 1 are left"),
        (b"\x0d", "field 1 needs 4 bytes and 0 are left"),
        (b"\x0a" + _varint(2**63) + b"abc", "field 1 needs 9223372036854775808 bytes and 3 are"),
        (b"\x0a" + _varint(2**64 - 1), "field 1 needs 18446744073709551615 bytes and 0 are left"),
    ],
)
def test_a_message_is_refused_when_it_is_none(message: bytes, error: str) -> None:
    """The error names the field, what it needs and what is left; huge lengths are not believed."""
    with pytest.raises(ShapeError, match=error):
        fields(message)
