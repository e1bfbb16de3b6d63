"""From a version to the tables of one shard, whatever the number of shards then and now.

Rooms before and after: ``store`` reads; ``server.checkpoint`` takes the tables over; ``fit`` says what a
table that exists with another spec takes.

What always holds: every file is read whole and has its length and SHA-256, or nothing is taken over;
a delta is applied on the very version that it names.

Cost: a shard reads the files in which its partitions lie. The next file is read and checked while the
rows of this one are put into the table.
"""

import concurrent.futures
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pserver.checkpoint.fit import Fit, OnMismatch, fit_of
from pserver.checkpoint.manifest import MANIFEST, FileEntry, Manifest, TableEntry
from pserver.checkpoint.store import Store, manifest_of
from pserver.checkpoint.tensors import checksum, decode
from pserver.errors import CheckpointError
from pserver.placement import NUM_PARTITIONS, partitions_of_shard, slice_of_shard
from pserver.spec import DenseSpec, TableSpec
from pserver.table.dense_dump import fill_dense
from pserver.table.dump import put_filter_state
from pserver.table.registry import Registry
from pserver.table.sparse import SparseTable

Rows = dict[str, NDArray[Any]]
"""``keys`` and columns of some rows, and ``erased`` where the file has it."""


@dataclass(slots=True)
class Loaded:
    """What one shard took from a version.

    Attributes:
        manifest: of the version.
        rows: of sparse tables on this shard.
        bytes: of the files read.
        seconds: that it took.
        is_exact: every table is what it was, and not one that was made to fit.
        state: how many tables took their optimizer state, of how many that keep some.
        parts: what the shard remembered beside tables, by name; nothing if the number of shards is
            another one.
    """

    manifest: Manifest
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    tables: list[str] = field(default_factory=list)
    is_exact: bool = True
    state: tuple[int, int] = (0, 0)
    parts: dict[str, NDArray[Any]] = field(default_factory=dict)

    def line(self) -> str:
        """Return the line that a load ends with, but for the folder."""
        took, of = self.state
        return (
            f"{self.manifest.version}: tables {len(self.tables)}, rows {self.rows:,} of "
            f"{self.rows_of_version:,} here, optimizer state {took} of {of}, bytes {self.bytes:,}, "
            f"seconds {self.seconds:.2f}"
        )

    @property
    def rows_of_version(self) -> int:
        """Return the rows of all shards."""
        if not self.manifest.is_whole:
            return self.manifest.num_rows
        return sum(table.rows for table in self.manifest.tables if table.kind == "sparse")


def chain_of(store: Store, version: str) -> list[Manifest]:
    """Return the manifests that a version is made of: a full one, then deltas, this one last.

    Raises:
        CheckpointError: one that is named as a base is not there, or is another than it was.
    """
    chain = [manifest_of(store, version)]
    while (base := chain[0].base) is not None:
        if base not in store.versions():
            raise CheckpointError(
                f"{store.where}: {chain[0].version} is a delta to {base}, which is not there; "
                "take an older version"
            )
        if checksum(store.read(base, MANIFEST)) != chain[0].base_sha256:
            raise CheckpointError(
                f"{store.where}: {chain[0].version} is a delta to another {base} than lies there"
            )
        chain.insert(0, manifest_of(store, base))
    return chain


def read_checked(store: Store, version: str, entry: FileEntry) -> bytes:
    """Return a file's bytes.

    Raises:
        CheckpointError: it is not what the manifest says.
    """
    data = store.read(version, entry.name)
    where = f"{store.where}/{version}/{entry.name}"
    if len(data) != entry.bytes:
        raise CheckpointError(
            f"{where}: has {len(data)} bytes, the manifest says {entry.bytes}; the file is damaged, "
            "take an older version"
        )
    found = checksum(data)
    if found != entry.sha256:
        raise CheckpointError(
            f"{where}: has checksum {found[:12]}…, the manifest says {entry.sha256[:12]}…; the file "
            "is damaged, take an older version"
        )
    return data


def files_of_shard(manifest: Manifest, shard: int, num_shards: int) -> list[FileEntry]:
    """Return the files that a shard loads from a version, and dense slices of others."""
    begin, end = partitions_of_shard(shard, num_shards)

    def is_wanted(file: FileEntry) -> bool:
        if file.kind in ("rows", "filter"):
            return file.partitions[0] < end and file.partitions[1] > begin
        return file.kind == "dense" or (file.kind == "shard" and file.shard == shard)

    return [file for file in manifest.files if is_wanted(file)]


def read_rows(
    store: Store, manifest: Manifest, table: str, *, partitions: tuple[int, int]
) -> Iterator[tuple[FileEntry, Rows]]:
    """Yield a table's rows of some partitions, file by file; the next file is read meanwhile.

    Args:
        store: where the version lies.
        manifest: of the version.
        table: its name.
        partitions: [begin, end).

    Raises:
        CheckpointError: a file is damaged.
    """
    begin, end = partitions
    entries = [
        file
        for file in manifest.files
        if file.kind == "rows"
        and file.table == table
        and file.partitions[0] < end
        and file.partitions[1] > begin
    ]

    def read(entry: FileEntry) -> Rows:
        where = f"{store.where}/{manifest.version}/{entry.name}"
        arrays = decode(read_checked(store, manifest.version, entry), where=where)
        offsets = arrays.pop("partition_offsets")
        erased = arrays.pop("erased", np.empty(0, np.uint64))
        first, behind = int(offsets[begin]), int(offsets[end])
        return {
            **{name: array[first:behind] for name, array in arrays.items()},
            "erased": erased,
        }

    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="load") as reader:
        ahead = [reader.submit(read, entry) for entry in entries[:1]]
        for i, entry in enumerate(entries):
            rows = ahead.pop().result()
            ahead += [reader.submit(read, following) for following in entries[i + 1 : i + 2]]
            yield entry, rows


def spec_of_entry(entry: TableEntry, *, where: str) -> TableSpec | DenseSpec:
    """Return the spec that a manifest holds.

    Raises:
        CheckpointError: it has a field that this release does not know.
    """
    kind = TableSpec if entry.kind == "sparse" else DenseSpec
    known = {field.name for field in dataclasses.fields(kind)}
    unknown = sorted(set(entry.spec) - known)
    if unknown:
        raise CheckpointError(
            f"{where}: table {entry.name!r} has {', '.join(unknown)} in its spec, which this release "
            "does not know: take a newer release"
        )
    return kind(**entry.spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Who loads.

    Attributes:
        shard, num_shards: where in which cluster.
        wanted: the specs of tables that exist there, by name.
        on_mismatch: what a table with another spec takes.
        only_reads: it takes a version that has not all rows, too.
    """

    shard: int
    num_shards: int
    wanted: Mapping[str, TableSpec | DenseSpec] = field(default_factory=dict)
    on_mismatch: OnMismatch = "fail"
    only_reads: bool = False


def load_shard(store: Store, version: str, registry: Registry, target: Target) -> Loaded:
    """Fill a registry with what a version holds for one shard.

    Args:
        store: where the version lies.
        version: its name.
        registry: empty, and nobody else's.
        target: who loads.

    Raises:
        CheckpointError: a file is damaged, the chain is broken, a table has another spec (the
            differences are shown), no table of the version is wanted, or it has not all rows.
        TableFullError: a table has no room for its rows.
    """
    begin = time.perf_counter()
    chain = chain_of(store, version)
    manifest = chain[-1]
    if not (manifest.is_whole or target.only_reads):
        raise CheckpointError(
            f"{store.where}/{version}: of mode {manifest.mode}: it has the rows for serving only; "
            "`pserver serve --read-only` takes it, training goes on from a full version or a delta"
        )
    loaded = Loaded(manifest)
    registry.raise_epoch(manifest.epoch + 1)
    where = f"{store.where}/{version}"
    stored = {entry.name: spec_of_entry(entry, where=where) for entry in manifest.tables}
    fits = fit_of(stored, target.wanted, on_mismatch=target.on_mismatch, where=where)
    for entry in manifest.tables:
        fit = fits[entry.name]
        if isinstance(fit.spec, TableSpec):
            _load_sparse(store, chain, registry, fit, target, loaded)
        else:
            _load_dense(store, manifest, registry, fit, target, loaded)
        loaded.tables.append(entry.name)
        loaded.is_exact &= fit.is_exact
    if target.num_shards == manifest.num_shards:
        for file in manifest.files:
            if file.kind == "shard" and file.shard == target.shard:
                data = read_checked(store, version, file)
                loaded.parts = decode(data, where=f"{where}/{file.name}")
    loaded.seconds = time.perf_counter() - begin
    return loaded


def _load_sparse(
    store: Store,
    chain: Sequence[Manifest],
    registry: Registry,
    fit: Fit,
    target: Target,
    loaded: Loaded,
) -> None:
    """Make a table and fill it from the full version and the deltas on it."""
    assert isinstance(fit.spec, TableSpec)
    table = registry.create(fit.spec)
    own = partitions_of_shard(target.shard, target.num_shards)
    for manifest in chain:
        if all(entry.name != fit.spec.name for entry in manifest.tables):
            continue  # the table is younger than this version
        for entry, rows in read_rows(store, manifest, fit.spec.name, partitions=own):
            table.erase(rows.pop("erased"))
            keys = rows.pop("keys")
            fit.put(table, keys, rows)
            loaded.bytes += entry.bytes
    if fit.is_exact or fit.is_converted:
        _load_filter(store, chain[-1], table, own)
    entry_of_table = chain[-1].table(fit.spec.name)
    table.version = _of_shard(entry_of_table.versions, target)
    if entry_of_table.numbers:
        table.keeping.restore(_numbers(entry_of_table.numbers, target))
    loaded.rows += table.num_rows
    took, of = loaded.state
    loaded.state = (took + (fit.has_state and fit.keeps_state), of + fit.has_state)


def _load_filter(
    store: Store, manifest: Manifest, table: SparseTable, own: tuple[int, int]
) -> None:
    """Take what admission counted in the partitions of this shard."""
    for file in manifest.files:
        if file.kind != "filter" or file.table != table.spec.name:
            continue
        begin, end = max(own[0], file.partitions[0]), min(own[1], file.partitions[1])
        if begin >= end:
            continue
        where = f"{store.where}/{manifest.version}/{file.name}"
        arrays = decode(read_checked(store, manifest.version, file), where=where)
        offsets = {name.removesuffix(".offsets"): a for name, a in arrays.items() if ".off" in name}
        for partition in range(begin, end):
            state = {
                name: arrays[name][at[partition] : at[partition + 1]]
                for name, at in offsets.items()
            }
            put_filter_state(table, partition, state)


def _load_dense(
    store: Store,
    manifest: Manifest,
    registry: Registry,
    fit: Fit,
    target: Target,
    loaded: Loaded,
) -> None:
    """Make a dense table's slice and fill it from the slices that it was stored in."""
    assert isinstance(fit.spec, DenseSpec)
    begin, end = slice_of_shard(fit.spec.length, target.shard, target.num_shards)
    table = registry.create_dense(fit.spec, size=end - begin)
    entry = manifest.table(fit.spec.name)
    epoch = max(entry.epochs, default=0)
    if not epoch:
        return
    columns: dict[str, list[NDArray[Any]]] = {}
    for file in manifest.files:
        first, behind = file.partitions
        overlaps = max(first, begin) < min(behind, end) or (first, behind) == (begin, end)
        if file.kind == "dense" and file.table == fit.spec.name and overlaps:
            where = f"{store.where}/{manifest.version}/{file.name}"
            arrays = decode(read_checked(store, manifest.version, file), where=where)
            for name, column in arrays.items():
                part = column[max(begin - first, 0) : max(end - first, 0)]
                columns.setdefault(name, []).append(part)
            loaded.bytes += file.bytes
    nothing = np.empty(0, np.float32)
    whole = {name: np.concatenate([nothing, *parts]) for name, parts in columns.items()}
    if not whole:
        whole = dict.fromkeys(fit.dense_columns(), nothing)
    fill_dense(table, fit.dense(whole), version=_of_shard(entry.versions, target), epoch=epoch)


def _of_shard(numbers: Sequence[int], target: Target) -> int:
    """Return a shard's own number, or the highest where the shards are others."""
    if len(numbers) == target.num_shards:
        return numbers[target.shard]
    return max(numbers)


def _numbers(by_shard: Sequence[Mapping[str, int]], target: Target) -> Mapping[str, int]:
    """Return a shard's own numbers of eviction and shrink.

    Where the shards are others: the latest clock and day, a hand at the beginning, and no shrink under
    way (one that was is not gone on with, so some rows miss a day's shrink).
    """
    if len(by_shard) == target.num_shards:
        return by_shard[target.shard]
    latest = {name: max(numbers[name] for numbers in by_shard) for name in ("clock", "day")}
    return {**latest, "hand_partition": 0, "hand_bucket": 0, "next_partition": NUM_PARTITIONS}
