"""What is done with versions that lie there: verify, diff, prune. No server is needed.

Rooms before and after: the command line asks; ``load`` and ``store`` read.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pserver.arrays import Keys
from pserver.checkpoint.load import (
    Target,
    chain_of,
    load_shard,
    read_checked,
    read_rows,
    spec_of_entry,
)
from pserver.checkpoint.manifest import Manifest
from pserver.checkpoint.snapshot import offsets_of, order_of
from pserver.checkpoint.store import Store, manifest_of
from pserver.checkpoint.tensors import decode
from pserver.errors import CheckpointError
from pserver.placement import NUM_PARTITIONS
from pserver.table.dump import blocks_of, columns
from pserver.table.registry import Registry
from pserver.table.sparse import SparseTable


@dataclass(frozen=True, slots=True)
class Difference:
    """How one table differs between two versions.

    Attributes:
        table: its name.
        added, removed: rows of the second only, of the first only.
        changed: rows of both in which any bit of a column but the epoch differs.
        same: the other rows of both.
        norm: of the differences of all weights of rows that both have: the root of the sum of squares.
    """

    table: str
    added: int
    removed: int
    changed: int
    same: int
    norm: float


def verify(store: Store, version: str) -> Manifest:
    """Read a version whole, its bases too, and check all that can be checked.

    Raises:
        CheckpointError: what is wrong, with the file.
    """
    chain = chain_of(store, version)
    for manifest in chain:
        where = f"{store.where}/{manifest.version}"
        for file in manifest.files:
            arrays = decode_or_skip(read_checked(store, manifest.version, file), file.kind, where)
            if file.kind == "rows":
                _check_rows(arrays["keys"], arrays["partition_offsets"], f"{where}/{file.name}")
                if arrays["keys"].size != file.rows:
                    raise CheckpointError(
                        f"{where}/{file.name}: {arrays['keys'].size} rows, the manifest says "
                        f"{file.rows}"
                    )
        for table in manifest.tables:
            spec_of_entry(table, where=where)
            written = sum(f.rows for f in manifest.files if f.table == table.name)
            if (
                table.kind == "sparse"
                and manifest.mode not in ("delta", "base")
                and written != table.rows
            ):
                raise CheckpointError(
                    f"{where}: table {table.name!r} had {table.rows} rows, {written} are there"
                )
    return chain[-1]


def decode_or_skip(data: bytes, kind: str, where: str) -> dict[str, Keys]:
    """Return a file's arrays; none of a trainer's, which may be of any form."""
    return {} if kind == "trainer" else decode(data, where=where)


def _check_rows(keys: Keys, offsets: np.ndarray, where: str) -> None:
    """Refuse rows out of order, repeated or in another partition than the file says."""
    order = order_of(keys)
    if not np.array_equal(order, np.arange(keys.size)) or np.unique(keys).size != keys.size:
        raise CheckpointError(f"{where}: its keys are repeated or not sorted by partition and key")
    if not np.array_equal(offsets, offsets_of(keys)):
        raise CheckpointError(f"{where}: its partition_offsets do not fit its keys")


def diff(store: Store, first: str, second: str) -> list[Difference]:
    """Compare two versions, table by table; a table that one has not counts as empty there.

    Raises:
        CheckpointError: one cannot be read.
    """
    manifests = [manifest_of(store, version) for version in (first, second)]
    num_shards = max(manifest.num_shards for manifest in manifests)
    totals: dict[str, Difference] = {}
    for shard in range(num_shards):
        registries = []
        for version in (first, second):
            registry = Registry()
            load_shard(store, version, registry, Target(shard=shard, num_shards=num_shards))
            registries.append({table.spec.name: table for table in registry})
        for name in {**registries[0], **registries[1]}:
            found = _compare(name, registries[0].get(name), registries[1].get(name))
            totals[name] = _sum(totals[name], found) if name in totals else found
    return list(totals.values())


def _compare(name: str, old: SparseTable | None, new: SparseTable | None) -> Difference:
    """Compare the rows of two tables."""
    if old is None or new is None:
        added, removed = (0 if table is None else table.num_rows for table in (new, old))
        return Difference(name, added, removed, 0, 0, 0.0)
    total = Difference(name, 0, 0, 0, 0, 0.0)
    for partition in range(NUM_PARTITIONS):
        total = _sum(total, _compare_partition(name, old, new, partition))
    return total


def _compare_partition(name: str, old: SparseTable, new: SparseTable, partition: int) -> Difference:
    sides = []
    for table in (old, new):
        keys, row_ids = table.entries(partition)
        row_ids.flags.writeable = False
        blocks = blocks_of(table)
        sides.append((keys, columns(blocks, [block.take(row_ids) for block in blocks])))
    (old_keys, old_rows), (new_keys, new_rows) = sides
    _, at_old, at_new = np.intersect1d(old_keys, new_keys, assume_unique=True, return_indices=True)
    both = at_old.size
    is_changed = np.zeros(both, np.bool_)
    squares = 0.0
    if both and old.spec.dim == new.spec.dim:
        for column in ({*old_rows} & {*new_rows}) - {"epochs"}:
            before, after = old_rows[column][at_old], new_rows[column][at_new]
            if before.shape == after.shape:
                is_changed |= (before != after).reshape(both, -1).any(axis=1)
        step = new_rows["weights"][at_new].astype(np.float64) - old_rows["weights"][at_old]
        squares = float((step**2).sum())
    changed = int(is_changed.sum())
    return Difference(
        name, new_keys.size - both, old_keys.size - both, changed, both - changed, squares**0.5
    )


def _sum(one: Difference, other: Difference) -> Difference:
    return Difference(
        one.table,
        one.added + other.added,
        one.removed + other.removed,
        one.changed + other.changed,
        one.same + other.same,
        float(np.hypot(one.norm, other.norm)),
    )


def prune(store: Store, *, keep: int) -> list[str]:
    """Remove all but the newest full versions and their deltas, and what cut-off saves left.

    A version on which a kept one stands is kept.

    Args:
        store: where versions lie.
        keep: full versions that stay, at least 1.

    Returns:
        The names that were removed.

    Raises:
        CheckpointError: a manifest cannot be read: nothing was removed.
    """
    versions = store.versions()
    manifests = {version: manifest_of(store, version) for version in versions}
    full = [v for v in versions if manifests[v].base is None and manifests[v].is_whole]
    stays = set(full[-keep:])
    # Versions for serving are as old as the full ones beside them.
    stays |= {v for v in versions if not manifests[v].is_whole and v >= min(stays, default=v)}
    for version in versions:  # oldest first, so a base is judged before its deltas
        if manifests[version].base in stays:
            stays.add(version)
    removed = [version for version in versions if version not in stays]
    for version in reversed(removed):  # a delta before its base
        store.remove(version)
    # A save that is under way has a number behind the newest.
    old = [version for version in store.leftovers() if versions and version <= versions[-1]]
    for version in old:
        store.abandon(version)
    return removed + old


def rows_of(store: Store, version: str, table: str) -> Iterator[tuple[Keys, dict[str, np.ndarray]]]:
    """Yield a table's keys and columns as a version and its bases hold them, in pieces.

    Raises:
        CheckpointError: the version has no such table, or cannot be read.
    """
    chain = chain_of(store, version)
    chain[-1].table(table)
    if len(chain) == 1:
        for _, rows in read_rows(store, chain[0], table, partitions=(0, NUM_PARTITIONS)):
            rows.pop("erased")
            yield rows.pop("keys"), rows
        return
    for shard in range(chain[-1].num_shards):
        registry = Registry()
        load_shard(store, version, registry, Target(shard=shard, num_shards=chain[-1].num_shards))
        found = registry.get(table)
        blocks = blocks_of(found)
        for partition in range(NUM_PARTITIONS):
            keys, row_ids = found.entries(partition)
            row_ids.flags.writeable = False
            if keys.size:
                yield keys, columns(blocks, [block.take(row_ids) for block in blocks])
