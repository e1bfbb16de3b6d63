"""What ``pserver.journal.writer`` promises: order, torn ends, damage, full disks, owners."""

import asyncio
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pserver.errors import ConfigError, JournalError, StorageError
from pserver.journal import writer
from pserver.journal.folder import State, read_state, segments, write_state
from pserver.journal.records import HEAD_BYTES, RECORD_BYTES
from pserver.journal.writer import Journal

BODIES = [b"one", b"", b"three" * 10, b"4"]


def write(folder: Path, bodies: list[bytes] = BODIES, **options: object) -> None:
    """Append records to a journal and close it."""
    journal = Journal(folder, **options)  # type: ignore[arg-type]
    for body in bodies:
        journal.append(2, body)
        journal.settle()
    journal.close()


def bodies_of(folder: Path, *, after: int = 0) -> list[bytes]:
    """Return the bodies that an opened journal yields."""
    journal = Journal(folder)
    try:
        return [record.body for record in journal.read(after=after)]
    finally:
        journal.close()


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """Let no file of this process grow over a size: the system refuses, as a full disk does."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize("fsync", ["always", "interval", "off"])
def test_records_are_there_when_it_is_opened_again(tmp_path: Path, fsync: str) -> None:
    """What was appended comes back in order, over several openings, from any position."""
    write(tmp_path, fsync=fsync)
    write(tmp_path, [b"five"], fsync=fsync)

    assert bodies_of(tmp_path) == [*BODIES, b"five"]
    assert bodies_of(tmp_path, after=3) == [b"4", b"five"]


def test_segments_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment over its size is followed by one named by its first record; all are read as one."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES", 200)
    bodies = [bytes([i]) * 30 for i in range(10)]

    write(tmp_path, bodies)

    assert [first for first, _ in segments(tmp_path)] == [1, 4, 7, 10]
    for after in range(11):
        assert bodies_of(tmp_path, after=after) == bodies[after:]


def test_torn_end_is_cut_at_every_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut anywhere, a journal has the records that are whole, and takes the next one behind them."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # 600 of them take 20 s and prove nothing here
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    write(tmp_path / "whole")
    ((_, path),) = segments(tmp_path / "whole")
    data = path.read_bytes()
    ends = [HEAD_BYTES]
    for body in BODIES:
        ends.append(ends[-1] + RECORD_BYTES + len(body))

    for length in range(len(data) + 1):
        folder = tmp_path / str(length)
        folder.mkdir()
        (folder / path.name).write_bytes(data[:length])
        count = sum(end <= length for end in ends[1:])
        write(folder, [b"next"])
        assert bodies_of(folder) == [*BODIES[:count], b"next"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(at=st.integers(HEAD_BYTES, HEAD_BYTES + 3 * RECORD_BYTES + 52), change=st.integers(1, 255))
def test_damage_before_the_end_is_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, change: int
) -> None:
    """With any byte changed before the last record, a journal is refused by file and offset."""
    folder = tmp_path_factory.mktemp("journal")
    write(folder)
    ((_, path),) = segments(folder)
    data = bytearray(path.read_bytes())
    data[at] ^= change
    path.write_bytes(data)

    with pytest.raises(JournalError, match=rf"{path}: damaged at offset \d+: record \d"):
        Journal(folder)


def test_no_thread_is_left_when_a_journal_is_refused(tmp_path: Path) -> None:
    """The thread that syncs starts with the first file, so a refused journal leaves none behind."""
    write(tmp_path, shard=0, num_shards=2)
    before = threading.active_count()

    with pytest.raises(ConfigError, match="shard 0 of 2, and this is shard 0 of 1"):
        Journal(tmp_path)

    assert threading.active_count() == before


def test_gap_between_segments_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that is missing, or cut before the last one, is an error that names the record."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES", 200)
    write(tmp_path, [bytes([i]) * 30 for i in range(10)])
    middle = segments(tmp_path)[1]

    os.truncate(middle[1], middle[1].stat().st_size - 1)
    with pytest.raises(JournalError, match=rf"{middle[1]}: damaged at offset \d+: record \d"):
        bodies_of(tmp_path)

    middle[1].unlink()
    with pytest.raises(JournalError, match=rf"record {middle[0]} should be there"):
        bodies_of(tmp_path)


def test_covered_segments_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments whose records all lie before a position go; what is behind it stays readable."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES", 200)
    bodies = [bytes([i]) * 30 for i in range(10)]
    write(tmp_path, bodies)
    journal = Journal(tmp_path)
    before = journal.num_bytes
    position = 7  # the first record of the third segment

    assert journal.drop_covered(position) == 2
    assert journal.first == position
    assert journal.num_bytes == sum(path.stat().st_size for _, path in segments(tmp_path)) < before
    assert [record.body for record in journal.read(after=position)] == bodies[position:]
    with pytest.raises(JournalError, match=rf"first record there is {position}, and 1 is needed"):
        list(journal.read(after=0))
    assert journal.drop_covered(10**6) == 1
    assert journal.first == 10
    journal.close()


def test_record_that_is_taken_back_is_not_there(tmp_path: Path) -> None:
    """A record taken back leaves no trace, and the next one has its sequence."""
    journal = Journal(tmp_path)
    for body in (b"kept", b"gone"):
        journal.append(2, body)
    journal.take_back()
    journal.append(2, b"next")
    journal.settle()

    assert [(r.sequence, r.body) for r in journal.read(after=0)] == [(1, b"kept"), (2, b"next")]
    journal.close()
    assert bodies_of(tmp_path) == [b"kept", b"next"]


def test_full_disk_refuses_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """A record that does not fit is refused with the reason and leaves the file as it was."""
    journal = Journal(tmp_path)
    journal.append(2, b"before")
    ((_, path),) = segments(tmp_path)
    size = path.stat().st_size

    with file_limit(size + 100):
        for _ in range(2):
            with pytest.raises(
                StorageError, match=rf"{path}: cannot be written .*nothing was appl"
            ):
                journal.append(2, b"x" * 1000)
            assert path.stat().st_size == size
        journal.append(2, b"small")
    journal.append(2, b"x" * 1000)
    journal.close()

    assert bodies_of(tmp_path) == [b"before", b"small", b"x" * 1000]


def test_segment_that_cannot_be_begun_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no room for a new segment the record is refused, and later ones are taken."""
    journal = Journal(tmp_path)
    journal.append(2, b"before")
    monkeypatch.setattr(writer, "SEGMENT_BYTES", 1)

    with file_limit(10), pytest.raises(StorageError, match="no new segment"):
        journal.append(2, b"refused")
    journal.append(2, b"after")
    journal.close()

    assert len(segments(tmp_path)) == 2
    assert bodies_of(tmp_path) == [b"before", b"after"]


def test_second_process_is_refused(tmp_path: Path) -> None:
    """A folder that is in use is refused by the process that has it."""
    journal = Journal(tmp_path)

    with pytest.raises(ConfigError, match=rf"--journal {tmp_path}: another process.*{os.getpid()}"):
        Journal(tmp_path)
    journal.close()
    Journal(tmp_path).close()


@pytest.mark.parametrize(("shard", "num_shards"), [(1, 2), (0, 3)])
def test_journal_of_another_shard_is_refused(tmp_path: Path, shard: int, num_shards: int) -> None:
    """A journal goes on only as the shard, and in the size of cluster, that it was begun for."""
    write(tmp_path, shard=0, num_shards=2)

    with pytest.raises(ConfigError, match=rf"shard 0 of 2, and this is shard {shard} of"):
        Journal(tmp_path, shard=shard, num_shards=num_shards)


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A journal under a file is refused at start, with folder and user."""
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=r"--journal .*file/x: user \S+ cannot write there"):
        Journal(tmp_path / "file" / "x")


@pytest.mark.parametrize(
    ("status", "fsync", "same_boot", "lost"),
    [
        ("open", "always", False, False),
        ("open", "interval", False, True),
        ("open", "off", False, True),
        ("open", "interval", True, False),
        ("open", "off", True, False),
        ("closed", "off", False, False),
        ("failed", "always", True, True),
    ],
)
def test_loss_is_told_by_how_it_was_left(
    tmp_path: Path, status: str, fsync: str, same_boot: bool, lost: bool
) -> None:
    """Records may be missing after a power failure without a sync, or after a sync that failed."""
    journal = Journal(tmp_path, fsync=fsync)  # type: ignore[arg-type]
    journal.begin()
    journal.append(2, b"x")
    state = read_state(tmp_path)
    assert state is not None
    assert state.status == "open"
    journal.close()
    boot = state.boot if same_boot else "another"
    write_state(tmp_path, State(status, fsync, boot))  # type: ignore[arg-type]

    journal = Journal(tmp_path)

    assert journal.may_have_lost == lost
    journal.close()
    again = Journal(tmp_path)  # the start before did not come so far as to begin
    assert again.may_have_lost == lost
    again.begin()
    again.close()
    last = Journal(tmp_path)
    assert not last.may_have_lost
    last.close()


def test_replies_wait_for_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With always, a position is durable only after a sync that began after it was settled."""
    syncs: list[int] = []
    real = os.fdatasync

    def counted(file: int) -> None:
        syncs.append(file)
        real(file)

    monkeypatch.setattr(os, "fdatasync", counted)

    async def check() -> None:
        journal = Journal(tmp_path, fsync="always")
        for i in range(50):
            journal.append(2, bytes([i]))
            journal.settle()
            await asyncio.gather(*(journal.durable(journal.position) for _ in range(3)))
            assert journal.synced == journal.position
        journal.close()

    asyncio.run(check())
    assert len(syncs) >= 50


def test_failed_sync_refuses_all_that_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a sync that failed, who waits and who comes is refused, and the loss is remembered."""

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    async def check() -> None:
        journal = Journal(tmp_path, fsync="always")
        monkeypatch.setattr(os, "fdatasync", fail)
        journal.append(2, b"x")
        journal.settle()
        with pytest.raises(StorageError, match=r"could not be synced.*Input/output error"):
            await journal.durable(1)
        with pytest.raises(StorageError, match="restart this server"):
            journal.append(2, b"y")
        journal.close()

    asyncio.run(check())
    monkeypatch.undo()
    journal = Journal(tmp_path)
    assert journal.may_have_lost
    assert [record.body for record in journal.read(after=0)] == [b"x"]
    journal.close()
