"""More than two gigabytes in one table: no message, file or array has a limit of 2 GiB (B13).

Two minutes, 5 GB of disk, and 11 GB of memory at the most.
"""

from pathlib import Path

import numpy as np
import pytest

import pserver
from pserver.cli.main import main

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

DIM, CHUNK, CHUNKS = 512, 40_000, 32
TWO_GIB = 1 << 31


def test_b13_a_shard_of_over_2_gib_is_saved_and_restored(tmp_path: Path) -> None:
    """2.4 GiB of weights come back, exported too, and no file of the version is over 64 MiB."""
    folder = tmp_path / "ckpt"
    spec = pserver.TableSpec(name="t", dim=DIM, optimizer="sgd:lr=1", initializer="zeros")
    with pserver.embedded(1, checkpoint_dir=str(folder)) as client:
        client.create_table(spec)
        for chunk in range(CHUNKS):
            keys = np.arange(chunk * CHUNK, (chunk + 1) * CHUNK, dtype=np.uint64)
            client.assign("t", keys, np.repeat(keys.astype(np.float32)[:, None], DIM, axis=1))
        saved = client.checkpoints.save()
    sizes = [path.stat().st_size for path in folder.rglob("*.safetensors")]

    with pserver.embedded(1, checkpoint_dir=str(folder), restore="latest") as client:
        some = np.arange(0, CHUNK * CHUNKS, 9973, dtype=np.uint64)
        found = client.peek("t", some)
    out = tmp_path / "t.npy"
    status = main(["export", str(folder), "--table", "t", "--format", "npy", "--out", str(out)])

    assert saved.rows == CHUNK * CHUNKS
    assert sum(sizes) > TWO_GIB
    assert max(sizes) < 64 << 20
    assert np.array_equal(found, np.repeat(some.astype(np.float32)[:, None], DIM, axis=1))
    assert status == 0
    written = [path for path in tmp_path.iterdir() if path.suffix == ".npy"]
    assert sum(path.stat().st_size for path in written) > TWO_GIB
