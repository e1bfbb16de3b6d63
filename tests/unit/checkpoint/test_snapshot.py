"""Files of rows: runs of whole partitions, sorted, each row once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.checkpoint import snapshot
from pserver.checkpoint.snapshot import RowFiles, distinct, offsets_of, order_of
from pserver.checkpoint.tensors import Encoded, decode
from pserver.placement import NUM_PARTITIONS, partition_of
from pserver.spec import TableSpec
from pserver.table.cut import Cut
from pserver.table.sparse import SparseTable
from tests.reference import EDGE_KEYS
from tests.reference import partition_of as slow_partition


@given(st.lists(st.integers(0, 2**64 - 1) | st.sampled_from(EDGE_KEYS), unique=True, max_size=50))
def test_keys_are_sorted_by_partition_and_then_by_key(keys: list[int]) -> None:
    """As Python sorts pairs; and the offsets say where each partition lies."""
    array = np.array(keys, np.uint64)

    found = array[order_of(array)]
    offsets = offsets_of(found)

    assert np.array_equal(distinct([array[:10], array, array[5:]]), found)
    assert found.tolist() == sorted(keys, key=lambda key: (slow_partition(key), key))
    assert (offsets[0], offsets[-1], offsets.size) == (0, len(keys), NUM_PARTITIONS + 1)
    for key in keys:
        partition = slow_partition(key)
        assert key in found[offsets[partition] : offsets[partition + 1]].tolist()


@pytest.mark.parametrize("chunk_bytes", [1, 2000, 10**9])
def test_files_hold_runs_of_partitions_and_each_row_once_whatever_their_size(
    chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs of all files together are the shard's partitions without gap or overlap."""
    monkeypatch.setattr(snapshot, "CHUNK_BYTES", chunk_bytes)
    keys = np.arange(2000, dtype=np.uint64)
    keys = keys[(partition_of(keys) >= 100) & (partition_of(keys) < 700)]
    table = SparseTable(TableSpec(name="t", dim=2, optimizer="sgd", capacity_max=5000))
    table.pull(keys, np.empty(2 * keys.size, np.float32))
    written: dict[str, Encoded] = {}
    cut = Cut(table)
    files = RowFiles(written.__setitem__, cut.blocks, table="t", shard=3, partitions=(100, 700))

    while not cut.is_done:
        files.add(cut.copy_some(10))
        if files.is_due:
            files.flush(cut.next_partition)
    entries = files.finish()

    ends = [entry.partitions for entry in entries]
    assert [begin for begin, _ in ends] == [100, *(end for _, end in ends[:-1])]
    assert ends[-1][1] == 700
    assert len(entries) == 1 if chunk_bytes > 10**6 else len(entries) > 5
    arrays = [decode(b"".join(written[entry.name].blocks), where="x") for entry in entries]
    found = np.concatenate([array["keys"] for array in arrays])
    assert np.array_equal(np.sort(found), np.sort(keys))
    for entry, array in zip(entries, arrays, strict=True):
        assert (entry.rows, entry.bytes) == (array["keys"].size, written[entry.name].num_bytes)
        inside = partition_of(array["keys"])
        assert np.all((inside >= entry.partitions[0]) & (inside < entry.partitions[1]))
