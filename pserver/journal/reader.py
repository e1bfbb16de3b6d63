"""Reads a journal's records back, in order, and tells a torn end from damage.

Rooms before and after: ``writer`` looks at the end of a journal before it goes on; ``server.recovery``
replays; ``pserver journal`` shows.

What always holds: every record that is yielded follows the one before; a record that is missing or
damaged before the end is an error that names file and offset, never passed over.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pserver.errors import JournalError
from pserver.journal.folder import named, segment_path, segments
from pserver.journal.records import (
    FORMAT,
    HEAD_BYTES,
    Head,
    Record,
    checksum_at,
    decode_head,
    later_record,
    record_length,
    records_of,
)


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a journal.

    Attributes:
        path: of the file.
        head: that it begins with.
        bytes: of the file.
    """

    path: Path
    head: Head
    bytes: int


def list_segments(folder: Path) -> list[Segment]:
    """Return a journal's segments; a last one whose head was never written whole is left out.

    Raises:
        JournalError: a head is damaged, of another journal, or of a newer format.
    """
    listed = segments(folder)
    found: list[Segment] = []
    for number, (first, path) in enumerate(listed):
        with named(path, "read"), path.open("rb") as file:
            data = file.read(HEAD_BYTES)
            size = path.stat().st_size
        head = decode_head(data)
        if head is None:
            if number == len(listed) - 1 and size <= HEAD_BYTES:
                break
            raise JournalError(f"{path}: damaged at offset 0: no segment of a journal begins so")
        if head.format != FORMAT:
            raise JournalError(
                f"{path}: has format {head.format}, this release reads {FORMAT}; take a newer one"
            )
        if head.first != first or (found and head.journal != found[-1].head.journal):
            raise JournalError(f"{path}: holds another segment than its name says; was it renamed?")
        found.append(Segment(path, head, size))
    return found


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a journal.

    Attributes:
        position: sequence of the last whole record.
        end: of it, in the last segment.
        torn: bytes behind it.
    """

    position: int
    end: int
    torn: int


def find_tail(segment: Segment) -> Tail:
    """Return where the last segment of a journal ends.

    Raises:
        JournalError: there are whole records behind a damaged one.
    """
    with named(segment.path, "read"):
        data = segment.path.read_bytes()
    position, end = segment.head.first - 1, HEAD_BYTES
    for record in records_of(data, first=segment.head.first):
        position, end = record.sequence, record.end
    later = later_record(data, end, sequence=position + 1)
    if later is not None:
        raise JournalError(
            f"{segment.path}: damaged at offset {end}: record {position + 1} should be there, and "
            f"record {later.sequence} follows at offset {later.offset}; start with another journal "
            "folder and a checkpoint that is new enough"
        )
    return Tail(position, end, len(data) - end)


class Cursor:
    """Reads on where it stopped, so that the end of a journal is read without what is before it.

    Attributes:
        after: the record that was read last.
    """

    def __init__(self, folder: Path) -> None:
        """Begin nowhere: the first read looks for its place."""
        self._folder = folder
        self.after = -1
        self._checksum = 0
        self._path, self._offset = folder, 0

    def read(self, *, after: int, until: int, size: int, checksum: int) -> bytes | None:
        """Return the bytes of whole records behind a position.

        Args:
            after: sequence before the first one.
            until: sequence of the last one at most.
            size: bytes, about.
            checksum: of record ``after``, as the reader has it; 0: not known.

        Returns:
            One record at least, if there is one; None if record ``after`` is another one.

        Raises:
            JournalError: a record is missing or damaged.
        """
        if after != self.after:
            self._find(after)
        if checksum and self._checksum and checksum != self._checksum:
            return None
        found: list[bytes] = []
        found_bytes = 0
        while self.after < until and found_bytes < size:
            data = self._block(size)
            offset = 0
            for record in records_of(data, first=self.after + 1, offset=0):
                if record.sequence > until or (found and found_bytes + record.end - offset > size):
                    return b"".join(found)
                found.append(data[offset : record.end])
                found_bytes += record.end - offset
                offset = record.end
                self.after, self._checksum = record.sequence, checksum_at(data, record.offset)
                self._offset += len(found[-1])
            if not offset:
                self._next_segment()
        return b"".join(found)

    def _block(self, size: int) -> bytes:
        """Return bytes from the place on: a whole record at least, if one is there."""
        with named(self._path, "read"), self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(size)
            length = record_length(data)
            return data if length <= len(data) else data + file.read(length - len(data))

    def _find(self, after: int) -> None:
        """Go behind a record."""
        self.after, self._checksum = after, 0
        for segment in reversed(list_segments(self._folder)):
            if segment.head.first <= after + 1:
                break
        else:
            raise JournalError(f"{self._folder}: record {after + 1} is not there any more")
        self._path, self._offset = segment.path, HEAD_BYTES
        with named(segment.path, "read"):
            data = segment.path.read_bytes()
        for record in records_of(data, first=segment.head.first):
            if record.sequence > after:
                break
            self._offset, self._checksum = record.end, checksum_at(data, record.offset)

    def _next_segment(self) -> None:
        """Go to the segment that begins with the next record."""
        path = segment_path(self._folder, self.after + 1)
        if path == self._path or not path.is_file():
            raise JournalError(
                f"{self._path}: damaged at offset {self._offset}: record {self.after + 1} should be there"
            )
        self._path, self._offset = path, HEAD_BYTES


def read_records(folder: Path, *, after: int, until: int | None = None) -> Iterator[Record]:
    """Yield the records behind a position.

    Args:
        folder: of the journal.
        after: sequence before the first one.
        until: sequence of the last one; None for all, up to a torn end.

    Raises:
        JournalError: one is missing or damaged.
    """
    listed = list_segments(folder)
    behind = after + 1
    if listed and listed[0].head.first > behind:
        raise JournalError(
            f"{folder}: the first record there is {listed[0].head.first}, and {behind} is needed; "
            "load a checkpoint that covers what is not there"
        )
    for number, segment in enumerate(listed):
        is_last = number == len(listed) - 1
        next_first = None if is_last else listed[number + 1].head.first
        if next_first is not None and next_first <= behind:
            continue
        position, end = segment.head.first - 1, HEAD_BYTES
        with named(segment.path, "read"):
            data = segment.path.read_bytes()
        for record in records_of(data, first=segment.head.first):
            if until is not None and record.sequence > until:
                return
            position, end = record.sequence, record.end
            if record.sequence >= behind:
                yield record
        if next_first is not None and (next_first != position + 1 or end != len(data)):
            raise JournalError(
                f"{segment.path}: damaged at offset {end}: record {position + 1} should be there, "
                f"and the next segment begins with record {next_first}"
            )
        if is_last and until is None:
            find_tail(segment)  # which tells a torn end from damage
        if is_last and until is not None and position < until:
            raise JournalError(
                f"{segment.path}: damaged at offset {end}: record {position + 1} should be there, "
                f"up to {until}"
            )
