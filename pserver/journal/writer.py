"""The journal of a running shard: appends records, begins segments, drops those that nobody needs.

Rooms before and after: ``server.recording`` appends before a request is applied; ``commit`` makes it
durable; ``reader`` finds it again.

What always holds:
    * One process writes a folder, for one shard of one cluster.
    * A record is in the file whole or not at all: what could not be written is cut off again, and the
      caller is told before anything was applied.
    * A torn end is cut when the journal is opened, and damage before it is refused.
Owner: whoever has the turn on the shard's tables.

Cost: a checksum (10 GB/s) and one ``pwritev`` of head and body; bodies are not copied on our side.
"""

import itertools
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from pserver.errors import ConfigError, JournalError, StorageError
from pserver.journal.commit import Commit
from pserver.journal.folder import (
    Fsync,
    State,
    boot_id,
    lock,
    named,
    read_state,
    segment_path,
    segments,
    sync_folder,
    write_state,
)
from pserver.journal.reader import Cursor, Segment, find_tail, list_segments, read_records
from pserver.journal.records import HEAD_BYTES, Head, Record, record_head

log = structlog.get_logger(__name__)

SEGMENT_BYTES = 64 << 20
"""A segment that is larger is followed by another one: what is dropped at once, and read at once."""

_WHERE = "--journal"  # what errors name


@dataclass(frozen=True, slots=True)
class Begun:
    """How a journal begins where there is none.

    Attributes:
        incarnation: of the shard.
        number: of the journal; 0 draws one.
        after: the record before the first one: of a standby's, what its checkpoint covers.
    """

    incarnation: int = 1
    number: int = 0
    after: int = 0


class Journal:
    """An open journal.

    Attributes:
        number: drawn when it was begun; names it in checkpoints.
        incarnation: of the shard; written into new segments. Set by the owner when it changes.
        begun_by: the incarnation of the shard at the first record that is here.
        position: sequence of the last record; 0 before the first.
        may_have_lost: whether acknowledged records may be missing at its end.
        opened_at: sequence of the last record that was there when it was opened, and synced then.
    """

    def __init__(
        self,
        folder: Path,
        *,
        shard: int = 0,
        num_shards: int = 1,
        begun: Begun | None = None,
        fsync: Fsync = "interval",
        interval_s: float = 0.1,
    ) -> None:
        """Open a journal, or begin one.

        Args:
            folder: of it; made if need be.
            shard: whose it is.
            num_shards: of the cluster.
            begun: how it begins where there is none.
            fsync: when records are durable, see ``commit``.
            interval_s: of ``interval``.

        Raises:
            ConfigError: the folder cannot be written, another process has it, or it is the journal of
                another shard.
            JournalError: it is damaged before its end.
        """
        self._folder, self._fsync = folder, fsync
        self._shard, self._num_shards = shard, num_shards
        self._begun = begun or Begun()
        self.incarnation = self._begun.incarnation
        self._failure = ""
        self._has_begun = False
        self._end = self._last_end = 0
        self._lock = lock(folder, where=_WHERE)
        try:
            self._commit = Commit(fsync, interval_s, on_failure=self._fail)
            self._open()
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def where(self) -> str:
        """Return the folder."""
        return str(self._folder)

    @property
    def first(self) -> int:
        """Return the sequence of the first record that is here, or would be."""
        listed = segments(self._folder)
        return listed[0][0] if listed else self.position + 1

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all segments."""
        return sum(path.stat().st_size for _, path in segments(self._folder))

    @property
    def synced(self) -> int:
        """Return the last position that is known to be durable."""
        return self._commit.synced

    @property
    def syncs(self) -> int:
        """Return how often this process synced it."""
        return self._commit.syncs

    @property
    def sync_s(self) -> float:
        """Return the seconds that this took."""
        return self._commit.sync_s

    def begin(self) -> None:
        """Say in the folder that this process writes it, and what it promises.

        Until then the folder says how the last process left it, so a start that fails before the
        shard is back forgets nothing of that.

        Raises:
            JournalError: the system refused.
        """
        write_state(self._folder, State("open", self._fsync, boot_id()))
        self._has_begun = True

    def append(self, kind: int, body: bytes) -> None:
        """Write a record behind the last one. It counts once ``settle`` was called.

        Raises:
            StorageError: the system refused; the journal is as before.
        """
        if self._failure:
            raise StorageError(self._failure)
        if self._end >= SEGMENT_BYTES:
            self._begin_segment()
        head = record_head(self.position + 1, kind, body)
        self._write(head, body)
        self._last_end = self._end
        self._end += len(head) + len(body)
        self.position += 1

    def take_back(self) -> None:
        """Remove the record that was appended last: what it was for did not happen."""
        self.position -= 1
        self._end = self._last_end
        self._cut()

    def settle(self) -> None:
        """Let what was appended count: it will be synced, and is no longer taken back."""
        self._settled = self.position
        self._commit.wrote(self.position)

    @property
    def told(self) -> int:
        """Return the last record that others may hear of: with ``always``, that is on the disk."""
        if self._fsync == "always":
            return min(self._settled, max(self._commit.synced, self.opened_at))
        return self._settled

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Call something, in any thread, whenever ``told`` rises; None: no more."""
        self._commit.listener = listener

    def cursor(self) -> Cursor:
        """Return what reads the end of the journal while it grows."""
        return Cursor(self._folder)

    async def durable(self, position: int) -> None:
        """Return once records up to a position are as durable as was promised; see ``Commit``."""
        await self._commit.durable(position)

    def skip_to(self, position: int) -> None:
        """Go on behind a later record than the last one here: a checkpoint covers those between.

        Raises:
            StorageError, JournalError: the system refused.
        """
        self.position = self._settled = self.opened_at = position
        self._begin_segment()
        self.drop_covered(position)

    def read(self, *, after: int) -> Iterator[Record]:
        """Yield the records behind a position, up to the last one of now.

        Raises:
            JournalError: one is missing or damaged.
        """
        return read_records(self._folder, after=after, until=self.position)

    def drop_covered(self, position: int) -> int:
        """Remove segments whose records all lie at or before a position; return how many.

        The segment that is written to stays.

        Raises:
            JournalError: the system refused.
        """
        listed = segments(self._folder)
        covered = [
            path
            for (_, path), (next_first, _) in itertools.pairwise(listed)
            if next_first <= position + 1
        ]
        for path in covered:
            with named(path, "remove"):
                path.unlink()
        return len(covered)

    def close(self) -> None:
        """Sync all of it, say that it was closed, and let the folder go."""
        if self._commit.close() and self._has_begun and not self._failure:
            write_state(self._folder, State("closed", self._fsync, boot_id()))
        os.close(self._lock)

    # --- opening ------------------------------------------------------------------------------

    def _open(self) -> None:
        """Read what is there, and cut a torn end."""
        listed = list_segments(self._folder)
        whole = {segment.path for segment in listed}
        for _, path in segments(self._folder):
            if path not in whole:
                log.warning("cut a segment that was never begun whole", file=str(path))
                path.unlink()
        self.number = self._begun.number or secrets.randbits(63) | 1
        self.begun_by = listed[0].head.incarnation if listed else self.incarnation
        self.position = self._settled = self._begun.after
        self.opened_at = self.position  # what was there then is synced
        self.may_have_lost = False
        if not listed:
            self._begin_segment()
            return
        self._check_owner(listed[-1])
        self.number = listed[0].head.journal
        self._sync_all(listed)
        state = read_state(self._folder)
        self.may_have_lost = state is None or state.may_have_lost(boot_id())
        self._go_on(listed[-1])  # last: its file and the thread that syncs it need a ``close``

    def _sync_all(self, listed: Sequence[Segment]) -> None:
        """Keep the promises of the process before: what it wrote may not be on the disk yet."""
        for segment in listed:
            with named(segment.path, "sync"), segment.path.open("rb") as file:
                os.fdatasync(file.fileno())

    def _check_owner(self, segment: Segment) -> None:
        """Refuse the journal of another shard."""
        head = segment.head
        if (head.shard, head.num_shards) != (self._shard, self._num_shards):
            raise ConfigError(
                f"{_WHERE} {self._folder}: is the journal of shard {head.shard} of "
                f"{head.num_shards}, and this is shard {self._shard} of {self._num_shards}; each "
                "shard needs the folder that it had"
            )

    def _go_on(self, segment: Segment) -> None:
        """Write behind the last whole record; cut what was not written whole."""
        tail = find_tail(segment)
        if tail.torn:
            log.warning(
                "cut the torn end of the journal",
                file=str(segment.path),
                offset=tail.end,
                bytes=tail.torn,
                last=tail.position,
            )
        with named(segment.path, "write"):
            file = os.open(segment.path, os.O_WRONLY)
            os.ftruncate(file, tail.end)
        self.position = self._settled = self.opened_at = tail.position
        self._use(file, segment.path, tail.end)

    # --- writing ------------------------------------------------------------------------------

    def _begin_segment(self) -> None:
        """Write to a new file from now on.

        Raises:
            StorageError: the system refused; the file before is written to as before.
        """
        head = Head(
            self._shard, self._num_shards, self.number, self.incarnation, self.position + 1
        ).encode()
        path = segment_path(self._folder, self.position + 1)
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        except OSError as error:
            raise StorageError(f"{path}: no new segment: {error}; nothing was applied") from error
        try:
            if os.pwrite(file, head, 0) != HEAD_BYTES:
                raise OSError("no room for its head")
            if self._fsync == "always":
                sync_folder(self._folder)
        except OSError as error:
            os.close(file)
            path.unlink()
            raise StorageError(f"{path}: no new segment: {error}; nothing was applied") from error
        self._use(file, path, HEAD_BYTES)

    def _use(self, file: int, path: Path, end: int) -> None:
        """Append to a file."""
        self._file, self._path = file, path
        self._end = self._last_end = end
        self._commit.begin_segment(file)

    def _write(self, head: bytes, body: bytes) -> None:
        """Write a record at the end, or leave the file as it was."""
        total, done = len(head) + len(body), 0
        try:
            done = os.pwritev(self._file, (head, body), self._end)
            while done < total:  # rare: the disk is nearly full, or a signal came
                rest = (head + body)[done:]
                done += os.pwrite(self._file, rest, self._end + done)
        except OSError as error:
            self._cut()
            raise StorageError(
                f"{self._path}: cannot be written ({error}); nothing was applied, and writes go on "
                "when there is room"
            ) from error

    def _cut(self) -> None:
        """Cut the file behind the last record."""
        try:
            os.ftruncate(self._file, self._end)
        except OSError as error:
            self._fail(f"{self._path}: its end could not be cut ({error}); restart this server")

    def _fail(self, why: str) -> None:
        """Take no more records, and say in the folder that some may be lost."""
        self._failure = self._failure or why
        try:
            write_state(self._folder, State("failed", self._fsync, boot_id()))
        except JournalError as error:
            hint = "see to its disk, then restart this server"
            log.error("the journal's state could not be written", reason=str(error), hint=hint)
