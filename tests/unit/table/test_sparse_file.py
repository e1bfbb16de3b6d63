"""A table on a file: the same bits as in memory, and a full disk is an error, not the end."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pserver.occurrences import Occurrences
from pserver.spec import ROW_DTYPES, TableSpec
from pserver.table.sparse import SparseTable
from pserver.table.storage import Storage

DIM = 3

FULL_DISK = """
import sys
import numpy as np
from pathlib import Path
from pserver.errors import TableFullError
from pserver.spec import TableSpec
from pserver.table.sparse import SparseTable
from pserver.table.storage import open_storage

spec = TableSpec(name="t", dim=64, optimizer="sgd:lr=1", initializer="zeros", storage="file")
table = SparseTable(spec, storage=open_storage(sys.argv[1]))
keys = np.arange(10_000, dtype=np.uint64)
out = np.empty(keys.size * 64, np.float32)
for block in range(1000):
    try:
        table.check_push(keys + np.uint64(block * keys.size), np.ones_like(out))
    except TableFullError as error:
        print(error)
        break
    table.push(keys + np.uint64(block * keys.size), np.ones_like(out))
before = table.num_rows
assert before == block * keys.size > 0
table.check()
table.push(keys, np.ones_like(out))  # what is there can still be read and stepped
table.pull(keys, out)
assert np.all(out == -2.0)
assert table.erase(keys) == keys.size
new = keys + np.uint64(10**9)
table.check_pull(new)  # freed rows have room
table.pull(new, out)
table.check()
assert table.num_rows == before
"""


def tables(folder: Path, **fields: object) -> list[SparseTable]:
    """Return two tables of one spec, one in memory and one on a file."""
    return [
        SparseTable(
            TableSpec(name="t", dim=DIM, storage=storage, **fields),  # type: ignore[arg-type]
            storage=Storage(folder),
        )
        for storage in ("memory", "file")
    ]


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam", "ftrl", "adagrad:state=row"])
def test_a_table_has_the_same_bits_when_it_lies_on_a_file(tmp_path: Path, optimizer: str) -> None:
    """Pull, peek, push, assign, erase and row give the same bits in memory and on a file."""
    rng = np.random.default_rng(3)
    memory, file = tables(tmp_path, optimizer=optimizer, initializer="normal:std=1")

    for _ in range(20):
        keys = rng.integers(0, 300, 100, np.uint64)
        values = rng.standard_normal(keys.size * DIM).astype(np.float32)
        few = keys[:10]
        seen = []
        for table in (memory, file):
            out = np.empty((3, keys.size * DIM), np.float32)
            table.check_push(keys, values)
            table.push(keys, values)
            table.pull(keys + np.uint64(100), out[0])
            table.assign(few, values[: few.size * DIM])
            table.peek(keys + np.uint64(200), out[1])
            assert table.erase(few) == np.unique(few).size
            table.peek(keys, out[2])
            table.check()
            seen.append(out.tobytes())
        assert seen[0] == seen[1]
    assert memory.num_rows == file.num_rows
    assert memory.num_bytes == file.num_bytes
    for key in range(300):
        one, other = memory.row(key), file.row(key)
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert np.array_equal(one.weights, other.weights)
            assert all(np.array_equal(one.state[part], other.state[part]) for part in one.state)


@pytest.mark.parametrize("row_dtype", ROW_DTYPES)
def test_rows_of_ctr_have_the_same_bits_when_they_lie_on_a_file(
    tmp_path: Path, row_dtype: str
) -> None:
    """Both parts of a row, of each dtype, through push, pull, assign and erase."""
    rng = np.random.default_rng(5)
    accessor = "ctr:embedx_threshold=0.5"
    memory, file = tables(tmp_path, optimizer="adagrad", accessor=accessor, row_dtype=row_dtype)

    for _ in range(10):
        keys = rng.integers(0, 200, 80, np.uint64)
        values = rng.standard_normal(keys.size * DIM).astype(np.float32)
        said = Occurrences(clicks=np.ones(keys.size, np.float32))
        seen = []
        for table in (memory, file):
            out = np.empty((2, keys.size * DIM), np.float32)
            table.push(keys, table.check_push(keys, values, said), said)
            table.version += 1
            table.pull(keys + np.uint64(50), out[0])
            table.assign(keys[:5], values[: 5 * DIM])
            table.erase(keys[5:9])
            table.peek(keys, out[1])
            table.check()
            seen.append(out.tobytes())
        assert seen[0] == seen[1]
    assert memory.num_bytes == file.num_bytes


def test_nothing_is_lost_when_the_disk_is_full(tmp_path: Path) -> None:
    """New rows are refused with an error that says why; those that are there still work.

    On a file system of 40 MiB, in a process of its own: without blocks that were allocated ahead it
    would end by SIGBUS.
    """
    script = (
        f"mount -t tmpfs -o size=40M none {tmp_path} && exec {sys.executable} -c '{FULL_DISK}' "
    )
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        script + str(tmp_path),
    ]
    allowed = subprocess.run([*command[:4], "true"], capture_output=True, check=False)
    if allowed.returncode:
        pytest.skip("this system lets us make no file system of our own")

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "new rows needed, room for" in done.stdout
    assert f"{tmp_path} has no room for more rows (No space left on device)" in done.stdout
