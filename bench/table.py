"""A table in process: pull and push on 8 M rows, plain and of ctr, and how evenly it grows from nothing.

The ceiling beside a rate is what one core could move: a bucket's line, the row, read and written where
it is pushed to, and what comes or goes, over the memory bandwidth measured in the same run.
"""

import dataclasses
import time
from typing import Any

import numpy as np

from bench.common import (
    DIM,
    FILL_BLOCK,
    ROWS,
    distinct_keys,
    fill_keys,
    measure,
    memory_bytes_per_s,
    touch_memory,
)
from pserver.spec import TableSpec
from pserver.table.sparse import SparseTable

_BATCHES = 40
_GROWTH_BATCH = 27_600
_LINE = 64


def run(*, num_rows: int = ROWS) -> dict[str, Any]:
    """Return rates in keys a second, and the slowest request of the growth over the median."""
    touch_memory(num_rows * 220)
    bandwidth = memory_bytes_per_s()
    plain = TableSpec(name="bench", dim=DIM, optimizer="adagrad")
    ctr = dataclasses.replace(plain, accessor="ctr:embedx_threshold=-1e9")  # every row has embedx
    growth = _growth(num_rows)
    result = _rates(plain, num_rows, bandwidth)
    of_ctr = {f"ctr_{name}": rate for name, rate in _rates(ctr, num_rows, bandwidth).items()}
    return {**result, **of_ctr, "memory_bytes_per_s": bandwidth, "growth": growth}


def _rates(spec: TableSpec, num_rows: int, bandwidth: float) -> dict[str, float]:
    """Return the rates of a table of so many rows, their ceilings, and bytes a row."""
    wanted = distinct_keys(_BATCHES)
    count = float(np.mean([keys.size for keys in wanted]))
    table = SparseTable(spec)
    out = np.empty(FILL_BLOCK * DIM, np.float32)
    for keys in fill_keys(num_rows, wanted):
        table.push(keys, np.zeros(keys.size * DIM, np.float32))
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

    row_bytes = table.row_bytes + table.slab.extra_bytes / table.num_rows
    moved = _LINE + 4 * DIM
    return {
        "pull_ceiling_keys_per_s": bandwidth / (moved + 4 * DIM),
        "push_ceiling_keys_per_s": bandwidth / (moved + 2 * row_bytes),
        "pull_keys_per_s": measure(pull, inner=_BATCHES).rate(count)["median"],
        "peek_keys_per_s": measure(peek, inner=_BATCHES).rate(count)["median"],
        "push_keys_per_s": measure(push, inner=_BATCHES).rate(count)["median"],
        "bytes_per_row": table.num_bytes / table.num_rows,
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
