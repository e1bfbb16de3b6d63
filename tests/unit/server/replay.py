"""One shard with a journal: any commands, an image of its folder as a kill leaves it, and all its state.

What always holds: state is taken in a turn on the tables together with the image of the journal, so both
are of one moment.
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pserver.checkpoint.places import open_store
from pserver.journal.folder import Fsync
from pserver.journal.writer import Begun, Journal
from pserver.placement import NUM_PARTITIONS
from pserver.server.servicer import Servicer
from pserver.table.dump import filter_state
from pserver.table.sparse import SparseTable

T = TypeVar("T")


def shard(store: Path | None = None) -> Servicer:
    """Return the one shard of a cluster, without a journal yet."""
    place = None if store is None else open_store(str(store), where="store", writes=True)
    return Servicer(shard=0, num_shards=1, queue_max=64, store=place)


async def begin(
    servicer: Servicer,
    folder: Path,
    restore: str | None = "latest",
    *,
    fsync: Fsync = "off",
    walks_go_on: bool = True,
) -> list[str]:
    """Bring a shard to where a journal ends, and return the lines that say so."""
    if not walks_go_on:
        servicer._lifecycle.release_walks = lambda: None  # type: ignore[method-assign]
    journal = Journal(folder, begun=Begun(servicer.incarnation), fsync=fsync)
    return await servicer.recovery.begin(journal, restore)


async def own(servicer: Servicer, work: Callable[[], T]) -> T:
    """Do something in a turn on the tables."""
    return await servicer._executor.run(work)


async def image(servicer: Servicer, folder: Path, copy: Path) -> dict[str, Any]:
    """Copy a journal's folder as a kill of its process would leave it, and return the state then."""

    def both() -> dict[str, Any]:
        shutil.copytree(folder, copy)
        return state_of(servicer)

    return await own(servicer, both)


def state_of(servicer: Servicer) -> dict[str, Any]:
    """Return everything that a shard must still know after a restart."""
    registry = servicer._registry
    logs = servicer._geo._logs
    return {
        "incarnation": servicer.incarnation,
        "epoch": registry.epoch,
        "once": list(servicer._once._seen.items()),
        "members": servicer._group.members.export(),
        "rounds": servicer._group.rounds.export(),
        "leases": servicer._leases.export(),
        "lifecycle": servicer._lifecycle.export(),
        "geo": {name: log_state(log) for name, log in logs.items()},
        "tables": [sparse_state(table) for table in registry],
        "dense": [
            (table.spec, table.version, table.epoch, table.export(), rows_of(table))
            for table in registry.dense
        ],
    }


def sparse_state(table: SparseTable) -> tuple[Any, ...]:
    """Return all of a sparse table, its rows by key."""
    partitions = [table.entries(partition)[0] for partition in range(NUM_PARTITIONS)]
    rows: dict[int, Any] = {}
    for key in sorted(np.concatenate(partitions).tolist()):
        row = table.row(key)
        assert row is not None
        state = {name: floats.tobytes() for name, floats in row.state.items()}
        rows[key] = (row.weights.tobytes(), state, row.epoch, dict(row.fields))
    counted = [
        {name: array.tolist() for name, array in filter_state(table, partition).items()}
        for partition in range(NUM_PARTITIONS)
    ]
    kept = (table.keeping.numbers(), table.keeping.shrunk, table.keeping.evicted)
    return table.spec, table.version, table.epoch, table.stopped, kept, rows, counted


def rows_of(table: Any) -> list[bytes]:
    """Return the bytes of a dense table's parts, weights and state."""
    return [row.tobytes() for row, _ in table.memory()]


def log_state(log: Any) -> tuple[int, list[int], list[int]]:
    """Return a change log's entries."""
    ends = (log._begin, log.position)
    return (
        log.position,
        log._range(log._keys, *ends).tolist(),
        log._range(log._writers, *ends).tolist(),
    )


def run(work: Callable[[], Any]) -> Any:
    """Run a test's coroutine."""
    return asyncio.run(work())
