"""Parquet files as batches: every value beside a slow reading of the same rows, ranges, faults and refusals."""

import datetime
import itertools
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from pyarrow import parquet

from trainer.dataset import Batch, find_files, slot_keys
from trainer.dataset.parquet import ParquetFiles, find_parquet
from trainer.dataset.parquet_columns import EMPTY_ID, Wanted
from trainer.errors import DataError

SCHEMA = pa.schema(
    [
        ("age", pa.float32()),
        ("label", pa.int8()),
        ("user", pa.int64()),
        ("city", pa.string()),
        ("seen", pa.list_(pa.int32())),
        ("price", pa.float64()),
        ("tags", pa.list_(pa.string())),
    ]
)
SLOTS = ("user", "city", "seen", "tags")

Row = dict[str, Any]

rows_of_files = st.lists(
    st.lists(
        st.fixed_dictionaries(
            {
                "age": st.none() | st.floats(-1e3, 1e3, width=32),
                "label": st.integers(0, 1),
                "user": st.none() | st.integers(-(2**63), 2**63 - 1),
                "city": st.none() | st.text(max_size=3),
                "seen": st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=3),
                "price": st.none() | st.floats(-1e30, 1e30),
                "tags": st.none() | st.lists(st.text(max_size=2), max_size=2),
            }
        ),
        max_size=9,
    ),
    min_size=1,
    max_size=3,
)


def write(path: Path, rows: list[Row], schema: pa.Schema = SCHEMA, group_rows: int = 4) -> Path:
    """Write one file with small row groups."""
    table = pa.Table.from_pylist(rows, schema=schema)
    parquet.write_table(table, path, row_group_size=group_rows)
    return path


def opened(*paths: Path, **wanted: Any) -> ParquetFiles:
    """Return the files as a data set."""
    return find_parquet(paths, Wanted(**wanted), name="rows")


def read(files: ParquetFiles, size: int, begin: int = 0, end: int | None = None) -> list[Batch]:
    """Return the batches of a range."""
    rows_max = (files.rows if end is None else end) - begin
    return list(files.reader(batch_size=size, skip_rows=begin, rows_max=rows_max, bad_lines_max=0))


def id_of(value: object) -> int:
    """Return the id of one value, as the documents say."""
    if value is None:
        return EMPTY_ID
    if isinstance(value, str):
        return xxhash.xxh3_64_intdigest(value.encode())
    assert isinstance(value, int)
    return value % 2**64


def bags_of(row: Row) -> list[list[int]]:
    """Return the keys of each slot of a row, one by one."""
    bags = []
    for slot, name in enumerate(SLOTS):
        values = (row[name] or []) if name in ("seen", "tags") else [row[name]]
        ids = np.array([id_of(value) for value in values], np.uint64)
        bags.append(slot_keys(ids, np.full(ids.size, slot)).tolist())
    return bags


def bags_in(batch: Batch) -> list[list[list[int]]]:
    """Return the keys of each sample and slot."""
    assert batch.offsets is not None
    ends = [*batch.offsets[1:].tolist(), batch.keys.size]
    bags = [batch.keys[b:e].tolist() for b, e in zip(batch.offsets.tolist(), ends, strict=True)]
    return [bags[i : i + len(SLOTS)] for i in range(0, len(bags), len(SLOTS))]


@settings(max_examples=60, deadline=None)
@given(rows_of_files, st.integers(1, 7), st.data())
def test_every_row_of_a_range_is_there_with_its_label_features_and_keys(
    tmp_path_factory: pytest.TempPathFactory,
    content: list[list[Row]],
    size: int,
    data: st.DataObject,
) -> None:
    """Any files, row groups, range and batch size: the rows that a slow reading has, in order, and positions."""
    folder = tmp_path_factory.mktemp("parquet")
    files = opened(*(write(folder / f"{i}.parquet", rows) for i, rows in enumerate(content)))
    rows = [row for own in content for row in own]
    begin = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(begin, len(rows)))

    batches = read(files, size, begin, end)

    assert (files.rows, files.num_slots, files.num_dense) == (len(rows), 4, 2)
    wanted = rows[begin:end]
    assert [batch.num_samples for batch in batches] == [
        min(size, len(wanted) - i) for i in range(0, len(wanted), size)
    ]
    found = [bags for batch in batches for bags in bags_in(batch)]
    assert found == [bags_of(row) for row in wanted]
    labels = [label for batch in batches for label in batch.labels.tolist()]
    assert labels == [row["label"] for row in wanted]
    dense = [features for batch in batches for features in batch.dense.tolist()]
    assert dense == [
        [float(np.float32(row[name] or 0.0)) for name in ("age", "price")] for row in wanted
    ]
    done = itertools.accumulate((batch.num_samples for batch in batches), initial=begin)
    assert [batch.position for batch in batches] == list(done)[1:]


def test_one_id_a_slot_needs_no_offsets(tmp_path: Path) -> None:
    """Without lists each bag has just one key; dictionaries and small integers have the ids of their values."""
    schema = pa.schema(
        [
            ("click", pa.bool_()),
            ("a", pa.dictionary(pa.int8(), pa.string())),
            ("b", pa.uint8()),
            ("c", pa.uint64()),
            ("d", pa.bool_()),
        ]
    )
    rows: list[Row] = [
        {"click": True, "a": "x", "b": 255, "c": 2**64 - 1, "d": True},
        {"click": False, "a": None, "b": None, "c": 0, "d": False},
    ]

    (batch,) = read(opened(write(tmp_path / "a.parquet", rows, schema), label="click"), 5)

    ids = [[id_of("x"), 255, 2**64 - 1, 1], [EMPTY_ID, EMPTY_ID, 0, 0]]
    assert batch.offsets is None
    assert (
        batch.keys.tolist()
        == slot_keys(np.array(ids, np.uint64), np.arange(4)).reshape(-1).tolist()
    )
    assert batch.labels.tolist() == [1.0, 0.0]
    assert batch.dense.shape == (2, 0)


def test_columns_are_read_as_they_are_named(tmp_path: Path) -> None:
    """Slots in the order given, integers as dense features, and nothing of what is not named."""
    path = write(
        tmp_path / "a.parquet", [{"label": 1, "user": 7, "city": "x", "age": 0.5, "price": None}]
    )

    (batch,) = read(opened(path, slots=("city", "user"), dense=()), 5)
    (other,) = read(opened(path, slots=("city",), dense=("price", "user", "age")), 5)

    ids = np.array([[id_of("x"), 7]], np.uint64)
    assert batch.keys.tolist() == slot_keys(ids, np.arange(2))[0].tolist()
    assert batch.dense.shape == (1, 0)
    assert other.dense.tolist() == [[0.0, 7.0, 0.5]]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"label": 2}, "row 6: label must be 0 or 1, got 2"),
        ({"label": None}, "row 6: label must be 0 or 1, got None"),
        ({"age": float("nan")}, "row 6: age must be a finite number of float32, got nan"),
        ({"price": 1e39}, r"row 6: price must be a finite number of float32, got 1e\+39"),
    ],
)
def test_a_row_with_a_fault_is_refused_or_skipped(tmp_path: Path, change: Row, text: str) -> None:
    """The message names file, row and column; skipped it is counted, and the others keep their numbers."""
    good: Row = {"label": 0, "user": 1, "city": "", "age": 0.0, "price": 0.0}
    rows = [{**good, "user": number} for number in range(9)]
    rows[5] |= change
    path = write(tmp_path / "a.parquet", rows)

    with pytest.raises(DataError, match=f"a.parquet: {text}"):
        read(opened(path), 4)

    reader = opened(path).reader(batch_size=4, skip_rows=0, rows_max=9, bad_lines_max=1)
    positions = [batch.position for batch in reader]
    assert positions == [4, 9]
    assert reader.counts.bad_lines == 1
    assert reader.counts.first_bad_lines[0].startswith(f"{path}: row 6")


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"label": "lable"}, "has no column 'lable'; did you mean 'label'"),
        ({"slots": ("citty",)}, "has no column 'citty'; did you mean 'city'"),
        ({"slots": ("user", "user")}, "column 'user' is named for two uses"),
        ({"label": "city"}, "column 'city' is string, so it cannot be a label"),
        ({"dense": ("city",)}, "column 'city' is string, so it cannot be dense"),
        ({"slots": ("age",)}, "column 'age' is float, so it cannot be a slot"),
        ({"slots": ()}, "no column is a slot"),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path: Path, wanted: Row, text: str) -> None:
    """Before anything is trained, with the file and what a use takes."""
    path = write(tmp_path / "a.parquet", [])

    with pytest.raises(DataError, match=text):
        opened(path, **wanted)


def test_a_column_that_is_neither_must_be_named_away(tmp_path: Path) -> None:
    """A time is no id and no feature: nothing is guessed."""
    schema = SCHEMA.append(pa.field("at", pa.timestamp("ms")))
    path = write(
        tmp_path / "a.parquet", [{"at": datetime.datetime(2026, 3, 1), "label": 1}], schema
    )

    with pytest.raises(DataError, match=r"column 'at' is timestamp\[ms\].*dense_columns and slot"):
        opened(path)

    assert opened(path, dense=("age",), slots=("user",)).num_slots == 1


def test_files_with_other_columns_or_kinds_are_refused(tmp_path: Path) -> None:
    """An id that is a number here and a text there would be two keys; both files are named."""
    one = write(tmp_path / "1.parquet", [])
    text = write(tmp_path / "2.parquet", [], SCHEMA.set(2, pa.field("user", pa.string())))
    more = write(tmp_path / "3.parquet", [], SCHEMA.append(pa.field("more", pa.int64())))

    with pytest.raises(
        DataError, match=r"2.parquet: order or kinds of columns differ from those of .*1.p"
    ):
        opened(one, text)
    with pytest.raises(
        DataError, match=r"3.parquet: columns more differ from those of .*1.parquet"
    ):
        opened(one, more)
    assert opened(one, more, dense=("age",), slots=("user",)).rows == 0


def test_what_is_no_parquet_is_named(tmp_path: Path) -> None:
    """A text, and a file that was replaced by a shorter one after it was counted."""
    text = tmp_path / "a.txt"
    text.write_text("1,2,3\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a.txt: is no Parquet file that can be read"):
        opened(*find_files(str(text)))

    path = write(tmp_path / "b.parquet", [{"label": 1}] * 5)
    files = opened(path)
    write(path, [{"label": 1}] * 3)
    with pytest.raises(DataError, match="has 3 rows now and had 5"):
        read(files, 2)
