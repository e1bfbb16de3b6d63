"""A table in process: pull and push on 8 M rows, and how evenly it grows from nothing."""

import time
from typing import Any

import numpy as np

from bench.common import DIM, FILL_BLOCK, ROWS, distinct_keys, fill_keys, measure, touch_memory
from pserver.spec import TableSpec
from pserver.table.sparse import SparseTable

_BATCHES = 40
_GROWTH_BATCH = 27_600


def run(*, num_rows: int = ROWS) -> dict[str, Any]:
    """Return rates in keys a second, and the slowest request of the growth over the median."""
    touch_memory(num_rows * 220)
    growth = _growth(num_rows)
    wanted = distinct_keys(_BATCHES)
    count = float(np.mean([keys.size for keys in wanted]))
    table = SparseTable(TableSpec(name="bench", dim=DIM, optimizer="adagrad"))
    out = np.empty(FILL_BLOCK * DIM, np.float32)
    for keys in fill_keys(num_rows, wanted):
        table.pull(keys, out[: keys.size * DIM])
    grads = np.random.default_rng(0).standard_normal(out.size).astype(np.float32)

    def push(i: int) -> None:
        keys = wanted[i % _BATCHES]
        values = grads[: keys.size * DIM]
        table.check_push(keys, values)
        table.push(keys, values)

    def pull(i: int) -> None:
        keys = wanted[i % _BATCHES]
        table.pull(keys, out[: keys.size * DIM])

    def peek(i: int) -> None:
        keys = wanted[i % _BATCHES]
        table.peek(keys, out[: keys.size * DIM])

    return {
        "pull_keys_per_s": measure(pull, inner=_BATCHES).rate(count)["median"],
        "peek_keys_per_s": measure(peek, inner=_BATCHES).rate(count)["median"],
        "push_keys_per_s": measure(push, inner=_BATCHES).rate(count)["median"],
        "bytes_per_row": table.num_bytes / table.num_rows,
        "growth": growth,
    }


def _growth(num_rows: int) -> dict[str, float]:
    """Return how long requests of new keys take while a table grows from nothing."""
    table = SparseTable(TableSpec(name="growth", dim=DIM, optimizer="adagrad"))
    rng = np.random.default_rng(2)
    out = np.empty(_GROWTH_BATCH * DIM, np.float32)
    seconds = []
    for _ in range(num_rows // _GROWTH_BATCH):
        keys = rng.integers(0, 2**64, _GROWTH_BATCH, dtype=np.uint64)
        begin = time.perf_counter()
        table.pull(keys, out)
        seconds.append(time.perf_counter() - begin)
    median = float(np.median(seconds))
    return {
        "median_ms": 1e3 * median,
        "p99_ms": 1e3 * float(np.quantile(seconds, 0.99)),
        "max_ms": 1e3 * max(seconds),
        "max_over_median": max(seconds) / median,
    }
