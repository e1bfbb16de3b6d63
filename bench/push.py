"""A push of 1,000 rows to a table of 10^4 and to one of 10^7 rows, for every optimizer.

Nothing in a push depends on how many rows there are, but on how many cache lines are cold: those of a
small table stay in the processor's caches, of a large one each row needs its bucket, its own lines and its
epoch from memory. So there are two ratios: of a push as a trainer makes it, through a server, and of the
table's part alone; and beside the latter the time of a small push with the cold lines added, each as long as
``gather`` takes for one in the same run. Small and large take turns, so load counts for both.
"""

import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

import pserver
from bench.common import DIM, FILL_BLOCK, servers, touch_memory
from pserver.arrays import Floats, Keys
from pserver.kernel import rows
from pserver.spec import TableSpec
from pserver.table.optimizer import RULES
from pserver.table.sparse import SparseTable
from pserver.table.storage import Mapping

SMALL_ROWS = 10_000
ROWS = 10_000_000
_PUSH = 1000
_TURNS = 400
_LINE_FLOATS = 16

Pushes: TypeAlias = list[tuple[Keys, Callable[[Keys], object]]]
"""For each size of table its keys, and what pushes to some of them."""


def run(*, num_rows: int = ROWS) -> dict[str, Any]:
    """Return the microseconds of both kinds of push by optimizer, and their ratios."""
    touch_memory(num_rows * 220)
    cold_us = _cold_line_us(num_rows)
    keys = {rows_of: _keys(rows_of) for rows_of in (SMALL_ROWS, num_rows)}
    grads = np.random.default_rng(0).standard_normal(_PUSH * DIM).astype(np.float32)
    result: dict[str, Any] = {"cold_line_ns": 1e3 * cold_us / _PUSH}
    for name in RULES:
        table = _ratio(_pushes_of_tables(name, keys, grads))
        lines = _cold_lines(name)
        table["cold_lines_a_row"] = lines
        table["large_bound_us"] = table["small_us"] + lines * cold_us
        with servers(1) as endpoint, pserver.connect(endpoint) as client:
            result[name] = {
                "push": _ratio(_pushes_of_client(client, name, keys, grads)),
                "table": table,
            }
    return result


def _keys(count: int) -> Keys:
    """Return the keys 0 to ``count``, in no order: neighbours here are none in the slab."""
    return np.random.default_rng(count).permutation(count).astype(np.uint64)


def _pushes_of_tables(name: str, keys: dict[int, Keys], grads: Floats) -> Pushes:
    """Return the keys of a filled table, and what pushes to it in this process, for each size."""
    pushes: Pushes = []
    for num_rows, known in keys.items():
        table = SparseTable(TableSpec(name="push", dim=DIM, optimizer=name))
        out = np.empty(FILL_BLOCK * DIM, np.float32)
        for start in range(0, num_rows, FILL_BLOCK):
            block = np.arange(start, min(num_rows, start + FILL_BLOCK), dtype=np.uint64)
            table.pull(block, out[: block.size * DIM])

        def push(some: Keys, table: SparseTable = table) -> None:
            table.check_push(some, grads)
            table.push(some, grads)

        pushes.append((known, push))
    return pushes


def _pushes_of_client(
    client: pserver.Client, name: str, keys: dict[int, Keys], grads: Floats
) -> Pushes:
    """Return the same through a server."""
    pushes: Pushes = []
    for num_rows, known in keys.items():
        table = f"rows{num_rows}"
        client.create_table(TableSpec(name=table, dim=DIM, optimizer=name))
        for start in range(0, num_rows, 4 * FILL_BLOCK):
            stop = min(num_rows, start + 4 * FILL_BLOCK)
            client.pull(table, np.arange(start, stop, dtype=np.uint64))

        def push(some: Keys, table: str = table) -> None:
            client.push(table, some, grads.reshape(-1, DIM))

        pushes.append((known, push))
    return pushes


def _ratio(pushes: Pushes) -> dict[str, float]:
    """Return the median microseconds of a small and of a large table's pushes, and their ratio."""
    seconds: list[list[float]] = [[] for _ in pushes]
    for turn in range(_TURNS + _TURNS // 10):
        for took, (keys, push) in zip(seconds, pushes, strict=True):
            start = turn * _PUSH % (keys.size - _PUSH + 1)
            some = keys[start : start + _PUSH]
            begin = time.perf_counter()
            push(some)
            took.append(time.perf_counter() - begin)
    small, large = (1e6 * float(np.median(took[_TURNS // 10 :])) for took in seconds)
    return {"small_us": small, "large_us": large, "ratio": large / small}


def _cold_lines(name: str) -> float:
    """Return the cache lines a row of a large table: bucket, epoch, and the row's own."""
    table = SparseTable(TableSpec(name="lines", dim=DIM, optimizer=name, capacity_max=_PUSH))
    first = np.arange(_PUSH) * (table.row_bytes - 4)
    return 2.0 + float(np.mean((first + table.row_bytes - 5) // 64 - first // 64 + 1))


def _cold_line_us(num_rows: int) -> float:
    """Return the microseconds of reading one cold line for each row of a push."""
    memory = Mapping(2 * num_rows * _LINE_FLOATS, np.float32, what="bench").array
    memory[:: 1 << 10] = 1.0
    out = np.empty(_PUSH * _LINE_FLOATS, np.float32)
    rng = np.random.default_rng(3)
    took = []
    for _ in range(_TURNS):
        row_ids = rng.integers(0, 2 * num_rows, _PUSH)
        begin = time.perf_counter()
        rows.gather(memory, _LINE_FLOATS, _LINE_FLOATS, row_ids, out)
        took.append(time.perf_counter() - begin)
    return 1e6 * float(np.median(took))
