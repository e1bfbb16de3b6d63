"""What a table takes of the machine's memory: as much as ``pserver plan`` says."""

import os
import subprocess
import sys

import pytest

EMBEDX_AT_ONCE = "ctr:embedx_threshold=0.05"  # a show is worth 0.1
slow, long = pytest.mark.slow, pytest.mark.long

MEASURE = """
import sys
import numpy as np
from pserver.malloc import keep_large_blocks
from pserver.plan import make_plan
from pserver.server.report import resident_bytes
from pserver.spec import TableSpec
from pserver.table.sparse import SparseTable

rows, dim, optimizer, row_dtype = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
accessor, share = sys.argv[5], float(sys.argv[6])
out = np.zeros(20_000 * dim, np.float32)
rng = np.random.default_rng(0)

def fill(table, count):
    for i in range(count // 20_000):
        keys = rng.integers(0, 2**64, 20_000, np.uint64)
        table.pull(keys, out)
        if share and i % round(1 / share) == 0:
            table.check_push(keys, out)
            table.push(keys, out)  # its shows are enough for embedx

def make():
    spec = TableSpec(
        name="t", dim=dim, optimizer=optimizer, row_dtype=row_dtype, accessor=accessor
    )
    return SparseTable(spec)

keep_large_blocks()
fill(make(), 100_000)  # what every process takes once
table = make()
before = resident_bytes()
fill(table, rows)
plan = make_plan(
    rows=rows,
    dim=dim,
    optimizer=optimizer,
    num_shards=1,
    capacity_max=2**28,
    row_dtype=row_dtype,
    accessor=accessor,
    embedx_share=share if accessor != "plain" else 1.0,
)
print((resident_bytes() - before) / plan.total_bytes)
"""


@pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="a million rows in plain Python take minutes"
)
@pytest.mark.parametrize(
    ("rows", "dim", "optimizer", "row_dtype", "accessor", "share"),
    [
        (1_000_000, 16, "adagrad", "float32", "plain", 0.0),
        (1_000_000, 16, "adagrad", "bfloat16", "plain", 0.0),
        (1_000_000, 1, "sgd", "float32", "plain", 0.0),
        pytest.param(1_000_000, 16, "adagrad", "float32", EMBEDX_AT_ONCE, 0.0, marks=slow),
        pytest.param(1_000_000, 16, "adagrad", "float32", EMBEDX_AT_ONCE, 0.5, marks=slow),
        pytest.param(1_000_000, 9, "adam", "float32", EMBEDX_AT_ONCE, 1.0, marks=slow),
        pytest.param(10_000_000, 16, "adagrad", "float32", "plain", 0.0, marks=slow),
        pytest.param(10_000_000, 8, "adam", "float16", "plain", 0.0, marks=slow),
        pytest.param(10_000_000, 16, "adagrad", "float32", EMBEDX_AT_ONCE, 0.0, marks=long),
        pytest.param(10_000_000, 16, "adagrad", "float32", EMBEDX_AT_ONCE, 0.5, marks=long),
    ],
)
def test_resident_memory_is_what_the_plan_says(
    rows: int, dim: int, optimizer: str, row_dtype: str, accessor: str, share: float
) -> None:
    """A process with a table of that many rows has grown by what is planned, within 10 %.

    ``share``: of the rows that were pushed, each with one show, so that with accessor ctr they have embedx.
    """
    words = [str(rows), str(dim), optimizer, row_dtype, accessor, str(share)]

    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *words], capture_output=True, text=True, check=True
    )

    assert float(done.stdout) == pytest.approx(1.0, abs=0.1)
