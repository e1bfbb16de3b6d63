"""A table on a file that is up to three times the memory it may use, beside the same table in memory.

Each table has a process of its own. Its keys are drawn from Zipf 1.05 over all of them, and its rows were
made in the order in which such a stream first meets them, so hot rows lie together as they would in a
real run. The limit holds for all of the process: interpreter, index, epochs, and the pages of the file
that the system keeps. What is counted are distinct keys that were pulled and pushed, after a warm-up.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import FILL_BLOCK
from bench.limit import memory_limit
from pserver.arrays import Keys
from pserver.malloc import keep_large_blocks
from pserver.plan import make_plan
from pserver.server.report import resident_bytes
from pserver.spec import TableSpec
from pserver.table.sparse import SparseTable
from pserver.table.storage import open_storage

LIMIT_BYTES = 512 << 20
RATIOS = (0.5, 1.0, 2.0, 3.0)
"""Bytes of a table, index and all, over the limit. The largest takes 1.4 GiB of disk for a while."""

_ALPHA = 1.05
_DIM = 32
_DRAWS = 50_000
_BATCHES = 60
_WARM_S, _MEASURED_S = 5.0, 5.0


def run() -> dict[str, Any]:
    """Return keys a second of each table, in memory and on a file under the limit."""
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-storage-", dir=_disk()) as folder:
        for ratio in RATIOS:
            rows = _rows_for(ratio * LIMIT_BYTES)
            _write_workload(Path(folder), rows)
            with memory_limit(LIMIT_BYTES) as limit:
                if limit is None:
                    return {"not measured": "this machine lets us set no limit of memory"}
                result["limit"] = f"{limit[0]}, {LIMIT_BYTES >> 20} MiB"
                file = _child((*limit[1],), folder, "file", rows)
            memory = _child((), folder, "memory", rows)
            result[f"{ratio:g} times"] = {
                "rows": rows,
                "memory_keys_per_s": memory["keys_per_s"],
                "file_keys_per_s": file["keys_per_s"],
                "file_of_memory": file["keys_per_s"] / memory["keys_per_s"],
                "reads_a_1000_keys": file["reads_a_1000_keys"],
                "file_resident_bytes": file["resident_bytes"],
            }
    return result


def _disk() -> Path:
    """Return a folder on a disk: /tmp is one of memory on some machines."""
    return Path("/var/tmp")


def _rows_for(num_bytes: float) -> int:
    """Return how many rows make a table of that size."""
    plan = make_plan(rows=10**7, dim=_DIM, optimizer="adagrad", num_shards=1, capacity_max=2**28)
    return int(num_bytes / plan.row_bytes)


def _write_workload(folder: Path, rows: int) -> None:
    """Write the keys in order of their first appearance, and those of each batch, distinct."""
    rng = np.random.default_rng(rows)
    weights = np.arange(1, rows + 1) ** -_ALPHA
    # The first arrivals of independent streams: the order in which one stream of draws meets keys.
    order = np.argsort(rng.exponential(size=rows) / weights).astype(np.uint64)
    np.save(folder / "order.npy", order)
    edges = np.cumsum(weights)
    for batch in range(_BATCHES):
        drawn = np.searchsorted(edges, rng.random(_DRAWS) * edges[-1])
        np.save(folder / f"batch{batch}.npy", rng.permutation(np.unique(drawn)).astype(np.uint64))


def _child(words: tuple[str, ...], folder: str, kind: str, rows: int) -> dict[str, float]:
    """Return what a process of its own measures."""
    call = f"from bench import storage; storage.print_measured({folder!r}, {kind!r}, {rows})"
    command = [*words, sys.executable, "-c", call]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def measure_table(folder: Path, kind: str, rows: int) -> dict[str, float]:
    """Fill one table, warm it up, and return its rate."""
    spec = TableSpec(name="bench", dim=_DIM, optimizer="adagrad", storage=kind, capacity_max=rows)
    table = SparseTable(spec, storage=open_storage(str(folder)))
    out = np.empty(max(FILL_BLOCK, _DRAWS) * _DIM, np.float32)
    order = np.load(folder / "order.npy", mmap_mode="r")
    for start in range(0, rows, FILL_BLOCK):
        some = order[start : start + FILL_BLOCK].astype(np.uint64)
        table.pull(some, out[: some.size * _DIM])
    grads = np.random.default_rng(0).standard_normal(out.size).astype(np.float32)
    batches: list[Keys] = [np.load(folder / f"batch{i}.npy") for i in range(_BATCHES)]
    done = 0

    def train_for(seconds: float) -> tuple[int, float]:
        nonlocal done
        count, begin = 0, time.perf_counter()
        while (took := time.perf_counter() - begin) < seconds:
            keys = batches[done % _BATCHES]
            done += 1
            values = grads[: keys.size * _DIM]
            table.pull(keys, out[: keys.size * _DIM])
            table.check_push(keys, values)
            table.push(keys, values)
            count += keys.size
        return count, took

    train_for(_WARM_S)
    before = _reads()
    count, took = train_for(_MEASURED_S)
    return {
        "keys_per_s": count / took,
        "reads_a_1000_keys": 1e3 * (_reads() - before) / count,
        "resident_bytes": resident_bytes(),
    }


def _reads() -> float:
    """Return the 4 KiB blocks that this process has read from a disk."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"]) / 4096


def print_measured(folder: str, kind: str, rows: int) -> None:
    """Be the process of one table."""
    keep_large_blocks()
    print(json.dumps(measure_table(Path(folder), kind, rows)))
