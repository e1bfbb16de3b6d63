"""Files of keys and vectors, as others write them, in pieces: what ``pserver import`` reads.

Rooms before and after: the command line assigns what comes from here to a table.

Formats: those of ``export`` (npy, safetensors, parquet, csv, jsonl), and text with one row a line, the key
and then numbers, as Paddle's servers write tables (``text``; ``.gz`` works). Of a text's numbers the wanted
columns are taken: in a table of Paddle's the weights stand behind other fields.

What always holds: a file that cannot be read is an error that says where; nothing is guessed.
"""

import csv
import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pyarrow import parquet
from safetensors.numpy import load_file

from pserver.arrays import Keys
from pserver.errors import ConfigError

BLOCK_ROWS = 1 << 16
"""Rows a piece."""

Block: TypeAlias = tuple[Keys, NDArray[Any]]
"""(U,) keys and (U, dim) numbers."""


def read_vectors_file(path: Path, form: str, columns: Sequence[int]) -> Iterator[Block]:
    """Yield the rows of a file.

    Args:
        path: of the file.
        form: one of ``READERS``.
        columns: of a text, which numbers of a line are the weights; none: all.

    Raises:
        ConfigError: the file cannot be read, or is not of that form.
    """
    if columns and form != "text":
        raise ConfigError(f"import: columns are for text, {form} files have their weights by name")
    try:
        if form == "text":
            yield from _read_text(path, columns)
        else:
            yield from READERS[form](path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"import: {path} is no {form} file of keys and vectors: {error}"
        ) from error


def _cut(keys: Keys, vectors: NDArray[Any], scales: NDArray[Any] | None) -> Iterator[Block]:
    for begin in range(0, keys.size, BLOCK_ROWS):
        part = slice(begin, begin + BLOCK_ROWS)
        block = vectors[part].astype(np.float32)
        if scales is not None:
            block *= scales[part, None]
        yield keys[part].astype(np.uint64), block


def _read_npy(path: Path) -> Iterator[Block]:
    records = np.load(path, mmap_mode="r", allow_pickle=False)
    names = records.dtype.names or ()
    yield from _cut(
        records["key"], records["vector"], records["scale"] if "scale" in names else None
    )


def _read_safetensors(path: Path) -> Iterator[Block]:
    arrays = load_file(path)
    yield from _cut(arrays["keys"], arrays["vectors"], arrays.get("scales"))


def _read_parquet(path: Path) -> Iterator[Block]:
    for batch in parquet.ParquetFile(path).iter_batches(BLOCK_ROWS):
        keys = batch.column("key").to_numpy(zero_copy_only=False)
        vectors = batch.column("vector").flatten().to_numpy(zero_copy_only=False)
        has_scales = "scale" in batch.schema.names
        scales = batch.column("scale").to_numpy(zero_copy_only=False) if has_scales else None
        yield from _cut(keys, vectors.reshape(keys.size, -1), scales)


def _read_csv(path: Path) -> Iterator[Block]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        head = next(rows)
        if head[:1] != ["key"]:
            raise ValueError(f"its first line must begin with key, got {head[:1]}")
        yield from _blocks((int(row[0]), [float(text) for text in row[1:]]) for row in rows)


def _read_jsonl(path: Path) -> Iterator[Block]:
    with path.open(encoding="utf-8") as file:
        lines = (json.loads(line) for line in file)
        yield from _blocks((line["key"], line["vector"]) for line in lines)


def _read_text(path: Path, columns: Sequence[int]) -> Iterator[Block]:
    with path.open("rb") as raw:
        file = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
        yield from _blocks(_text_row(line.decode(), columns) for line in file if line.strip())


def _text_row(line: str, columns: Sequence[int]) -> tuple[int, list[float]]:
    key, *rest = line.split()
    wanted = [rest[i] for i in columns] if columns else rest
    return int(key), [float(text) for text in wanted]


def _blocks(rows: Iterator[tuple[int, list[float]]]) -> Iterator[Block]:
    """Yield rows as blocks; a negative key is taken bit for bit."""
    while part := list(islice(rows, BLOCK_ROWS)):
        dims = {len(vector) for _, vector in part}
        if len(dims) > 1:
            raise ValueError(f"rows must have one length, got {sorted(dims)}")
        keys = np.array([key % 2**64 for key, _ in part], np.uint64)
        yield keys, np.array([vector for _, vector in part], np.float32)


READERS: Mapping[str, Callable[[Path], Iterator[Block]]] = {
    "npy": _read_npy,
    "safetensors": _read_safetensors,
    "parquet": _read_parquet,
    "csv": _read_csv,
    "jsonl": _read_jsonl,
}
"""Every format but text, by its name."""
