"""What ``trainer.dataset.files`` promises: the files that are named, in order, each row counted once."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.unit.trainer.models import criteo_line
from trainer.dataset import lines
from trainer.dataset.criteo import CriteoFormat
from trainer.dataset.files import count_files, find_files
from trainer.dataset.reader import FileReader
from trainer.errors import DataError

FORM = CriteoFormat()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with three files of 10, 0 and 25 rows."""
    monkeypatch.chdir(tmp_path)
    begin = 0
    for name, count in [("a.txt", 10), ("b.txt", 0), ("c.txt", 25)]:
        text = "".join(map(criteo_line, range(begin, begin + count)))
        Path(name).write_text(text, encoding="utf-8")
        begin += count
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.txt", ["a.txt"]),
        ("c.txt,a.txt", ["c.txt", "a.txt"]),
        ("*.txt", ["a.txt", "b.txt", "c.txt"]),
        ("c.txt,[ab].txt", ["c.txt", "a.txt", "b.txt"]),
        ("none.txt", ["none.txt"]),
    ],
)
@pytest.mark.usefixtures("folder")
def test_names_and_patterns_keep_their_order(text: str, expected: list[str]) -> None:
    """Files come as they were named, those of a pattern sorted; counting tells what is missing."""
    assert [str(path) for path in find_files(text)] == expected


def test_name_with_a_comma_is_a_name_where_there_is_such_a_file(folder: Path) -> None:
    """A file of that very name is taken as it is."""
    path = folder / "a,b.txt"
    path.touch()

    assert find_files(str(path)) == [path]


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("*.csv", "*.csv: no file is named so"),
        ("a.txt,,c.txt", "a.txt,,c.txt: no file is named so"),
        ("a.txt,*.txt", "a.txt: is named twice; its rows would be trained on twice an epoch"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_names_that_cannot_be_meant_are_refused(text: str, fact: str) -> None:
    """A pattern without a match and a file named twice are errors."""
    with pytest.raises(DataError) as caught:
        find_files(text)

    assert str(caught.value) == fact


def test_pipe_among_files_is_refused(folder: Path) -> None:
    """A pipe cannot be read twice; it is refused before anything is opened."""
    os.mkfifo(folder / "p.txt")

    with pytest.raises(DataError, match=r"p\.txt: must be a file, not a pipe"):
        find_files("*.txt")


@pytest.mark.parametrize("batch_size", [1, 7, 10, 35])
@pytest.mark.usefixtures("folder")
def test_rows_run_through_all_files(batch_size: int) -> None:
    """Batches cross the files' ends, positions count over all, and any range joins to the whole."""
    files = count_files(find_files("*.txt"), FORM, name="x")
    every = list(FileReader(files, FORM, batch_size=batch_size))
    keys = np.concatenate([batch.keys for batch in every])

    assert [file.rows for file in files.files] == [10, 0, 25]
    assert every[-1].position == files.rows == 35
    assert all(batch.num_samples == batch_size for batch in every[:-1])
    for cut in range(36):
        head = FileReader(files, FORM, batch_size=batch_size, rows_max=cut)
        tail = FileReader(files, FORM, batch_size=batch_size, skip_rows=cut)
        parts = [batch.keys for reader in (head, tail) for batch in reader]
        assert np.array_equal(np.concatenate(parts), keys)


def test_ranges_are_read_from_the_nearest_mark(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range in a large file gives its rows wherever marks stand, headers counted."""
    monkeypatch.setattr(lines, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(lines, "MARK_EVERY_BYTES", 3000)
    path = folder / "large.txt"
    path.write_text("".join(map(criteo_line, range(500))), encoding="utf-8")
    files = count_files([path], FORM, name="x")
    (file,) = files.files
    (whole,) = FileReader(files, FORM, batch_size=500)

    assert len(file.marks) > 20
    for row in (0, 1, 99, 250, 499):
        assert file.mark_before(row).line <= row + 1
        (batch,) = FileReader(files, FORM, batch_size=1, skip_rows=row, rows_max=1)
        assert np.array_equal(batch.keys, whole.keys[26 * row : 26 * row + 26])
        assert batch.position == row + 1


@pytest.mark.usefixtures("folder")
def test_bad_lines_are_named_with_their_file() -> None:
    """The line's number is that in its own file."""
    with Path("c.txt").open("a", encoding="utf-8") as file:
        file.write("bad\n")
    files = count_files(find_files("*.txt"), FORM, name="x")

    with pytest.raises(DataError, match=r"^c\.txt:26: must have 40"):
        list(FileReader(files, FORM, batch_size=9))
