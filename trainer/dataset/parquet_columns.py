"""Which column of a Parquet file is what, and what becomes of its values.

Rooms before and after: ``parquet`` reads the columns; ``keys`` has the rule that makes keys of ids.

=============================  ===========================  ====================================================
what                           types                        values
=============================  ===========================  ====================================================
the label                      boolean, number              0 or 1; anything else is a fault of its row
a dense feature                number                       as it is, in float32; null is 0; NaN and infinity are faults
a slot                         integer, boolean             the id, negative ones bit for bit
a slot                         text, bytes                  the id is XXH3 of the UTF-8 bytes
a slot of many ids             list of those                its ids, summed or averaged; null or empty: none
=============================  ===========================  ====================================================

A null in a slot of one id, or in a list, is ``EMPTY_ID``: a value of its own. Slot f is the f-th column named, or as they
stand in the file; its number is in the keys, so the same columns must be given again where a model is used.

What always holds: nothing is rounded to make an id; a slot has either integers or texts in all files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from pserver import nearest
from trainer.dataset.batch import Offsets
from trainer.dataset.keys import Ids, Keys, slot_keys
from trainer.dataset.rows import Rows
from trainer.errors import DataError

EMPTY_ID: Final = 1 << 63
"""The id of a null."""

Kind = Literal["number", "integer", "text", "integers", "texts"]

_LISTS: Final[Mapping[Kind | None, Kind]] = {"integer": "integers", "text": "texts"}

_FLOAT32_MAX = float(np.finfo(np.float32).max)

_USES = "a dense feature is a number; a slot is an integer, a text, or a list of these"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user says of columns.

    Attributes:
        label: its name.
        dense: names of dense features; None: all columns of floats that nothing else names.
        slots: names of slots, in order; None: all integers, texts and lists that nothing else names.
    """

    label: str = "label"
    dense: tuple[str, ...] | None = None
    slots: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns that are read, by name. Immutable.

    Attributes:
        label: one.
        dense: any number.
        slots: at least one, with their kinds.
    """

    label: str
    dense: tuple[str, ...]
    slots: tuple[tuple[str, Kind], ...]

    @property
    def names(self) -> list[str]:
        """Return all names."""
        return [self.label, *self.dense, *(name for name, _ in self.slots)]

    def faults(self, block: pa.RecordBatch) -> dict[int, str]:
        """Return what is wrong with rows of a block, by their places from 0."""
        found: dict[int, str] = {}
        labels = _floats(block[self.label])
        for row in np.flatnonzero((labels != 0.0) & (labels != 1.0)).tolist():
            found[row] = f"{self.label} must be 0 or 1, got {block[self.label][row].as_py()}"
        for name in self.dense:
            with np.errstate(invalid="ignore"):
                is_bad = ~(np.abs(_floats(block[name])) <= _FLOAT32_MAX)
            is_bad &= block[name].is_valid().to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(is_bad).tolist():
                value = block[name][row].as_py()
                found.setdefault(row, f"{name} must be a finite number of float32, got {value}")
        return found

    def rows(self, block: pa.RecordBatch) -> Rows:
        """Return the rows of a block without faults."""
        dense = np.empty((block.num_rows, len(self.dense)), np.float32)
        for index, name in enumerate(self.dense):
            dense[:, index] = np.nan_to_num(_floats(block[name]), nan=0.0)
        columns = [block[name] for name, _ in self.slots]
        if any(kind.endswith("s") for _, kind in self.slots):
            keys, offsets = _ragged_keys(columns, block.num_rows)
        else:
            ids = np.stack([_ids(column) for column in columns], axis=1)
            keys, offsets = slot_keys(ids, np.arange(len(columns))).reshape(-1), None
        return Rows(
            keys,
            offsets,
            None,
            dense,
            _floats(block[self.label]).astype(np.float32),
            num_empty_ints=sum(block[name].null_count for name in self.dense),
            num_empty_ids=sum(column.null_count for column in columns),
        )


def choose_columns(schema: pa.Schema, wanted: Wanted, *, where: str) -> Columns:
    """Return what each column is for.

    Raises:
        DataError: a name is no column's, a column has a type that its use does not take or is named twice, or no
            slot is left.
    """
    kinds = {field.name: _kind(field.type) for field in schema}
    named = (wanted.label, *(wanted.dense or ()), *(wanted.slots or ()))
    _check_named(named, kinds, where=where)
    left = [name for name in kinds if name not in named]
    dense, slots = wanted.dense, wanted.slots
    if dense is None or slots is None:
        for name in left:
            if kinds[name] is None:
                raise DataError(
                    f"{where}: column {name!r} is {schema.field(name).type}, and {_USES}; name those that are "
                    "to be read by dense_columns and slot_columns"
                )
    if dense is None:
        dense = tuple(name for name in left if kinds[name] == "number")
    if slots is None:
        slots = tuple(name for name in left if kinds[name] != "number")
    chosen = tuple((name, kind) for name in slots if (kind := kinds[name]) not in (None, "number"))
    uses = dict.fromkeys(dense, "dense") | {wanted.label: "a label"}
    refused = {n: use for n, use in uses.items() if kinds[n] not in ("number", "integer")}
    refused |= dict.fromkeys(set(slots) - dict(chosen).keys(), "a slot")
    for name, use in refused.items():
        raise DataError(
            f"{where}: column {name!r} is {schema.field(name).type}, so it cannot be {use}: {_USES}"
        )
    if not chosen:
        raise DataError(f"{where}: no column is a slot: {_USES}")
    return Columns(wanted.label, dense, chosen)


def _check_named(names: Sequence[str], known: Mapping[str, object], *, where: str) -> None:
    """Refuse names that are no column's, and columns that are named twice."""
    for name in names:
        if name not in known:
            raise DataError(f"{where}: has no column {name!r}; {nearest(name, known)}")
        if names.count(name) > 1:
            raise DataError(f"{where}: column {name!r} is named for two uses")


def check_alike(columns: Columns, found: Columns, *, first: str, where: str) -> None:
    """Refuse a file whose columns are others than the first one's, or of another kind.

    Raises:
        DataError: they differ; both files are named.
    """
    if columns == found:
        return
    apart = set(columns.names) ^ set(found.names)
    what = f"columns {', '.join(sorted(apart))}" if apart else "order or kinds of columns"
    raise DataError(
        f"{where}: {what} differ from those of {first}; name those that are to be read by dense_columns and slot_columns"
    )


def _kind(kind: pa.DataType) -> Kind | None:
    """Return what values of a type are; None: nothing that is read."""
    types = pa.types
    if types.is_dictionary(kind):
        return _kind(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind):
        return _LISTS.get(_kind(kind.value_type))
    if types.is_integer(kind) or types.is_boolean(kind):
        return "integer"
    if types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    is_text = types.is_string(kind) or types.is_large_string(kind)
    return "text" if is_text or types.is_binary(kind) or types.is_large_binary(kind) else None


def _floats(column: pa.Array) -> NDArray[np.float64]:
    """Return numbers, NaN for nulls."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    floats = column.cast(pa.float64(), safe=False)
    return np.asarray(floats.to_numpy(zero_copy_only=False))


def _ids(column: pa.Array) -> Ids:
    """Return the id of each value."""
    if pa.types.is_dictionary(column.type) or _kind(column.type) == "text":
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        known = np.append(_ids_of_distinct(encoded.dictionary), np.uint64(EMPTY_ID))
        places = encoded.indices.cast(pa.int64()).fill_null(len(known) - 1)
        ids: Ids = known[places.to_numpy(zero_copy_only=False)]
        return ids
    return _ids_of_distinct(column)


def _ids_of_distinct(values: pa.Array) -> Ids:
    """Return the ids of integers or texts that are no dictionary."""
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    if _kind(values.type) == "text":
        ids = np.zeros(len(values), np.uint64)
        texts = values.drop_null().cast(pa.large_binary()).to_pylist()
        ids[~is_null] = np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64, len(texts))
    else:
        is_signed = not pa.types.is_uint64(values.type)
        whole = values.cast(pa.int64() if is_signed else pa.uint64()).fill_null(0)
        ids = whole.to_numpy(zero_copy_only=False).astype(np.uint64)
    ids[is_null] = EMPTY_ID
    return ids


def _ragged_keys(columns: Sequence[pa.Array], count: int) -> tuple[Keys, Offsets]:
    """Return the keys of rows of which some slots have any number of ids, and where each bag begins."""
    lengths = np.ones((count, len(columns)), np.int64)
    flat: list[Ids] = []
    for slot, column in enumerate(columns):
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            sizes = column.value_lengths().fill_null(0)
            lengths[:, slot] = sizes.to_numpy(zero_copy_only=False)
            flat.append(_ids(column.flatten()))
        else:
            flat.append(_ids(column))
    ends = np.cumsum(lengths.reshape(-1))
    offsets = ends - lengths.reshape(-1)
    keys = np.empty(int(ends[-1]) if ends.size else 0, np.uint64)
    begins = offsets.reshape(lengths.shape)
    for slot, ids in enumerate(flat):
        own = lengths[:, slot]
        first = np.repeat(begins[:, slot] - (np.cumsum(own) - own), own)
        keys[first + np.arange(ids.size)] = slot_keys(ids, np.full(ids.size, slot))
    return keys, offsets
