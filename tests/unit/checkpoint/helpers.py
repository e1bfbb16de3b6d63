"""Versions to test with, and what is in them: written and read by the slow way."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import pserver
from pserver.checkpoint.manifest import Manifest, read_manifest
from pserver.embedded import Cluster
from tests.reference import EDGE_KEYS

DIM = 3
KEYS = np.array([*EDGE_KEYS, *range(1000, 1400)], np.uint64)

Rows = dict[int, dict[str, bytes]]


def spec(name: str = "t", *, optimizer: str = "adam:lr=0.1", dim: int = DIM) -> pserver.TableSpec:
    return pserver.TableSpec(name=name, dim=dim, optimizer=optimizer, capacity_max=10_000)


@contextmanager
def cluster(folder: Path, num_shards: int, restore: str | None = None) -> Iterator[pserver.Client]:
    """Give a cluster in this process whose checkpoints lie in a folder."""
    with pserver.embedded(num_shards, checkpoint_dir=str(folder), restore=restore) as client:
        yield client


@contextmanager
def clients(folder: Path, num_shards: int) -> Iterator[Callable[[], pserver.Client]]:
    """Give what connects, again and again, to the same shards of this process."""
    made: list[pserver.Client] = []
    with Cluster(num_shards, checkpoint_dir=str(folder)) as shards:

        def connect() -> pserver.Client:
            made.append(shards.connect())
            return made[-1]

        try:
            yield connect
        finally:
            for client in made:
                client.close(flush=False)


def push(client: pserver.Client, keys: np.ndarray, value: float = 1.0, *, table: str = "t") -> None:
    dim = client.spec(table).dim
    grads = (
        np.full((keys.size, dim), value, np.float32) * (keys % 7 + 1).astype(np.float32)[:, None]
    )
    client.push(table, keys, grads)


def rows_in(folder: Path, version: str, table: str = "t") -> Rows:
    """Return the rows of a version's own files, read with safetensors alone; each key is there once."""
    rows: Rows = {}
    for path in sorted((folder / version).glob(f"rows-{table}-*.safetensors")):
        arrays = load_file(path)
        keys = arrays.pop("keys")
        arrays.pop("partition_offsets")
        arrays.pop("erased", None)
        for i, key in enumerate(keys.tolist()):
            assert key not in rows
            rows[key] = {name: array[i].tobytes() for name, array in arrays.items()}
    return rows


def rows_of(client: pserver.Client, table: str = "t", keys: np.ndarray = KEYS) -> Rows:
    """Return the rows of a cluster, asked for one by one."""
    rows: Rows = {}
    for key in keys.tolist():
        found = client.inspect(table, key)
        if found.has_row:
            state = {f"state.{name}": part.tobytes() for name, part in found.state.items()}
            epoch = np.uint32(found.epoch or 0).tobytes()
            rows[key] = {"weights": found.weights.tobytes(), **state, "epochs": epoch}
    return rows


def manifest_in(folder: Path, version: str) -> Manifest:
    return read_manifest((folder / version / "MANIFEST.json").read_bytes(), where=version)


def without(rows: Mapping[int, dict[str, bytes]], column: str) -> Rows:
    return {key: {n: v for n, v in row.items() if n != column} for key, row in rows.items()}
