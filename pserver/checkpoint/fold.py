"""A version and the deltas under it as one full version, without servers.

Rooms before and after: ``load`` reads one shard's part into tables, ``snapshot`` writes them again, shard
after shard as the version was written; ``tools`` and the command line ask for it.

What always holds: the new version holds the same rows, to the bit. Memory: one shard's tables.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pserver.checkpoint.load import Target, chain_of, load_shard, read_checked
from pserver.checkpoint.manifest import Manifest, Part, ShardEntry, part_name
from pserver.checkpoint.publish import Facts, publish
from pserver.checkpoint.snapshot import (
    RowFiles,
    arrays_file,
    dense_files,
    filter_files,
    sparse_entry,
)
from pserver.checkpoint.store import Store, next_version
from pserver.checkpoint.tensors import Encoded, encoded
from pserver.placement import partitions_of_shard
from pserver.table.cut import Cut
from pserver.table.dense_dump import DenseCut
from pserver.table.registry import Registry

_SLICE_ROWS = 1 << 16


def fold(source: Store, version: str, target: Store) -> Manifest:
    """Write a full version with what a version and its bases hold together.

    Args:
        source: where the version lies.
        version: its name.
        target: where the new one is to lie; it gets the next number there.

    Raises:
        CheckpointError: the chain is broken or damaged, or the target refused.
    """
    last = chain_of(source, version)[-1]
    made = next_version(target)
    target.begin(made)
    try:
        for shard in range(last.num_shards):
            registry = Registry()
            place = Target(shard=shard, num_shards=last.num_shards)
            loaded = load_shard(source, version, registry, place)
            who = next(entry for entry in last.shards if entry.shard == shard)
            write_quiet(target, made, registry, place, parts=loaded.parts, who=who)
        files = [file for file in last.files if file.kind == "trainer"]
        for file in files:
            data = read_checked(source, version, file)
            target.write(made, file.name, encoded([memoryview(data)]))
        facts = Facts(
            mode="full",
            base=None,
            epoch=last.epoch,
            num_shards=last.num_shards,
            cut=last.cut,
            trainers=last.trainers,
            round=last.round,
            pushes=last.pushes,
            positions=last.positions,
        )
        return publish(target, made, facts, extra=files)
    except BaseException:
        target.abandon(made)
        raise


def write_quiet(
    store: Store,
    version: str,
    registry: Registry,
    place: Target,
    *,
    parts: Mapping[str, NDArray[Any]],
    who: ShardEntry,
) -> None:
    """Write one shard's part of a version from tables that nobody changes.

    Args:
        store: where the version was begun.
        version: its name.
        registry: the shard's tables.
        place: which shard.
        parts: what the shard remembers beside tables.
        who: what is said of the shard; a journal goes on from this version as from the one it was.
    """
    shard, num_shards = place.shard, place.num_shards

    def write(name: str, data: Encoded) -> None:
        store.write(version, name, data)

    files, tables = [], []
    for table in registry:
        cut = Cut(table)
        rows = RowFiles(
            write,
            cut.blocks,
            table=table.spec.name,
            shard=shard,
            partitions=partitions_of_shard(shard, num_shards),
        )
        while not cut.is_done:
            rows.add(cut.copy_some(_SLICE_ROWS))
            if rows.is_due:
                rows.flush(cut.next_partition)
        files += rows.finish()
        own = partitions_of_shard(shard, num_shards)
        files += filter_files(write, cut, shard=shard, partitions=own)
        tables.append(sparse_entry(cut, rows))
    for dense in registry.dense:
        dense_cut = DenseCut(dense)
        while not dense_cut.is_done:
            dense_cut.copy_some()
        dense_cut.end()
        file, entry = dense_files(write, dense_cut, shard=shard, num_shards=num_shards)
        files.append(file)
        tables.append(entry)
    whole = {**parts, "shard": np.array([shard, num_shards], np.uint64)}
    files.append(arrays_file(write, "shard", whole, table="", shard=shard))
    part = Part(shard=who, tables=tables, files=files)
    data = memoryview(part.model_dump_json().encode())
    store.write(version, part_name(shard), encoded([data]))
