"""Records and segment heads: bytes of a journal's files, and back.

Rooms before and after: ``writer`` appends what is built here, ``reader`` finds it again.

A segment is a head of ``HEAD_BYTES`` and then records one after the other. All numbers are little-endian.

    =======  ==============================================================================
    head     ``PSJOURN1``; uint32 format, shard, num_shards, 0; uint64 journal, incarnation,
             sequence of the first record; uint64 XXH3 of the 48 bytes before
    record   ``PSR1``; uint16 kind, uint16 0, uint32 bytes of the body; uint64 sequence;
             uint64 XXH3 of the 20 bytes before and the body; the body
    =======  ==============================================================================

What always holds: a record is taken for one only if its checksum fits and its sequence is the next.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

from pserver.config import MESSAGE_BYTES_MAX

FORMAT = 1
"""The number of this format."""

BODY_BYTES_MAX = 16 * MESSAGE_BYTES_MAX
"""A longer body is no record. A message has at most ``MESSAGE_BYTES_MAX``; embedded shards set no limit."""

HEAD_BYTES = 56
RECORD_BYTES = 28
"""Bytes of a record beside its body."""

_SEGMENT_MAGIC = b"PSJOURN1"
_RECORD_MAGIC = b"PSR1"
_SEGMENT = struct.Struct("<8sIIIIQQQ")
_RECORD = struct.Struct("<4sHHIQ")
_CHECKSUM = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Head:
    """What a segment says of itself.

    Attributes:
        format: ``FORMAT`` of who wrote it.
        shard, num_shards: whose it is.
        journal: a number drawn when the journal was begun.
        incarnation: of the shard when the segment was begun.
        first: sequence of its first record.
    """

    shard: int
    num_shards: int
    journal: int
    incarnation: int
    first: int
    format: int = FORMAT

    def encode(self) -> bytes:
        """Return the bytes that a segment begins with."""
        plain = _SEGMENT.pack(
            _SEGMENT_MAGIC,
            self.format,
            self.shard,
            self.num_shards,
            0,
            self.journal,
            self.incarnation,
            self.first,
        )
        return plain + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(plain))


def decode_head(data: bytes) -> Head | None:
    """Return the head that bytes begin with, or None if it is cut or damaged."""
    if len(data) < HEAD_BYTES:
        return None
    plain = data[: _SEGMENT.size]
    (checksum,) = _CHECKSUM.unpack_from(data, _SEGMENT.size)
    magic, number, shard, num_shards, _, journal, incarnation, first = _SEGMENT.unpack(plain)
    if magic != _SEGMENT_MAGIC or checksum != xxhash.xxh3_64_intdigest(plain):
        return None
    return Head(shard, num_shards, journal, incarnation, first, number)


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that changed the shard's state.

    Attributes:
        sequence: 1 and up, rising by one.
        kind: what it is, see ``server.methods``.
        body: its bytes.
        offset: where it begins in its segment.
    """

    sequence: int
    kind: int
    body: bytes
    offset: int

    @property
    def end(self) -> int:
        """Return where the next record begins."""
        return self.offset + RECORD_BYTES + len(self.body)


def record_head(sequence: int, kind: int, body: bytes) -> bytes:
    """Return the bytes that go before a body.

    >>> len(record_head(1, 2, b"xyz")) == RECORD_BYTES
    True
    """
    plain = _RECORD.pack(_RECORD_MAGIC, kind, 0, len(body), sequence)
    digest = xxhash.xxh3_64(plain)
    digest.update(body)
    return plain + _CHECKSUM.pack(digest.intdigest())


def record_length(data: bytes) -> int:
    """Return the bytes of the record that some bytes begin with, as its head says; 0 if cut."""
    if len(data) < RECORD_BYTES:
        return 0
    length: int = _RECORD.unpack_from(data)[3]
    return RECORD_BYTES + length if length <= BODY_BYTES_MAX else 0


def decode_record(data: bytes, offset: int) -> Record | None:
    """Return the record at an offset, or None if it is cut or damaged."""
    behind = offset + RECORD_BYTES
    if behind > len(data):
        return None
    magic, kind, _, length, sequence = _RECORD.unpack_from(data, offset)
    if magic != _RECORD_MAGIC or length > BODY_BYTES_MAX or behind + length > len(data):
        return None
    body = data[behind : behind + length]
    (checksum,) = _CHECKSUM.unpack_from(data, offset + _RECORD.size)
    digest = xxhash.xxh3_64(data[offset : offset + _RECORD.size])
    digest.update(body)
    return Record(sequence, kind, body, offset) if digest.intdigest() == checksum else None


def records_of(data: bytes, *, first: int, offset: int = HEAD_BYTES) -> Iterator[Record]:
    """Yield records until one is cut, damaged, or not the next.

    Args:
        data: of a segment.
        first: sequence that the first one must have.
        offset: where it begins.
    """
    sequence = first
    while (record := decode_record(data, offset)) is not None and record.sequence == sequence:
        yield record
        offset, sequence = record.end, sequence + 1


def records_in(data: bytes, *, first: int) -> Iterator[Record]:
    """Yield records that follow each other without a segment's head, as a feed has them."""
    return records_of(data, first=first, offset=0)


def checksum_at(data: bytes, offset: int) -> int:
    """Return the checksum of the record at an offset."""
    number: int = _CHECKSUM.unpack_from(data, offset + _RECORD.size)[0]
    return number


def later_record(data: bytes, offset: int, *, sequence: int) -> Record | None:
    """Return a whole record behind a damaged one, or None: then what is damaged is the end.

    Args:
        data: of a segment.
        offset: of the damage.
        sequence: that should be there.
    """
    while (offset := data.find(_RECORD_MAGIC, offset + 1)) >= 0:
        record = decode_record(data, offset)
        if record is not None and record.sequence > sequence:
            return record
    return None
