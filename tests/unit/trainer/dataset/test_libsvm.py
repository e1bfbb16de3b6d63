"""What ``trainer.dataset.libsvm`` promises: exact keys and weights, or a fault that is named."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.trainer.dataset.shared import SHARED
from trainer.dataset.batch import Batch
from trainer.dataset.files import count_files
from trainer.dataset.keys import slot_keys
from trainer.dataset.libsvm import LINE_BYTES_MAX, LibsvmFormat, Longest
from trainer.dataset.reader import FileReader
from trainer.dataset.rows import Rows

IDS = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 20)).map(str)
VALUES = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.floats(-1e30, 1e30).map(repr),
    st.floats(0, 1).map(lambda x: f"{x:.15f}"),
    st.integers(-(10**25), 10**25).map(str),
    st.sampled_from(["1", "+1", "1.0", "0", "-0", ".5", "3.", "1e-3", "1E+05", "1e-60", "0" * 30]),
)
LABELS = st.sampled_from(["1", "+1", "-1", "0", "-0", "1.0", "-1.", "0.000"])
LINES = st.tuples(
    LABELS,
    st.lists(st.tuples(IDS, VALUES), max_size=5),
    st.sampled_from([" ", "\t", "  "]),
    st.sampled_from(["", " ", "\t "]),
)
Line = tuple[str, list[tuple[str, str]], str, str]
NASTY = ["", ":", "1:", ":1", "1", "1:1:1", "-1:1", "1:x", "1:nan", "1:inf", "1:1e39", "1:1e999"]
NASTY += [
    "18446744073709551615:1",
    "18446744073709551616:1",
    "9" * 21 + ":1",
    "²:1",
    "1:²",
    "#",
    "a:1",
]
NASTY += ["1:0x1", "1:1_0", "1:1e", "1:1e+", "1:--1", "1:.", "1:1.2.3", "1:\r", "qid:3", "0001:1"]
NASTY += [
    "1:1e1234567",
    "1:" + "0" * 40 + "1",
    "1:3.4028235e38",
    "1:3.4028236e38",
    "1:340282356779733661637539395458142568447",
]


def text_of(line: Line) -> str:
    """Return the text of a line."""
    label, features, blank, end = line
    return blank.join([label, *(f"{number}:{value}" for number, value in features)]) + end


def check(rows: Rows, lines: list[tuple[str, list[tuple[str, str]]]], slots: int) -> None:
    """Assert that rows are what a slow reading of lines gives."""
    pairs = [pair for _, features in lines for pair in features]
    counts = [len(features) for _, features in lines]
    ids = np.array([[int(number)] for number, _ in pairs], np.uint64).reshape(-1, 1)
    assert np.array_equal(rows.keys, slot_keys(ids, np.array([0])).reshape(-1))
    assert rows.labels.tolist() == [float(float(label) == 1.0) for label, _ in lines]
    weights = np.array([float(value) for _, value in pairs], np.float32)
    if rows.weights is None:
        assert np.all(weights == 1.0)
    else:
        assert rows.weights.tobytes() == weights.tobytes()
    if rows.offsets is None:
        assert counts == [slots] * len(counts)
    else:
        begins = np.cumsum([0, *counts])[:-1]
        expected = [
            [b + min(s, n) for s in range(slots)] for b, n in zip(begins, counts, strict=True)
        ]
        assert rows.offsets.reshape(-1, slots).tolist() == expected


@settings(deadline=None, max_examples=150)  # the first example compiles
@given(st.lists(LINES, min_size=1, max_size=5))
def test_every_value_is_what_the_text_says(lines: list[Line]) -> None:
    """Labels, keys, weights and slots of random lines equal a slow reading of the text."""
    form = LibsvmFormat(slots=5)

    parsed = form.parse_block("".join(text_of(line) + "\n" for line in lines).encode())

    assert parsed is not None
    check(parsed, [(label, features) for label, features, _, _ in lines], 5)
    assert all(form.find_fault(text_of(line).encode()) is None for line in lines)


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(["1", "-1", "2", "x", "", "1.5", "+", "1.00", "1e0", "\u0661"]),
    st.lists(st.one_of(st.sampled_from(NASTY), st.text(max_size=8)), max_size=4),
)
def test_both_parsers_accept_the_same_lines(label: str, features: list[str]) -> None:
    """With any text as label and features, the block is refused if and only if the line has a fault."""
    form = LibsvmFormat(slots=3)
    line = " ".join([label, *features]).replace("\n", "").encode("utf-8", "surrogatepass")

    refused = form.find_fault(line) is not None

    assert (form.parse_block(line + b"\n") is None) == refused
    assert (form.parse_block(b"1 3:1\n" + line + b"\n-1\n") is None) == refused


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("", "label must be 1, 0 or -1, got ''"),
        ("2 1:1", "label must be 1, 0 or -1, got '2'"),
        (" 1 1:1", "label must be 1, 0 or -1, got ''"),
        ("1 7", "feature 1 must be id:value with an id of at most 20 digits, got '7'"),
        ("1 7:1 x:1", "feature 2 must be id:value with an id of at most 20 digits, got 'x:1'"),
        ("1 qid:1", "feature 1 must be id:value"),
        ("1 18446744073709551616:1", "feature 1 must have an id below 2^64"),
        ("1 1:nan", "feature 1 must have a decimal number as its value, got '1:nan'"),
        ("1 1:1e39", "feature 1 must have a value that float32 holds, got '1:1e39'"),
        ("1 1:1 2:1 3:1", "must have at most 2 features, got 3; give more slots"),
        ("1 1:1 # no", "feature 2 must be id:value"),
        ("1 1:" + "0" * LINE_BYTES_MAX, f"must have at most {LINE_BYTES_MAX} bytes, got '1 1:000"),
    ],
)
def test_a_fault_says_what_must_hold_and_what_came(line: str, fault: str) -> None:
    """The fault names the place in the line, what must hold and what came, cut to 80 characters."""
    found = LibsvmFormat(slots=2).find_fault(line.encode())

    assert found is not None
    assert found.startswith(fault)
    assert len(found) < 200


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 30))
def test_longest_row_is_found_in_pieces_of_any_size(counts: list[int], size: int) -> None:
    """However the bytes come, the most features of one line are counted."""
    text = "".join("1" + " 1:1" * count + "\n" for count in counts).encode()
    longest = Longest()

    for begin in range(0, len(text), size):
        longest.look(text[begin : begin + size])

    assert longest.slots == max([1, *counts])


def test_batches_join_rows_of_every_kind(tmp_path: Path) -> None:
    """Full and ragged, plain and weighted blocks make one batch whose bags are the lines' features."""
    texts = ["1 1:1 2:1", "0 3:1", "1 4:0.5 5:2", "0", "1 6:1 7:1"]
    path = tmp_path / "rows.txt"
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    form = LibsvmFormat(slots=2)
    files = count_files([path, path], form, name="x")
    whole = list(FileReader(files, form, batch_size=10))

    def bags(batch: Batch) -> list[tuple[list[int], list[float]]]:
        begins = np.arange(len(batch.keys)) if batch.offsets is None else batch.offsets
        weights = np.ones(len(batch.keys)) if batch.weights is None else batch.weights
        ends = [*begins[1:], len(batch.keys)]
        return [
            (batch.keys[b:e].tolist(), weights[b:e].tolist())
            for b, e in zip(begins, ends, strict=True)
        ]

    expected = [(*pair,) for batch in whole for pair in bags(batch)]
    for batch_size in (1, 2, 3, 4, 7):
        parts = list(FileReader(files, form, batch_size=batch_size))
        assert [pair for batch in parts for pair in bags(batch)] == expected
    key = slot_keys(np.array([[4]]), np.array([0])).item()
    assert expected[4] == ([key], [0.5])
    assert [keys for keys, _ in expected].count([]) == 2 * 3


@pytest.mark.parametrize(
    ("name", "rows", "slots", "positives"),
    [
        pytest.param(
            *("frappe_libfm/frappe.validation.libfm", 57_722, 10, 19_063), marks=pytest.mark.slow
        ),
        pytest.param(
            *("frappe_libfm/frappe.test.libfm", 28_860, 10, 9_536), marks=pytest.mark.slow
        ),
        ("rcv1_100_libsvm/rcv1_100.libsvm", 100, 206, 68),
    ],
)
def test_real_rows_equal_a_slow_reading(name: str, rows: int, slots: int, positives: int) -> None:
    """Every key, weight and label of the real files is what Python's own numbers give."""
    path = SHARED / name
    if not path.exists():
        pytest.skip("the real data is not here")
    longest = Longest()
    files = count_files([path], LibsvmFormat(slots=1), name="x", look=longest.look)
    form = LibsvmFormat(slots=longest.slots)

    (batch,) = FileReader(files, form, batch_size=1 << 20)

    assert (files.rows, longest.slots, int(batch.labels.sum())) == (rows, slots, positives)
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = [feature.split(":") for line in lines for feature in line[1:]]
    parsed = Rows(batch.keys, batch.offsets, batch.weights, batch.dense, batch.labels)
    assert len(pairs) == batch.keys.size
    features = [[(n, v) for n, v in (f.split(":") for f in line[1:])] for line in lines]
    check(parsed, [(line[0], f) for line, f in zip(lines, features, strict=True)], slots)
