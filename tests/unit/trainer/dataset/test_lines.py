"""What ``trainer.dataset.lines`` promises: whole lines, rightly numbered, in bounded memory."""

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainer.dataset import lines
from trainer.dataset.lines import START, Mark, first_line, read_blocks, survey
from trainer.errors import DataError

LINE_BYTES_MAX = 1024


def numbered_lines(path: Path, mark: Mark = START, **ranges: int) -> list[tuple[int, bytes]]:
    """Return what ``read_blocks`` delivers as (number, line)."""
    found = []
    for block in read_blocks(path, line_bytes_max=LINE_BYTES_MAX, mark=mark, **ranges):
        parts = block.data.split(b"\n")
        assert parts[-1] == b""
        assert len(parts) - 1 == block.num_lines
        found += [(block.first_line + i, part) for i, part in enumerate(parts[:-1])]
    return found


def write(folder: Path, data: bytes) -> Path:
    """Write a file and return its path."""
    path = folder / "data.txt"
    path.write_bytes(data)
    return path


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from([b"", b"a", b"bc", b"d" * 9]), max_size=12),
    st.sampled_from([b"\n", b"\r\n"]),
    st.integers(3, 30),
    st.tuples(st.integers(0, 14), st.integers(0, 14)),
    st.booleans(),
)
def test_any_range_of_lines_is_what_a_list_would_give(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    texts: list[bytes],
    newline: bytes,
    block_bytes: int,
    ranges: tuple[int, int],
    last_newline: bool,
) -> None:
    """Whatever the block size, line ends and range, lines and numbers are those of the file."""
    data = b"".join(text + newline for text in texts)
    if not last_newline and texts and texts[-1]:
        data = data.removesuffix(newline)
    monkeypatch.setattr(lines, "BLOCK_BYTES", block_bytes)
    path = write(tmp_path, data)
    skip, most = ranges

    found = numbered_lines(path, skip_lines=skip, lines_max=most)

    assert found == list(enumerate(texts, 1))[skip : skip + most]
    assert numbered_lines(path) == list(enumerate(texts, 1))
    assert first_line(path, line_bytes_max=LINE_BYTES_MAX) == (texts[0] if texts else b"")
    assert survey(path).num_lines == len(texts)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbfa\nb", [b"a", b"b"]),
        (b"a\n\xef\xbb\xbfb\n", [b"a", b"\xef\xbb\xbfb"]),
        (b"a\rb\r\nc\r", [b"a\rb", b"c"]),
        (b"\n\n", [b"", b""]),
    ],
)
def test_g6_marks_and_returns_are_taken_off_where_they_belong(
    tmp_path: Path, data: bytes, expected: list[bytes]
) -> None:
    """Only a leading byte-order mark and a CR before a line's end are taken off."""
    path = write(tmp_path, data)

    assert [line for _, line in numbered_lines(path)] == expected
    assert survey(path).num_lines == len(expected)


def test_a_line_longer_than_many_blocks_is_cut_but_still_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of 40 blocks comes in bounded memory, too long still; its neighbours are whole."""
    monkeypatch.setattr(lines, "BLOCK_BYTES", 2048)
    path = write(tmp_path, b"a\n" + b"x" * 80_000 + b"\r\nb\n")

    found = numbered_lines(path)

    assert [number for number, _ in found] == [1, 2, 3]
    assert (found[0][1], found[2][1]) == (b"a", b"b")
    assert LINE_BYTES_MAX < len(found[1][1]) < 3 * 2048


def test_gzip_is_told_by_the_name(tmp_path: Path) -> None:
    """A name that ends in .gz is unpacked, in several members as in one."""
    path = tmp_path / "data.txt.gz"
    path.write_bytes(gzip.compress(b"a\nb") + gzip.compress(b"c\nd\n"))

    assert [line for _, line in numbered_lines(path)] == [b"a", b"bc", b"d"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "plain"])
def test_g3_damaged_gzip_is_an_error_that_names_the_file(tmp_path: Path, damage: str) -> None:
    """Gzip data that ends early, has a wrong byte or is no gzip raises; no half line comes."""
    packed = bytearray(gzip.compress(bytes(range(33, 127)) * 50 + b"\n"))
    if damage == "cut":
        packed = packed[:-12]
    elif damage == "flipped":
        packed[len(packed) // 2] ^= 0xFF
    else:
        packed = bytearray(b"0\t1\n")
    path = tmp_path / "data.gz"
    path.write_bytes(packed)

    with pytest.raises(DataError, match=r"data\.gz: must be whole gzip data, got"):
        list(read_blocks(path, line_bytes_max=9))


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    """A missing file and a folder raise DataError with the system's reason."""
    with pytest.raises(DataError, match=r"gone\.txt: cannot be read: No such file"):
        survey(tmp_path / "gone.txt")
    with pytest.raises(DataError, match=r"cannot be read: Is a directory"):
        list(read_blocks(tmp_path, line_bytes_max=9))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from([b"", b"a", b"bc", b"d" * 9]), min_size=1, max_size=30),
    st.integers(3, 30),
    st.integers(1, 20),
    st.booleans(),
)
def test_reading_from_any_mark_is_reading_from_the_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    texts: list[bytes],
    block_bytes: int,
    every: int,
    has_mark: bool,
) -> None:
    """From each place that a survey marked, the lines after it come with their true numbers."""
    monkeypatch.setattr(lines, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(lines, "MARK_EVERY_BYTES", every)
    start = b"\xef\xbb\xbf" if has_mark else b""
    path = write(tmp_path, start + b"".join(text + b"\n" for text in texts))
    seen: list[bytes] = []

    found = survey(path, look=seen.append)

    assert b"".join(seen) == path.read_bytes().removeprefix(start)
    assert found.num_lines == len(texts)
    assert found.marks[0] == START
    expected = list(enumerate(texts, 1))
    for mark in found.marks:
        skip = mark.line - 1
        assert numbered_lines(path, mark, skip_lines=skip) == expected[skip:]
        assert (
            numbered_lines(path, mark, skip_lines=skip + 1, lines_max=2)
            == (expected[skip + 1 : skip + 3])
        )


def test_packed_file_has_no_marks_but_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no way into the middle of gzip data."""
    monkeypatch.setattr(lines, "MARK_EVERY_BYTES", 1)
    monkeypatch.setattr(lines, "BLOCK_BYTES", 4)
    path = tmp_path / "data.gz"
    path.write_bytes(gzip.compress(b"a\nb\nc\nd\n"))

    assert survey(path).marks == (START,)
    assert survey(path).num_lines == 4
