"""The kernels alone, on 8 M rows of dim 16: find, gather, and a step of each optimizer.

The ceiling beside each rate is what one core could move: a row's bytes over the memory bandwidth
measured in the same run.
"""

from typing import Any

import numpy as np

from bench.common import (
    DIM,
    ROWS,
    batches,
    distinct_keys,
    fill_keys,
    measure,
    memory_bytes_per_s,
)
from pserver.arrays import Keys, RowIds
from pserver.kernel import rows
from pserver.kernel.dedupe import dedupe
from pserver.table.index import Index
from pserver.table.optimizer import RULES, make_optimizer
from pserver.table.storage import Mapping

_BATCHES = 40
_LINE = 64


def run(*, num_rows: int = ROWS) -> dict[str, Any]:
    """Return the rates of the kernels, in keys or rows a second."""
    bandwidth = memory_bytes_per_s()
    wanted = [_read_only(keys) for keys in distinct_keys(_BATCHES)]
    count = float(np.mean([keys.size for keys in wanted]))
    index = _filled(num_rows, wanted)
    row_ids = [_row_ids(index, keys) for keys in wanted]
    found = np.empty(max(keys.size for keys in wanted), np.int64)

    finding = measure(
        lambda i: index.find(wanted[i % _BATCHES], found[: wanted[i % _BATCHES].size]),
        inner=_BATCHES,
    )
    result: dict[str, Any] = {
        "find_keys_per_s": finding.rate(count)["median"],
        "find_ceiling_keys_per_s": bandwidth / _LINE,
    }
    for name in RULES:
        result |= _rule(name, num_rows, row_ids, bandwidth)
    sample = batches(8)
    deduping = measure(lambda i: dedupe(sample[i % 8].keys), inner=8)
    result["dedupe_occurrences_per_s"] = deduping.rate(sample[0].keys.size)["median"]
    result["memory_bytes_per_s"] = bandwidth
    return result


def _rule(name: str, num_rows: int, row_ids: list[RowIds], bandwidth: float) -> dict[str, float]:
    """Return the rates of a step of one optimizer, and with adagrad's rows those of gathering."""
    optimizer = make_optimizer(name, dim=DIM)
    stride = DIM + optimizer.state_dim
    slab = Mapping(num_rows * stride, np.float32, what="bench").array
    slab[::1024] = 0.0
    count = float(np.mean([ids.size for ids in row_ids]))
    out = np.empty(max(ids.size for ids in row_ids) * DIM, np.float32)
    grads = np.random.default_rng(0).standard_normal(out.size).astype(np.float32)
    grads.flags.writeable = False

    def gather(i: int) -> None:
        rows.gather(slab, stride, DIM, row_ids[i % _BATCHES], out)

    def step(i: int) -> None:
        ids = row_ids[i % _BATCHES]
        optimizer.apply(slab, ids, grads[: ids.size * DIM], version=i)  # with the decay of adamw

    result = {
        f"{name}_rows_per_s": measure(step, inner=_BATCHES).rate(count)["median"],
        f"{name}_ceiling_rows_per_s": bandwidth / (4 * stride * 2 + 4 * DIM),
    }
    if name == "adagrad":
        gathering = measure(gather, inner=_BATCHES).rate(count)
        result["gather_rows_per_s"] = gathering["median"]
        result["gather_ceiling_rows_per_s"] = bandwidth / (4 * DIM * 2)
    return result


def _filled(num_rows: int, first: list[Keys]) -> Index:
    """Return an index of ``num_rows`` keys, the given ones included."""
    index = Index(num_rows, np.empty(num_rows, np.int64), table="bench")
    for keys in fill_keys(num_rows, first):
        row_ids = np.empty(keys.size, np.int64)
        index.find_or_insert(_read_only(keys), row_ids, np.empty(keys.size, np.int64))
    return index


def _row_ids(index: Index, keys: Keys) -> RowIds:
    """Return the row ids of keys that are all there."""
    row_ids = np.empty(keys.size, np.int64)
    assert index.find(keys, row_ids) == 0
    return row_ids


def _read_only(keys: Keys) -> Keys:
    """Return a view that cannot be written to: what a shard sees of a message."""
    view = keys.view()
    view.flags.writeable = False
    return view
