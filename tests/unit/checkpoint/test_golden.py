"""A version that release 1 of the format wrote: every later release loads it. It is never rewritten."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pserver.checkpoint.local import LocalStore
from pserver.checkpoint.tools import verify
from tests.unit.checkpoint.helpers import cluster, rows_of

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "checkpoint_v1"


@pytest.mark.parametrize("num_shards", [1, 2, 3])
def test_the_first_format_loads_on_any_number_of_shards(num_shards: int, tmp_path: Path) -> None:
    """A full version and a delta: weights, state, epochs and dense values are what they were."""
    expected = json.loads((GOLDEN / "expected.json").read_text(encoding="ascii"))
    keys = np.array([int(key) for key in expected["ads"]], np.uint64)

    assert verify(LocalStore(GOLDEN), "v00000002").trainers == {}
    folder = shutil.copytree(GOLDEN, tmp_path / "copy")
    with cluster(folder, num_shards, restore="latest") as client:
        rows = rows_of(client, "ads", keys)
        dense = client.pull_dense("top").values

    assert dense.tolist() == expected["top"]
    for key, columns in expected["ads"].items():
        found = {
            name: np.frombuffer(data, np.uint32 if name == "epochs" else np.float32).tolist()
            for name, data in rows[int(key)].items()
        }
        assert found == columns
