"""Pieces of a cut to the files of a version.

Rooms before and after: ``table.cut`` gives pieces between requests; files are made in another thread, so
requests do not wait for sorting, checksums and the disk; ``store`` takes the bytes.

A file holds a run of whole partitions, about ``CHUNK_BYTES`` of rows, sorted by partition and then by
key. So a load on another number of shards reads the files that its partitions lie in and no others.

What always holds: a table's files hold each row of its cut once. Owner: the save, which adds pieces and has
files written in turns, never both at once.

Memory: the pieces of one file, once more as columns, and the columns of the file before, which is being
written: three times ``CHUNK_BYTES``, and the rows kept aside for later partitions.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pserver.arrays import Keys
from pserver.checkpoint.manifest import FileEntry, TableEntry
from pserver.checkpoint.tensors import Encoded, encode
from pserver.errors import CheckpointError
from pserver.kernel import copies
from pserver.placement import NUM_PARTITIONS, partition_of, slice_of_shard
from pserver.table.cut import Cut, Piece
from pserver.table.dense_dump import DenseCut
from pserver.table.dump import Arrays, Block, shapes, sorted_columns
from pserver.table.values import read_only

CHUNK_BYTES = 32 << 20
"""Bytes of rows a file: 400,000 rows of dim 16 with adagrad."""

Write = Callable[[str, Encoded], None]
"""Takes a file's name and what it holds, which must not change any more."""

Keep = Callable[[Arrays], NDArray[np.bool_]]
"""Says of a table's columns which rows are written."""


def order_of(keys: Keys) -> NDArray[np.int64]:
    """Return the positions of keys sorted by partition and then by key.

    >>> order_of(np.array([1, 0, 2**64 - 1], np.uint64)).tolist()
    [1, 0, 2]
    """
    order = np.empty(keys.size, np.int64)
    copies.sort_keys(read_only(keys), np.empty(NUM_PARTITIONS, np.int64), order)
    return order


def distinct(parts: Sequence[Keys]) -> Keys:
    """Return the distinct keys of (U,) arrays, sorted by partition and then by key."""
    keys = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))
    return keys[order_of(keys)]


def offsets_of(keys: Keys) -> NDArray[np.int64]:
    """Return where each of the 1024 partitions begins among sorted keys, and where the last ends."""
    counts = np.bincount(partition_of(keys), minlength=NUM_PARTITIONS)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def rows_file(
    write: Write,
    name: str,
    arrays: Arrays,
    *,
    table: str,
    shard: int,
    partitions: tuple[int, int],
) -> FileEntry:
    """Write one file of rows.

    Args:
        write: takes the file.
        name: of the file.
        arrays: ``keys`` (U,) sorted, the columns, and ``erased`` (E,) of a delta.
        table: whose rows they are.
        shard: who writes.
        partitions: [begin, end) that the file holds.
    """
    keys = arrays["keys"]
    facts = {"table": table, "partitions": f"{partitions[0]}-{partitions[1]}"}
    data = encode({**arrays, "partition_offsets": offsets_of(keys)}, facts)
    write(name, data)
    return FileEntry(
        name=name,
        kind="rows",
        shard=shard,
        table=table,
        bytes=data.num_bytes,
        sha256=data.sha256,
        rows=keys.size,
        erased=arrays["erased"].size if "erased" in arrays else 0,
        partitions=partitions,
    )


class RowFiles:
    """The files of one table of one shard, as its pieces come."""

    def __init__(
        self,
        write: Write,
        blocks: Sequence[Block],
        *,
        table: str,
        shard: int,
        partitions: tuple[int, int],
    ) -> None:
        """Begin without files.

        Args:
            write: takes each file.
            blocks: the layout of the pieces.
            table: whose rows they are.
            shard: who writes.
            partitions: [begin, end) of the shard.
        """
        self.entries: list[FileEntry] = []
        self.keep: Keep | None = None
        self.erased: Keys | None = None
        self.num_rows = 0
        self._write = write
        self._blocks = blocks
        self._table, self._shard = table, shard
        self._begin, self._end = partitions
        self._pending: list[Piece] = []
        self._ready_bytes = 0

    @property
    def is_due(self) -> bool:
        """Return whether there is enough for a file."""
        return self._ready_bytes >= CHUNK_BYTES

    def add(self, pieces: Sequence[Piece]) -> None:
        """Take pieces of the cut."""
        self._pending += pieces
        self._ready_bytes += sum(piece.num_bytes for piece in pieces)

    def finish(self) -> list[FileEntry]:
        """Write what is left, and return what the manifest says of all files."""
        self.flush(self._end)
        assert not sum(piece.keys.size for piece in self._pending), "rows of foreign partitions"
        return self.entries

    def flush(self, next_partition: int) -> None:
        """Write one file with the partitions before this one, all of whose rows have come; the others stay."""
        end = min(next_partition, self._end)
        if end <= self._begin:
            return
        keys = np.concatenate([np.empty(0, np.uint64), *(piece.keys for piece in self._pending)])
        rows = tuple(
            np.concatenate(
                [np.empty((0, b.width), b.memory.dtype), *(p.rows[i] for p in self._pending)]
            )
            for i, b in enumerate(self._blocks)
        )
        is_ready = partition_of(keys) < end
        where = np.flatnonzero(is_ready)
        where = where[order_of(keys[where])]
        later = ~is_ready
        self._pending = [Piece(keys[later], tuple(block[later] for block in rows))]
        # Those come again when their partitions are ready, or one by one they would fill files.
        self._ready_bytes = 0
        named = sorted_columns(self._blocks, rows, read_only(where))
        self._write_file(keys[where], named, end)
        self._begin = end

    def _write_file(self, keys: Keys, named: dict[str, NDArray[Any]], end: int) -> None:
        if self.keep is not None:
            kept = self.keep(named)
            keys, named = keys[kept], {name: column[kept] for name, column in named.items()}
        arrays = {"keys": keys, **named}
        if self.erased is not None:
            partitions = partition_of(self.erased)
            arrays["erased"] = self.erased[(partitions >= self._begin) & (partitions < end)]
        self.num_rows += keys.size
        entry = rows_file(
            self._write,
            f"rows-{self._table}-{self._shard:05d}-{len(self.entries):05d}.safetensors",
            arrays,
            table=self._table,
            shard=self._shard,
            partitions=(self._begin, end),
        )
        self.entries.append(entry)


def sparse_entry(cut: Cut, files: RowFiles) -> TableEntry:
    """Return what a shard says of a table whose files are written.

    Raises:
        CheckpointError: the files have not the rows of the cut: our own mistake, found in time.
    """
    name = cut.table.spec.name
    if not cut.since and files.keep is None and files.num_rows != cut.num_rows:
        raise CheckpointError(
            f"table {name!r}: {files.num_rows} rows were copied of {cut.num_rows} at the cut: our own "
            "mistake; nothing was published"
        )
    return TableEntry(
        kind="sparse",
        spec=dataclasses.asdict(cut.table.spec),
        columns=shapes(cut.table),
        rows=cut.num_rows,
        versions=[cut.version],
        numbers=[cut.numbers],
    )


def filter_files(
    write: Write, cut: Cut, *, shard: int, partitions: tuple[int, int]
) -> list[FileEntry]:
    """Write what admission counted, and return what the manifest says of it; nothing if nothing.

    Args:
        write: takes the file.
        cut: of the table.
        shard: who writes.
        partitions: [begin, end) of the shard.
    """
    names = sorted({name for state in cut.filters for name in state})
    if not names:
        return []
    arrays: dict[str, NDArray[Any]] = {}
    for name in names:
        parts = [state[name] for state in cut.filters]
        arrays[name] = np.concatenate(parts)
        arrays[f"{name}.offsets"] = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    file = arrays_file(write, "filter", arrays, table=cut.table.spec.name, shard=shard)
    return [file.model_copy(update={"partitions": partitions})]


def dense_files(
    write: Write, cut: DenseCut, *, shard: int, num_shards: int
) -> tuple[FileEntry, TableEntry]:
    """Write a shard's slice of a dense table, and return what the manifest says of it.

    Args:
        write: takes the file.
        cut: whose parts are all copied.
        shard: who writes.
        num_shards: of the cluster.
    """
    spec, columns_of_slice = cut.table.spec, cut.columns()
    size = columns_of_slice["weights"].size
    file = arrays_file(write, "dense", columns_of_slice, table=spec.name, shard=shard)
    bounds = slice_of_shard(spec.length, shard, num_shards)
    entry = TableEntry(
        kind="dense",
        spec=dataclasses.asdict(spec),
        rows=size,
        versions=[cut.version],
        epochs=[cut.epoch],
    )
    return file.model_copy(update={"rows": size, "partitions": bounds}), entry


def arrays_file(
    write: Write,
    kind: Literal["filter", "dense", "shard"],
    arrays: Mapping[str, NDArray[Any]],
    *,
    table: str,
    shard: int,
) -> FileEntry:
    """Write a file that is not of rows.

    Args:
        write: takes the file.
        kind: of what it is.
        arrays: by name.
        table: whose they are, or an empty text.
        shard: who writes.
    """
    what = f"{kind}-{table}" if table else kind
    name = f"{what}-{shard:05d}.safetensors"
    data = encode(arrays, {"kind": kind, "table": table})
    write(name, data)
    return FileEntry(
        name=name,
        kind=kind,
        shard=shard,
        table=table,
        bytes=data.num_bytes,
        sha256=data.sha256,
    )
