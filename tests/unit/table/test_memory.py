"""What a table takes of the machine's memory: as much as ``pserver plan`` says."""

import os
import subprocess
import sys

import pytest

MEASURE = """
import sys
import numpy as np
from pserver.malloc import keep_large_blocks
from pserver.plan import make_plan
from pserver.server.report import resident_bytes
from pserver.spec import TableSpec
from pserver.table.sparse import SparseTable

rows, dim, optimizer, row_dtype = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
out = np.zeros(20_000 * dim, np.float32)
rng = np.random.default_rng(0)

def fill(table, count):
    for _ in range(count // 20_000):
        table.pull(rng.integers(0, 2**64, 20_000, np.uint64), out)

def make():
    return SparseTable(TableSpec(name="t", dim=dim, optimizer=optimizer, row_dtype=row_dtype))

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
)
print((resident_bytes() - before) / plan.total_bytes)
"""


@pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="a million rows in plain Python take minutes"
)
@pytest.mark.parametrize(
    ("rows", "dim", "optimizer", "row_dtype"),
    [
        (1_000_000, 16, "adagrad", "float32"),
        (1_000_000, 16, "adagrad", "bfloat16"),
        (1_000_000, 1, "sgd", "float32"),
        pytest.param(10_000_000, 16, "adagrad", "float32", marks=pytest.mark.slow),
        pytest.param(10_000_000, 8, "adam", "float16", marks=pytest.mark.slow),
    ],
)
def test_resident_memory_is_what_the_plan_says(
    rows: int, dim: int, optimizer: str, row_dtype: str
) -> None:
    """A process with a table of that many rows has grown by what is planned, within 10 %."""
    words = [str(rows), str(dim), optimizer, row_dtype]

    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *words], capture_output=True, text=True, check=True
    )

    assert float(done.stdout) == pytest.approx(1.0, abs=0.1)
