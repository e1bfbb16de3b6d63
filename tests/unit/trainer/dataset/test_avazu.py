"""What ``trainer.dataset.avazu`` promises: exact keys, or a fault that is named."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.trainer.dataset.shared import SHARED
from trainer.dataset.avazu import EMPTY_ID, HEADER, LINE_BYTES_MAX, NAMES, AvazuFormat
from trainer.dataset.files import count_files
from trainer.dataset.keys import slot_keys
from trainer.dataset.reader import FileReader

FORM = AvazuFormat()
HEX_NAMES = {*NAMES[5:14]}

INTS = st.one_of(
    st.just(""),
    st.integers(-(10**18) + 1, 10**18 - 1).map(str),
    st.integers(-5, 99).map(lambda x: f"{x:04d}"),
    st.sampled_from(["-0", "0", "000000000000000000000000001", "-000000000000000000000000007"]),
)
HEXES = st.text("0123456789abcdefABCDEF", max_size=8)
LINES = st.tuples(
    st.integers(0, 10**20 - 1).map(str),
    st.sampled_from(["0", "1"]),
    st.integers(0, 23).map(lambda hour: f"141021{hour:02d}"),
    *[HEXES if name in HEX_NAMES else INTS for name in NAMES[3:]],
)
NASTY = ["", " ", "1 ", "+1", "-", "1-1", "--1", "0x1f", "1e5", "1.0", "NaN", "\0", "²", '"1"', "g"]
NASTY += [
    "9" * 18,
    "9" * 19,
    "9" * 25,
    "-" + "9" * 19,
    "0" * 30 + "1",
    "123456789",
    "-1",
    "\r",
    ",",
]
GOOD = (
    "10000169349117863715,0,14102100,1005,0,1fbe01fe,f3845767,28905ebd,ecad2386,7801e8d9,07d7df22,"
)
GOOD += "a99f214a,ddd2926e,44956a24,1,2,15706,320,50,1722,0,35,-1,79"


def slow_id(name: str, text: str) -> int:
    """Return the id that one field spells, by the documented rule."""
    if name == "hour":
        return int(text[-2:])
    if text == "":
        return EMPTY_ID
    return int(text, 16) if name in HEX_NAMES else int(text) % 2**64


def slow_keys(rows: list[dict[str, str]]) -> np.ndarray:
    """Return the keys (n, 22) of rows, a field at a time."""
    ids = [[slow_id(name, row[name]) for name in NAMES[2:]] for row in rows]
    return slot_keys(np.array(ids, np.uint64), np.arange(22))


@settings(deadline=None)  # the first example compiles
@given(st.lists(LINES, min_size=1, max_size=5))
def test_every_value_is_what_the_text_says(lines: list[tuple[str, ...]]) -> None:
    """Labels and keys of random lines equal a slow reading of the text."""
    rows = [dict(zip(NAMES, line, strict=True)) for line in lines]

    parsed = FORM.parse_block("".join(",".join(line) + "\n" for line in lines).encode())

    assert parsed is not None
    assert parsed.labels.tolist() == [float(row["click"]) for row in rows]
    assert np.array_equal(parsed.keys.reshape(-1, 22), slow_keys(rows))
    assert parsed.dense.shape == (len(rows), 0)
    assert (parsed.offsets, parsed.weights) == (None, None)
    assert parsed.num_empty_ids == sum(line.count("") for line in lines)
    assert all(FORM.find_fault(",".join(line).encode()) is None for line in lines)


@settings(deadline=None)
@given(st.integers(0, 23), st.one_of(st.sampled_from(NASTY), st.text(max_size=10)))
def test_both_parsers_accept_the_same_fields(index: int, text: str) -> None:
    """With any text in any field, the block is refused if and only if the line has a fault."""
    fields = GOOD.split(",")
    fields[index] = text.replace("\n", "")
    line = ",".join(fields).encode("utf-8", "surrogatepass")

    assert (FORM.parse_block(line + b"\n") is None) == (FORM.find_fault(line) is not None)


@settings(deadline=None)
@given(st.integers(0, 140), st.binary(max_size=3), st.integers(0, 3))
def test_both_parsers_accept_the_same_bytes(begin: int, inserted: bytes, dropped: int) -> None:
    """With any bytes put in or taken out, the two parsers agree, good lines around it or not."""
    good = GOOD.encode()
    line = (good[:begin] + inserted + good[begin + dropped :]).replace(b"\n", b"")
    refused = FORM.find_fault(line) is not None

    assert (FORM.parse_block(line + b"\n") is None) == refused
    assert (FORM.parse_block(b"\n".join([good, line, good, b""])) is None) == refused


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("id", "", "id must be 1 to 20 digits, got ''"),
        ("id", "1.0e19", "id must be 1 to 20 digits, got '1.0e19'"),
        ("click", "2", "click must be 0 or 1, got '2'"),
        ("hour", "14102124", "hour must be YYMMDDHH with HH from 00 to 23, got '14102124'"),
        ("hour", "", "hour must be YYMMDDHH with HH from 00 to 23, got ''"),
        ("C1", "1.5", "C1 must be an integer of at most 18 digits, got '1.5'"),
        ("C20", "1" * 19, f"C20 must be an integer of at most 18 digits, got '{'1' * 19}'"),
        ("site_id", "xyz", "site_id must be at most 8 hex digits, got 'xyz'"),
        ("device_model", "123456789", "device_model must be at most 8 hex digits, got '123456789'"),
        ("C21", "7,8", "must have 24 comma-separated fields, got 25: '10000169349117863715,0,"),
        ("C21", "0" * 1200, f"must have at most {LINE_BYTES_MAX} bytes, got '100001"),
        ("C21", "\0", "must have no NUL byte, got '100001"),
    ],
)
def test_a_fault_says_what_must_hold_and_what_came(name: str, text: str, fault: str) -> None:
    """The fault names the field as the header does."""
    fields = GOOD.split(",")
    fields[NAMES.index(name)] = text

    assert (FORM.find_fault(",".join(fields).encode()) or "").startswith(fault)


@pytest.mark.parametrize("has_header", [True, False])
def test_header_is_no_row(tmp_path: Path, has_header: bool) -> None:
    """The names of the columns are passed over where they are, and lines keep their numbers."""
    path = tmp_path / "rows.csv"
    head = HEADER + "\n" if has_header else ""
    path.write_text(head + (GOOD + "\n") * 3 + "bad\n" + GOOD + "\n", encoding="utf-8")
    files = count_files([path], FORM, name="x")
    reader = FileReader(files, FORM, batch_size=2, bad_lines_max=1)

    assert files.rows == 5
    assert [batch.position for batch in reader] == [2, 5]
    assert reader.counts.first_bad_lines[0].startswith(f"{path}:{4 + has_header}: must have 24")
    rest = FileReader(files, FORM, batch_size=9, skip_rows=4)
    assert [(batch.num_samples, batch.position) for batch in rest] == [(1, 5)]


@pytest.fixture(scope="module")
def avazu_9k() -> Path:
    """Return the real data, where it is at hand."""
    path = SHARED / "avazu_9k" / "wide_resdnn_train.csv"
    if not path.exists():
        pytest.skip("the real data is not here")
    return path


def test_real_rows_equal_a_slow_reading(avazu_9k: Path) -> None:
    """Every key and label of the real file is what Python's own csv and integers give."""
    with avazu_9k.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    files = count_files([avazu_9k], FORM, name="x")

    batches = list(FileReader(files, FORM, batch_size=1000))

    assert files.rows == len(rows) == 8087
    assert np.array_equal(
        np.concatenate([batch.keys for batch in batches]).reshape(-1, 22), slow_keys(rows)
    )
    labels = np.concatenate([batch.labels for batch in batches])
    assert labels.tolist() == [float(row["click"]) for row in rows]


def test_files_with_and_without_a_header_join(avazu_9k: Path) -> None:
    """The three parts, of which one has a header, are read as one data set."""
    paths = sorted(avazu_9k.parent.glob("*.csv"))
    files = count_files(paths, FORM, name="x")

    def counts() -> Iterator[int]:
        for batch in FileReader(files, FORM, batch_size=4096):
            yield batch.num_samples

    assert files.rows == 8087 + 480 + 432
    assert list(counts()) == [4096, 4096, 807]
