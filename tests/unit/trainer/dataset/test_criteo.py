"""What ``trainer.dataset.reader`` promises, on Criteo files: every row once, in order, with its true number."""

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.trainer.dataset.shared import SHARED
from trainer.dataset import lines
from trainer.dataset.batch import Batch
from trainer.dataset.criteo import CriteoFormat
from trainer.dataset.files import FileSet, count_files
from trainer.dataset.reader import BAD_LINES_MAX, FileReader
from trainer.errors import DataError


def reader_of(*paths: Path, **options: Any) -> FileReader:
    """Return a reader of Criteo files."""
    form = CriteoFormat()
    return FileReader(count_files(paths, form, name=str(paths[0])), form, **options)


def count_rows(path: Path) -> int:
    """Return how many rows a file has."""
    return count_files([path], CriteoFormat(), name="x").rows


def row(number: int) -> str:
    """Return a good line that can be told from others: its first integer is its number."""
    ints = [str(number), *["" if (number + i) % 5 == 0 else str(i * number) for i in range(12)]]
    hexes = ["" if (number + i) % 7 == 0 else f"{number * 31 + i:x}" for i in range(26)]
    return "\t".join([str(number % 2), *ints, *hexes])


def numbers_of(batches: Iterable[Batch]) -> list[int]:
    """Return the first integers of all rows."""
    return [round(float(x)) for b in batches for x in np.expm1(b.dense[:, 0].astype(np.float64))]


def same(left: list[Batch], right: list[Batch]) -> bool:
    """Whether two lists of batches are equal to the bit."""
    return len(left) == len(right) and all(
        np.array_equal(a.keys, b.keys)
        and np.array_equal(a.dense, b.dense)
        and np.array_equal(a.labels, b.labels)
        and a.position == b.position
        for a, b in zip(left, right, strict=True)
    )


@pytest.fixture
def hundred(tmp_path: Path) -> Path:
    """A file of 100 good rows, numbered from 1."""
    path = tmp_path / "hundred.txt"
    path.write_text("".join(row(i) + "\n" for i in range(1, 101)))
    return path


@pytest.fixture(scope="module")
def criteo_10k() -> Path:
    """The first 10,000 rows of the real data, where they are at hand."""
    path = SHARED / "criteo_10k" / "train_examples.txt"
    if not path.exists():
        pytest.skip("the real data is not here")
    return path


def test_batches_hold_all_rows_in_order(hundred: Path) -> None:
    """Batches are full but for the last, and their positions count the rows."""
    batches = list(reader_of(hundred, batch_size=32))

    assert [b.num_samples for b in batches] == [32, 32, 32, 4]
    assert [b.position for b in batches] == [32, 64, 96, 100]
    assert numbers_of(batches) == list(range(1, 101))
    assert all(b.offsets is None and b.num_slots == 26 and b.teacher is None for b in batches)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(1, 120), st.integers(200, 30_000), st.lists(st.integers(0, 99), max_size=20))
def test_bad_lines_block_and_batch_sizes_change_no_good_row(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    batch_size: int,
    block_bytes: int,
    bad: list[int],
) -> None:
    """Wherever bad lines stand and blocks end, the good rows come with their true numbers."""
    path = tmp_path / "mixed.txt"
    path.write_text("".join(("oops" if i in bad else row(i + 1)) + "\n" for i in range(100)))
    monkeypatch.setattr(lines, "BLOCK_BYTES", block_bytes)
    reader = reader_of(path, batch_size=batch_size, bad_lines_max=BAD_LINES_MAX)
    good = [i + 1 for i in range(100) if i not in bad]

    batches = list(reader)

    assert numbers_of(batches) == good
    assert [b.position for b in batches] == [
        good[min(end, len(good)) - 1]
        for end in range(batch_size, len(good) + batch_size, batch_size)
    ]
    assert reader.counts.rows == len(good)
    assert reader.counts.bad_lines == len(set(bad))
    assert reader.counts.first_bad_lines == [
        f"{path}:{i + 1}: must have 40 TAB-separated fields, got 1: 'oops'"
        for i in sorted(set(bad))[:5]
    ]


def test_reading_goes_on_after_any_position(hundred: Path) -> None:
    """Reading with ``skip_rows`` at a batch's position gives exactly the rows after it."""
    text = hundred.read_text().splitlines(keepends=True)
    text[40] = text[41] = "bad\n"
    hundred.write_text("".join(text))
    every = list(reader_of(hundred, batch_size=7, bad_lines_max=BAD_LINES_MAX))

    for done, batch in enumerate(every, 1):
        rest = reader_of(
            hundred, batch_size=7, skip_rows=batch.position, bad_lines_max=BAD_LINES_MAX
        )
        assert same(list(rest), every[done:])


def test_ranges_of_rows_join_to_the_whole(hundred: Path) -> None:
    """Three trainers' ranges, counted in lines, neither overlap nor leave gaps."""
    parts = [
        numbers_of(reader_of(hundred, batch_size=9, skip_rows=skip, rows_max=most))
        for skip, most in [(0, 33), (33, 33), (66, 99)]
    ]

    assert parts[0] + parts[1] + parts[2] == list(range(1, 101))
    assert list(reader_of(hundred, batch_size=9, rows_max=0)) == []
    assert list(reader_of(hundred, batch_size=9, skip_rows=100)) == []


def test_a_bad_line_outside_the_range_is_not_looked_at(hundred: Path) -> None:
    """Lines before and after the range may be bad."""
    text = hundred.read_text().splitlines(keepends=True)
    hundred.write_text("bad\n" + "".join(text[1:50]) + "bad\n")

    assert numbers_of(reader_of(hundred, batch_size=9, skip_rows=1, rows_max=49)) == [*range(2, 51)]


def test_a_bad_line_stops_the_reader_by_default(hundred: Path) -> None:
    """The error is file:line, what must hold and what came."""
    hundred.write_text(hundred.read_text().replace(row(77), row(77).replace("1", "one", 1)))

    with pytest.raises(DataError, match=r"hundred\.txt:77: label must be 0 or 1, got 'one'$"):
        list(reader_of(hundred, batch_size=9))


def test_skipping_bad_lines_has_a_limit(hundred: Path) -> None:
    """One bad line more than allowed raises, and the error shows the first."""
    hundred.write_text("\n\n\n" + hundred.read_text())

    list(reader_of(hundred, batch_size=9, bad_lines_max=3))
    with pytest.raises(DataError, match=r"at most 2 bad lines may be skipped.*\.txt:1: must have"):
        list(reader_of(hundred, batch_size=9, bad_lines_max=2))


def test_counts_begin_anew_with_each_pass(hundred: Path) -> None:
    """Two passes over one reader give the same batches and the same counts."""
    reader = reader_of(hundred, batch_size=9)
    first, counts = list(reader), reader.counts

    assert same(list(reader), first)
    assert reader.counts == counts
    assert reader.counts is not counts
    assert counts.rows == 100
    assert counts.empty_ints == sum((n + i) % 5 == 0 for n in range(1, 101) for i in range(12))
    assert counts.empty_ids == sum((n + i) % 7 == 0 for n in range(1, 101) for i in range(26))


@pytest.mark.parametrize("form", ["gzip", "crlf", "mark", "no last newline", "all"])
def test_g5_the_form_of_the_file_changes_nothing(hundred: Path, form: str) -> None:
    """Gzip, CRLF, a byte-order mark or a missing last newline give identical batches."""
    expected = list(reader_of(hundred, batch_size=9))
    data = hundred.read_bytes()
    if form in ("no last newline", "all"):
        data = data.removesuffix(b"\n")
    if form in ("crlf", "all"):
        data = data.replace(b"\n", b"\r\n")
    if form in ("mark", "all"):
        data = b"\xef\xbb\xbf" + data
    path = hundred.with_name("other.txt")
    if form in ("gzip", "all"):
        data = gzip.compress(data)
        path = path.with_name("other.txt.gz")
    path.write_bytes(data)

    assert same(list(reader_of(path, batch_size=9)), expected)
    assert count_rows(path) == 100


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_has_no_batches(tmp_path: Path, data: bytes) -> None:
    """A file without lines is no error."""
    path = tmp_path / "empty.txt"
    path.write_bytes(data)

    assert list(reader_of(path, batch_size=9)) == []
    assert count_rows(path) == 0


def test_g6_a_line_of_ten_megabytes_is_one_bad_line(hundred: Path) -> None:
    """A monstrous line is refused by its number, and the rows around it are read."""
    hundred.write_text(row(1) + "\n" + "0" * 10_000_000 + "\n" + row(3))
    reader = reader_of(hundred, batch_size=9, bad_lines_max=BAD_LINES_MAX)

    assert numbers_of(reader) == [1, 3]
    assert reader.counts.first_bad_lines == [
        f"{hundred}:2: must have at most 1024 bytes, got '{'0' * 80}'..."
    ]


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Counting raises DataError when there is no file."""
    with pytest.raises(DataError, match=r"gone\.txt: cannot be read"):
        count_rows(tmp_path / "gone.txt")


def test_a_file_that_became_shorter_is_an_error(hundred: Path) -> None:
    """A file that changes after its rows were counted is told, and no row is missed in silence."""
    reader = reader_of(hundred, batch_size=30)
    hundred.write_text("".join(row(i) + "\n" for i in range(1, 41)))

    with pytest.raises(DataError, match=r"hundred\.txt: has 40 rows now and had 100 when"):
        list(reader)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"skip_rows": -1}, "got skip_rows -1"),
        ({"rows_max": -1}, "rows_max -1"),
        ({"bad_lines_max": -1}, "bad_lines_max -1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    """A bad option is refused at once, not when the file is read."""
    with pytest.raises(ValueError, match=message):
        FileReader(FileSet((), "x"), CriteoFormat(), **{"batch_size": 1} | options)


def test_the_real_data_is_what_its_readme_says(criteo_10k: Path) -> None:
    """Rows, clicks, empty cells and distinct keys of the real file are the known ones."""
    reader = reader_of(criteo_10k, batch_size=4096)

    batches = list(reader)

    assert [b.num_samples for b in batches] == [4096, 4096, 1808]
    assert sum(int(b.labels.sum()) for b in batches) == 2182
    assert len(np.unique(np.concatenate([b.keys for b in batches]))) == 43_591
    assert round(reader.counts.empty_ids / 260_000, 3) == 0.114
    assert round(reader.counts.empty_ints / 130_000, 3) == 0.209
    assert count_rows(criteo_10k) == 10_000
    assert all(np.isfinite(b.dense).all() for b in batches)
