"""What ``pserver.journal.records`` promises: bytes to records and back, and nothing else for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.journal.records import (
    HEAD_BYTES,
    RECORD_BYTES,
    Head,
    decode_head,
    decode_record,
    later_record,
    record_head,
    records_of,
)

HEAD = Head(shard=1, num_shards=3, journal=2**63 - 1, incarnation=7, first=5)
BODIES = [b"", b"a", b"bc" * 40]


def written(bodies: list[bytes] = BODIES, *, first: int = 5) -> bytes:
    """Return a segment with some records."""
    records = [record_head(first + i, 3, body) + body for i, body in enumerate(bodies)]
    return HEAD.encode() + b"".join(records)


def test_head_comes_back() -> None:
    """A segment's head has the same fields when it is read."""
    assert len(HEAD.encode()) == HEAD_BYTES
    assert decode_head(HEAD.encode() + b"more") == HEAD


@given(st.integers(0, HEAD_BYTES - 1), st.integers(1, 255))
def test_damaged_head_is_none(at: int, change: int) -> None:
    """A head with any byte changed, or cut anywhere, is no head."""
    data = bytearray(HEAD.encode())
    data[at] ^= change

    assert decode_head(bytes(data)) is None
    assert decode_head(HEAD.encode()[:at]) is None


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_records_come_back(bodies: list[bytes]) -> None:
    """Records have their bodies, sequences and offsets when they are read."""
    found = list(records_of(written(bodies), first=5))

    assert [record.body for record in found] == bodies
    assert [record.sequence for record in found] == list(range(5, 5 + len(bodies)))
    assert all(record.kind == 3 for record in found)
    offsets = [HEAD_BYTES, *(record.end for record in found)]
    assert offsets[:-1] == [record.offset for record in found]


def test_cut_anywhere_yields_the_whole_records_before() -> None:
    """At every length of a segment, exactly the records that are whole in it are found."""
    data = written()
    ends = [record.end for record in records_of(data, first=5)]

    for length in range(HEAD_BYTES, len(data) + 1):
        found = list(records_of(data[:length], first=5))
        assert len(found) == sum(end <= length for end in ends)


@given(st.integers(HEAD_BYTES, len(written()) - 1), st.integers(1, 255))
def test_damaged_byte_ends_the_records_before_it(at: int, change: int) -> None:
    """A record with any byte changed is not taken for one, and later ones are seen behind it."""
    data = bytearray(written())
    ends = [record.end for record in records_of(bytes(data), first=5)]
    data[at] ^= change

    found = list(records_of(bytes(data), first=5))

    assert len(found) == sum(end <= at for end in ends)
    later = later_record(
        bytes(data), found[-1].end if found else HEAD_BYTES, sequence=5 + len(found)
    )
    assert (later is None) == (at >= ends[-2])


def test_record_of_another_place_ends_the_records() -> None:
    """A whole record whose sequence is not the next is not passed on."""
    data = written(BODIES[:1]) + record_head(9, 3, b"x") + b"x"

    assert [record.sequence for record in records_of(data, first=5)] == [5]


@pytest.mark.parametrize("length", [2**32 - 1, 2**27])
def test_absurd_length_is_no_record(length: int) -> None:
    """A length over the limit is damage, whatever follows."""
    data = bytearray(written())
    data[HEAD_BYTES + 8 : HEAD_BYTES + 12] = length.to_bytes(4, "little")

    assert decode_record(bytes(data), HEAD_BYTES) is None
    assert RECORD_BYTES == 28
