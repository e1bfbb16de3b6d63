"""What ``trainer.dataset.criteo`` promises: exact values, or a fault that is named."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.dataset.criteo import EMPTY_ID, LINE_BYTES_MAX, CriteoFormat
from trainer.dataset.keys import slot_keys

parse_block = CriteoFormat().parse_block
find_fault = CriteoFormat().find_fault

INTS = st.one_of(
    st.just(""),
    st.integers(-(10**18) + 1, 10**18 - 1).map(str),
    st.integers(-5, 99).map(lambda x: f"{x:04d}"),
    st.sampled_from(["-0", "0", "000000000000000000000000001"]),
)
HEXES = st.text("0123456789abcdefABCDEF", max_size=8)
LINES = st.tuples(
    st.sampled_from(["0", "1"]),
    st.lists(INTS, min_size=13, max_size=13),
    st.lists(HEXES, min_size=26, max_size=26),
)
NASTY = [
    "",
    " ",
    "1 ",
    "+1",
    "-",
    "1-1",
    "--1",
    "0x1f",
    "1e5",
    "1.0",
    "NaN",
    "NULL",
    "inf",
    "\0",
    "²",
]
NASTY += [
    "9" * 18,
    "9" * 19,
    "9" * 25,
    "-" + "9" * 19,
    "0" * 30 + "1",
    "123456789",
    "-1",
    "g",
    "\r",
    '"1"',
]


def good_fields() -> list[str]:
    """Return the fields of a good line."""
    return ["1", *(str(i) for i in range(13)), *(f"{i:08x}" for i in range(26))]


def slow_dense(text: str) -> float:
    """The documented transform, a number at a time."""
    value = int(text or "0")
    return math.copysign(math.log1p(abs(value)), value)


@settings(deadline=None)  # the first example compiles
@given(st.lists(LINES, min_size=1, max_size=5))
def test_every_value_is_what_the_text_says(rows: list[tuple[str, list[str], list[str]]]) -> None:
    """Labels, transformed integers and ids of random lines equal a slow reading of the text."""
    data = "".join("\t".join([label, *ints, *hexes]) + "\n" for label, ints, hexes in rows)

    parsed = parse_block(data.encode())

    assert parsed is not None
    assert parsed.labels.tolist() == [float(label) for label, _, _ in rows]
    dense = np.array([[slow_dense(text) for text in ints] for _, ints, _ in rows], np.float32)
    np.testing.assert_allclose(parsed.dense, dense, rtol=1e-6)
    ids = np.array([[int(h, 16) if h else EMPTY_ID for h in hexes] for _, _, hexes in rows])
    assert np.array_equal(parsed.keys.reshape(-1, 26), slot_keys(ids, np.arange(26)))
    assert parsed.num_empty_ints == sum(ints.count("") for _, ints, _ in rows)
    assert parsed.num_empty_ids == sum(hexes.count("") for _, _, hexes in rows)


@settings(deadline=None)  # the first example compiles
@given(st.integers(0, 39), st.one_of(st.sampled_from(NASTY), st.text(max_size=10)))
def test_both_parsers_accept_the_same_fields(index: int, text: str) -> None:
    """With any text in any field, the block is refused if and only if the line has a fault."""
    fields = good_fields()
    fields[index] = text.replace("\n", "")
    line = "\t".join(fields).encode("utf-8", "surrogatepass")

    assert (parse_block(line + b"\n") is None) == (find_fault(line) is not None)


@settings(deadline=None)  # the first example compiles
@given(st.integers(0, 200), st.binary(max_size=3), st.integers(0, 3))
def test_both_parsers_accept_the_same_bytes(begin: int, inserted: bytes, dropped: int) -> None:
    """With any bytes put in or taken out, the two parsers agree, good lines around it or not."""
    good = "\t".join(good_fields()).encode()
    line = (good[:begin] + inserted + good[begin + dropped :]).replace(b"\n", b"")
    refused = find_fault(line) is not None

    assert (parse_block(line + b"\n") is None) == refused
    assert (parse_block(b"\n".join([good, line, good, b""])) is None) == refused


@pytest.mark.parametrize(
    ("index", "text", "fault"),
    [
        (0, "", "label must be 0 or 1, got ''"),
        (0, "2", "label must be 0 or 1, got '2'"),
        (0, "01", "label must be 0 or 1, got '01'"),
        (3, "1.5", "I3 must be an integer of at most 18 digits, got '1.5'"),
        (13, "NaN", "I13 must be an integer of at most 18 digits, got 'NaN'"),
        (1, "1" * 19, f"I1 must be an integer of at most 18 digits, got '{'1' * 19}'"),
        (14, "xyz", "C1 must be at most 8 hex digits, got 'xyz'"),
        (39, "123456789", "C26 must be at most 8 hex digits, got '123456789'"),
        (5, "7\r", "I5 must be an integer of at most 18 digits, got '7\\r'"),
        (5, "1\t2", "must have 40 TAB-separated fields, got 41: '1\\t0"),
        (5, "1\x002", "must have no NUL byte, got '1\\t0"),
        (5, "z" * 100, f"I5 must be an integer of at most 18 digits, got '{'z' * 80}'..."),
        (5, "0" * 1200, f"must have at most {LINE_BYTES_MAX} bytes, got '1\\t0"),
    ],
)
def test_a_fault_says_what_must_hold_and_what_came(index: int, text: str, fault: str) -> None:
    """The fault names the field by its Criteo name, cut to 80 characters."""
    fields = good_fields()
    fields[index] = text

    found = find_fault("\t".join(fields).encode())

    assert found is not None
    assert found.startswith(fault)
    assert len(found) < 180


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"", "must have 40 TAB-separated fields, got 1: ''"),
        (b"0\t1", "must have 40 TAB-separated fields, got 2: '0\\t1'"),
        (b"0\t1\xff", "must be UTF-8, got byte 0xff at offset 3"),
        ("\t".join(good_fields()[1:]).encode(), "must have 40 TAB-separated fields, got 39"),
    ],
)
def test_g4_a_line_that_is_no_row_has_a_fault(line: bytes, fault: str) -> None:
    """A blank line, a cut one, one without its label and bytes that are no UTF-8 are named."""
    assert (find_fault(line) or "").startswith(fault)
    assert parse_block(line + b"\n") is None


def test_g4_empty_is_an_id_of_its_own_in_each_slot() -> None:
    """An empty value shares its key with no hex value, nor with the empty one of another slot."""
    fields = good_fields()[:14]
    empty = parse_block(
        "\t".join(
            [
                *fields,
                *[""] * 26,
            ]
        ).encode()
        + b"\n"
    )
    zero = parse_block("\t".join([*fields, *["0"] * 26]).encode() + b"\n")
    most = parse_block("\t".join([*fields, *["ffffffff"] * 26]).encode() + b"\n")

    assert empty is not None
    assert zero is not None
    assert most is not None
    keys = np.concatenate([rows.keys.ravel() for rows in (empty, zero, most)])
    assert len(np.unique(keys)) == 3 * 26
