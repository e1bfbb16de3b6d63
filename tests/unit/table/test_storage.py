"""What ``table.storage`` promises: memory that is taken when touched, and files that have room."""

import errno
import mmap
import os
import resource
from pathlib import Path

import numpy as np
import psutil
import pytest

from pserver.errors import ConfigError
from pserver.table.storage import (
    ASKS,
    FILE_STEP_BYTES,
    MEMORY_ONLY,
    FileMapping,
    Mapping,
    open_storage,
)


def test_no_memory_is_taken_when_address_space_is_reserved() -> None:
    """A mapping of 64 GiB costs nothing until it is touched, and reads as zero."""
    before = psutil.Process().memory_info().rss

    mapping = Mapping(1 << 33, np.uint64, what="x")

    assert mapping.array.size == 1 << 33
    assert mapping.array[-1] == 0
    assert psutil.Process().memory_info().rss - before < 64 << 20


def test_pages_read_as_zero_when_they_were_given_back() -> None:
    """Whole pages inside the range go; what is only partly inside stays."""
    per_page = mmap.PAGESIZE // 8
    mapping = Mapping(8 * per_page, np.uint64, what="x")
    mapping.array[:] = 7

    mapping.give_back(per_page - 1, 3 * per_page + 2)

    assert (mapping.array[:per_page] == 7).all()
    assert not mapping.array[per_page : 4 * per_page].any()
    assert (mapping.array[4 * per_page :] == 7).all()


def test_nothing_goes_when_the_range_holds_no_whole_page() -> None:
    """A range of less than a page gives nothing back."""
    mapping = Mapping(1024, np.uint64, what="x")
    mapping.array[:] = 7

    mapping.give_back(1, 510)

    assert (mapping.array == 7).all()


@pytest.mark.parametrize("count", [1 << 60, 1 << 62])
def test_the_table_is_refused_when_the_system_has_no_such_address_space(count: int) -> None:
    """The error names the table and says what to change."""
    with pytest.raises(ConfigError, match=r"table 'ads': could not reserve .* GiB .*capacity_max"):
        Mapping(count, np.uint64, what="table 'ads'")


# --- files -----------------------------------------------------------------------------------------


def test_items_of_a_file_keep_what_is_written_when_they_were_reserved(tmp_path: Path) -> None:
    """Fresh items read as zero, and the array is as large as was asked for."""
    mapping = FileMapping(1000, np.float32, folder=tmp_path, what="x")

    assert mapping.reserve(1000) == 1000
    assert not mapping.array.any()
    mapping.array[:] = np.arange(1000)

    assert mapping.array.size == 1000
    assert mapping.array.sum() == 499_500


def test_a_file_takes_blocks_step_by_step(tmp_path: Path) -> None:
    """16 GiB take nothing; a reserved item takes one step, and asking again takes no more."""
    before = free_bytes(tmp_path)
    mapping = FileMapping(1 << 32, np.float32, folder=tmp_path, what="x")

    assert os.fstat(mapping._file).st_blocks == 0
    for _ in range(2):
        assert mapping.reserve(1) == FILE_STEP_BYTES // 4
        assert FILE_STEP_BYTES <= 512 * os.fstat(mapping._file).st_blocks < FILE_STEP_BYTES + 2**20
    assert mapping.reserve(FILE_STEP_BYTES // 4 + 1) == FILE_STEP_BYTES // 2
    assert before - free_bytes(tmp_path) < 1 << 30


def test_a_file_has_no_name_and_goes_with_its_mapping(tmp_path: Path) -> None:
    """No folder lists it, so no two shards share one; its descriptors are closed with it."""

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    mapping = FileMapping(1000, np.float32, folder=tmp_path, what="x")
    assert descriptors() > before
    assert not list(tmp_path.iterdir())

    del mapping

    assert descriptors() == before


def test_a_file_has_no_name_when_the_file_system_has_no_nameless_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where O_TMPFILE is not supported, the file is made under a name and unlinked at once."""
    real = os.open

    def refusing(path: object, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return real(path, flags, mode)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refusing)
    mapping = FileMapping(1000, np.float32, folder=tmp_path, what="x")

    assert mapping.reserve(1000) == 1000
    assert not list(tmp_path.iterdir())


def test_a_file_is_refused_when_the_system_allows_none_so_large(tmp_path: Path) -> None:
    """The error names the table, the folder and what to change."""
    with pytest.raises(
        ConfigError, match=r"table 'ads': could not map a sparse file of .* GiB in "
    ):
        FileMapping(1 << 60, np.uint64, folder=tmp_path, what="table 'ads'")


# --- the folder ------------------------------------------------------------------------------------


def test_a_folder_is_refused_when_it_is_missing(tmp_path: Path) -> None:
    """The message says where the setting came from and what must hold."""
    with pytest.raises(ConfigError, match=r"--storage-dir .*nowhere: must be a folder that exists"):
        open_storage(str(tmp_path / "nowhere"))


def test_a_folder_is_refused_when_it_is_a_file(tmp_path: Path) -> None:
    """A plain file is no folder."""
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match="must be a folder that exists"):
        open_storage(str(tmp_path / "file"))


def test_a_folder_is_refused_when_it_takes_no_files() -> None:
    """/proc is a folder that nobody may write to, not even root."""
    with pytest.raises(ConfigError, match="--storage-dir /proc: "):
        open_storage("/proc")


def test_a_folder_is_refused_when_it_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At start and when a table is made, the free space is told."""
    storage = open_storage(str(tmp_path))
    facts = os.statvfs(tmp_path)
    low = os.statvfs_result((*facts[:4], 1, *facts[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: low)

    with pytest.raises(ConfigError, match="must have at least 16 MiB free, has 0 MiB"):
        open_storage(str(tmp_path))
    with pytest.raises(ConfigError, match=r"table 'ads': .* must have at least 16 MiB free"):
        storage.map_rows("file", 10, np.float32, table="ads")


def test_a_folder_that_was_tried_is_left_empty(tmp_path: Path) -> None:
    """The trial leaves nothing behind."""
    assert open_storage(str(tmp_path)).folder == tmp_path
    assert not list(tmp_path.iterdir())


def test_a_table_on_a_file_is_refused_when_the_shard_has_no_folder() -> None:
    """The error says how to start the shard."""
    with pytest.raises(ConfigError, match=r"table 'ads': storage is file, .* --storage-dir"):
        MEMORY_ONLY.map_rows("file", 10, np.float32, table="ads")


def free_bytes(folder: Path) -> int:
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize


# --- waiting for a disk ------------------------------------------------------------------------------


def major_faults() -> int:
    """Return how often this thread has waited for a page to be read."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def waits(mapping: FileMapping, pages: range) -> int:
    """Return how many reads touching these pages waits for."""
    before = major_faults()
    assert all(mapping.array[page * mmap.PAGESIZE] == 7 for page in pages)
    return major_faults() - before


def on_disk(folder: Path, pages: int) -> FileMapping:
    """Return a mapping of written pages that are not in memory, or skip where a file always is."""
    mapping = FileMapping(pages * mmap.PAGESIZE, np.uint8, folder=folder, what="x")
    mapping.reserve(mapping.array.size)
    mapping.array[:] = 7
    os.fsync(mapping._file)
    mapping._map.madvise(mmap.MADV_DONTNEED)
    os.posix_fadvise(mapping._file, 0, 0, os.POSIX_FADV_DONTNEED)
    if waits(mapping, range(pages - 64, pages)) < 32:
        pytest.skip("this file system keeps files in memory")
    return mapping


@pytest.mark.skipif("NUMBA_DISABLE_JIT" in os.environ, reason="plain Python asks for nothing")
def test_rows_are_read_side_by_side_once_a_request_waited(tmp_path: Path) -> None:
    """Rows of later requests are asked for before they are touched, and no value changes."""
    mapping = on_disk(tmp_path, 512)
    nothing = np.empty(0, np.int64)
    for _ in range(ASKS + 1):  # the faults of writing the file
        mapping.ask(nothing, mmap.PAGESIZE)

    mapping.ask(np.arange(128), mmap.PAGESIZE)

    assert waits(mapping, range(128)) > 64  # nothing was asked for: no request had waited

    mapping.ask(np.array([-1, *range(128, 256), -1]), mmap.PAGESIZE)

    assert waits(mapping, range(128, 256)) < 16

    for _ in range(ASKS):
        mapping.ask(nothing, mmap.PAGESIZE)
    mapping.ask(np.arange(256, 384), mmap.PAGESIZE)

    assert waits(mapping, range(256, 384)) > 64  # tried anew whether it is still worth it
