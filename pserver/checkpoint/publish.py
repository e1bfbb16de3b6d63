"""The last step of a save: the parts of all shards become one manifest, and the version is there.

Rooms before and after: every shard left its files and its part in the begun version; ``store`` publishes.

What always holds: a version is published only if every file of every part lies there with its length.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pserver._version import __version__
from pserver.checkpoint.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    Mode,
    Part,
    TableEntry,
    part_name,
)
from pserver.checkpoint.store import Store
from pserver.checkpoint.tensors import checksum
from pserver.errors import CheckpointError
from pserver.placement import NUM_PARTITIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a version beside the parts of its shards; see ``Manifest``."""

    mode: Mode
    base: str | None
    epoch: int
    num_shards: int
    cut: str
    trainers: Mapping[str, dict[str, Any]]
    round: int = 0
    pushes: Mapping[str, int] = field(default_factory=dict)
    positions: Mapping[str, int] = field(default_factory=dict)
    save_id: str = ""


def publish(
    store: Store, version: str, facts: Facts, *, extra: Sequence[FileEntry] = ()
) -> Manifest:
    """Write the manifest of a version and make it the latest.

    Args:
        store: where the version was begun.
        version: its name.
        facts: about it.
        extra: files beside those of the shards' parts.

    Raises:
        CheckpointError: a part or a file is missing or has another length, the shards disagree about
            a table, or the place refused. The version is not published.
    """
    where = f"{store.where}/{version}"
    parts = [_part(store, version, shard) for shard in range(facts.num_shards)]
    for shard, part in enumerate(parts):
        if part.save_id != facts.save_id:
            raise CheckpointError(
                f"{where}: the part of shard {shard} is of another save; try again"
            )
    files = [*(file for part in parts for file in part.files), *extra]
    sizes = store.sizes_begun(version)
    for file in files:
        if sizes.get(file.name) != file.bytes:
            raise CheckpointError(
                f"{where}: {file.name} of shard {file.shard} must have {file.bytes} bytes, "
                f"has {sizes.get(file.name, 'none')}; do all shards write to one folder?"
            )
    manifest = Manifest(
        version=version,
        mode=facts.mode,
        base=facts.base,
        base_sha256=checksum(store.read(facts.base, MANIFEST)) if facts.base else None,
        epoch=facts.epoch,
        num_shards=facts.num_shards,
        num_partitions=NUM_PARTITIONS,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        product=__version__,
        cut=facts.cut,
        tables=_joined(parts, where=where),
        shards=[part.shard for part in parts],
        files=files,
        trainers=dict(facts.trainers),
        round=facts.round,
        pushes=dict(facts.pushes),
        positions=dict(facts.positions),
    )
    for shard in range(facts.num_shards):
        store.drop_begun(version, part_name(shard))
    store.publish(version, manifest.encode())
    return manifest


def _part(store: Store, version: str, shard: int) -> Part:
    """Return what a shard left.

    Raises:
        CheckpointError: there is nothing of it.
    """
    try:
        data = store.read_begun(version, part_name(shard))
    except CheckpointError as error:
        raise CheckpointError(
            f"{store.where}/{version}: nothing of shard {shard} is there; do all shards write to "
            f"one folder? ({error})"
        ) from error
    return Part.model_validate_json(data)


def _joined(parts: Sequence[Part], *, where: str) -> list[TableEntry]:
    """Return each table once, with the rows and versions of all shards.

    Raises:
        CheckpointError: a shard has other tables, or one with another spec.
    """
    joined = []
    names = [[table.name for table in part.tables] for part in parts]
    for table in parts[0].tables:
        entries = [entry for part in parts for entry in part.tables if entry.name == table.name]
        if len(entries) != len(parts) or any(entry.spec != table.spec for entry in entries):
            raise CheckpointError(f"{where}: table {table.name!r} is not the same on all shards")
        whole = table.model_copy(
            update={
                "rows": sum(entry.rows for entry in entries),
                "versions": [entry.versions[0] for entry in entries],
                "numbers": [numbers for entry in entries for numbers in entry.numbers],
                "epochs": [epoch for entry in entries for epoch in entry.epochs],
            }
        )
        joined.append(whole)
    if any(sorted(others) != sorted(names[0]) for others in names):
        raise CheckpointError(f"{where}: not all shards have the tables {sorted(names[0])}")
    return joined
