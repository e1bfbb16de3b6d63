"""A table of a version as one file for serving: keys and vectors, sorted by key.

Rooms before and after: ``pserver export`` asks; ``tools.rows_of`` gives rows in pieces. No server is needed.

What always holds: every row of the table is in the file once; what rounding to another dtype costs is told.
Memory: the keys and weights of the whole table, twice.
"""

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet
from safetensors.numpy import save_file

from pserver.arrays import Floats, Keys
from pserver.checkpoint.load import chain_of
from pserver.checkpoint.store import Store
from pserver.checkpoint.tools import rows_of
from pserver.errors import ConfigError
from pserver.table.accessor import make_accessor
from pserver.table.choice import Choice, keeper
from pserver.table.dump import Arrays
from pserver.table.slab_half import widened

Dtype: TypeAlias = Literal["float32", "float16", "int8"]
DTYPES: tuple[Dtype, ...] = ("float32", "float16", "int8")

_INT8_MAX = 127
_BLOCK_ROWS = 4096  # of npy, made and written together


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written.

    Attributes:
        path: of the file.
        rows, dim: of the table.
        bytes: of the file.
        error_max, error_mean: of the rounded weights, against those of the version.
    """

    path: str
    rows: int
    dim: int
    bytes: int
    error_max: float
    error_mean: float


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """Keys and vectors, sorted by key.

    Attributes:
        keys: (U,) uint64.
        weights: (U, dim) of the wanted dtype.
        scales: (U,) float32 for int8: a weight is its number times its row's scale; else None.
    """

    keys: Keys
    weights: NDArray[Any]
    scales: Floats | None


def read_vectors(
    store: Store, version: str, table: str, choice: Choice = "all"
) -> tuple[Keys, Floats]:
    """Return the keys of a table, sorted, and their (U, dim) float32 weights.

    Args:
        store: where the version lies.
        version: its name.
        table: its name.
        choice: see ``keeper``.

    Raises:
        CheckpointError: the version has no such table, or cannot be read.
        ConfigError: the table is dense, or has no scores to choose rows by.
    """
    entry = chain_of(store, version)[-1].table(table)
    if entry.kind != "sparse":
        raise ConfigError(f"export: table {table!r} is dense: it has no keys")
    dim = int(entry.spec["dim"])
    accessor = make_accessor(entry.spec.get("accessor", "plain"))
    kept = keeper(accessor, choice, where=f"export: table {table!r}")
    every, parts = [np.empty(0, np.uint64)], []
    for some, rows in rows_of(store, version, table):
        wanted = kept(rows)
        every.append(some[wanted])
        parts.append(_weights({name: column[wanted] for name, column in rows.items()}, dim))
    keys = np.concatenate(every)
    order = np.argsort(keys)
    places = np.empty(keys.size, np.int64)
    places[order] = np.arange(keys.size)
    weights = np.empty((keys.size, dim), np.float32)
    end = keys.size
    while parts:  # each goes when it is in its place: at most two copies of the table at once
        part = parts.pop()
        weights[places[end - len(part) : end]] = part
        end -= len(part)
    return keys[order], weights


def _weights(rows: Arrays, dim: int) -> Floats:
    """Return the (U, dim) weights of rows; of ctr both parts."""
    parts = [widened(rows[name]) for name in ("weights", "embedx.weights") if name in rows]
    wide = [part[:, None] if part.ndim == 1 else part for part in parts]
    return np.concatenate(wide, axis=1)[:, :dim]


def rounded(keys: Keys, weights: Floats, dtype: Dtype) -> tuple[Vectors, float, float]:
    """Return vectors of another dtype, and the largest and the mean error of a weight.

    >>> keys, weights = np.array([7], np.uint64), np.array([[1.0, -0.5]], np.float32)
    >>> vectors, largest, _ = rounded(keys, weights, "int8")
    >>> vectors.weights.tolist(), round(largest, 4)
    ([[127, -64]], 0.0039)
    """
    scales = None
    if dtype == "float32":
        return Vectors(keys, weights, None), 0.0, 0.0
    if dtype == "int8":
        scales = np.abs(weights).max(axis=1, initial=0.0) / np.float32(_INT8_MAX)
        divisors = np.where(scales > 0, scales, np.float32(1.0))[:, None]
        made = np.rint(weights / divisors).astype(np.int8)
        back = made * scales[:, None]
    else:
        made = weights.astype(dtype)
        back = made.astype(np.float32)
    errors = np.abs(back - weights)
    largest = float(errors.max(initial=0.0))
    return Vectors(keys, made, scales), largest, float(errors.mean()) if errors.size else 0.0


def export(
    store: Store,
    version: str,
    table: str,
    path: Path,
    *,
    how: tuple[str, Dtype],
    choice: Choice = "all",
) -> Exported:
    """Write a table of a version into one file.

    Args:
        store: where the version lies.
        version: its name.
        table: its name.
        path: of the file; one that is there is replaced when the new one is whole.
        how: format and dtype.
        choice: which rows, see ``keeper``.

    Raises:
        ConfigError: the format cannot hold the dtype, the table is dense, or the file cannot be
            written.
        CheckpointError: the version has no such table, or cannot be read.
    """
    form, dtype = how
    if dtype == "int8" and form in ("csv", "jsonl"):
        raise ConfigError(
            f"export: {form} holds no int8 with scales; take npy, safetensors or parquet"
        )
    keys, weights = read_vectors(store, version, table, choice)
    vectors, largest, mean = rounded(keys, weights, dtype)
    aside = path.with_name(f".{path.name}.part")
    try:
        WRITERS[form](vectors, aside)
        aside.rename(path)
    except OSError as error:
        raise ConfigError(f"export: cannot write {path}: {error}") from error
    return Exported(str(path), keys.size, weights.shape[1], path.stat().st_size, largest, mean)


def _write_npy(vectors: Vectors, path: Path) -> None:
    """One array of records: key, vector, and scale for int8."""
    fields: list[Any] = [
        ("key", "<u8"),
        ("vector", vectors.weights.dtype, vectors.weights.shape[1:]),
    ]
    if vectors.scales is not None:
        fields.append(("scale", "<f4"))
    kind = np.dtype(fields)
    with path.open("wb") as file:
        shape = {"shape": (vectors.keys.size,), "fortran_order": False}
        np.lib.format.write_array_header_1_0(
            file, {**shape, "descr": np.lib.format.dtype_to_descr(kind)}
        )
        for begin in range(0, vectors.keys.size, _BLOCK_ROWS):
            some = slice(begin, begin + _BLOCK_ROWS)
            records = np.empty(vectors.keys[some].size, kind)
            records["key"], records["vector"] = vectors.keys[some], vectors.weights[some]
            if vectors.scales is not None:
                records["scale"] = vectors.scales[some]
            file.write(records.tobytes())


def _write_safetensors(vectors: Vectors, path: Path) -> None:
    arrays = {"keys": vectors.keys, "vectors": np.ascontiguousarray(vectors.weights)}
    if vectors.scales is not None:
        arrays["scales"] = vectors.scales
    save_file(arrays, path)


def _write_parquet(vectors: Vectors, path: Path) -> None:
    values = pa.array(vectors.weights.reshape(-1))
    dim = vectors.weights.shape[1]
    columns = {
        "key": pa.array(vectors.keys),
        "vector": pa.FixedSizeListArray.from_arrays(values, dim),
    }
    if vectors.scales is not None:
        columns["scale"] = pa.array(vectors.scales)
    parquet.write_table(pa.table(columns), path)


def _write_csv(vectors: Vectors, path: Path) -> None:
    with path.open("w", encoding="ascii", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["key", *(f"v{i}" for i in range(vectors.weights.shape[1]))])
        for key, row in zip(vectors.keys.tolist(), _exact(vectors.weights), strict=True):
            writer.writerow([key, *row])


def _write_jsonl(vectors: Vectors, path: Path) -> None:
    with path.open("w", encoding="ascii") as file:
        for key, row in zip(vectors.keys.tolist(), _exact(vectors.weights), strict=True):
            file.write(json.dumps({"key": key, "vector": [float(text) for text in row]}) + "\n")


def _exact(weights: NDArray[Any]) -> list[list[str]]:
    """Return the shortest texts that read back as the very numbers."""
    return [[str(weight) for weight in row] for row in weights]


WRITERS: Mapping[str, Callable[[Vectors, Path], None]] = {
    "npy": _write_npy,
    "safetensors": _write_safetensors,
    "parquet": _write_parquet,
    "csv": _write_csv,
    "jsonl": _write_jsonl,
}
"""Every format, by its name."""
