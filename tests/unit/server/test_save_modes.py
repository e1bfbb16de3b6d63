"""Save modes with Paddle's meaning: which rows, and what becomes of their marks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pserver
from pserver.checkpoint.export import export
from pserver.checkpoint.local import LocalStore
from pserver.checkpoint.store import choose_version, manifest_of
from pserver.checkpoint.tools import prune, verify
from pserver.embedded import Cluster
from tests.unit.checkpoint.helpers import cluster
from tests.unit.server.test_recovery import running, without_counters

ACCESSOR = "ctr:nonclk_coeff=1,base_threshold=2,delta_threshold=1"
SPEC = pserver.TableSpec(name="c", dim=2, accessor=ACCESSOR, optimizer="adagrad", capacity_max=9999)
PLAIN = pserver.TableSpec(name="p", dim=1, capacity_max=99)


def show(client: pserver.Client, keys: list[int]) -> None:
    client.push("c", keys, np.ones((len(keys), 2)))


def fill(client: pserver.Client) -> None:
    """Make rows with 1, 2 and 3 shows, and a table without scores."""
    client.create_table(SPEC)
    client.create_table(PLAIN)
    for keys in ([1, 2, 3], [2, 3], [3]):
        show(client, keys)
    client.push("p", [7], [[1.0]])


def marks(client: pserver.Client) -> dict[int, float]:
    rows = {key: client.inspect("c", key) for key in range(1, 6)}
    return {key: float(row.words["delta_score"]) for key, row in rows.items() if row.has_row}


def chosen(folder: Path, version: str, choice: Any) -> int:
    """Return how many rows an export of a version chooses."""
    store, path = LocalStore(folder), folder.with_suffix(".npy")
    return export(store, version, "c", path, how=("npy", "float32"), choice=choice).rows


def test_a_base_has_the_rows_for_serving_and_only_a_server_that_reads_takes_it(
    tmp_path: Path,
) -> None:
    """Rows of tables without scores are all in; latest, deltas and prune pass it over."""
    store = LocalStore(tmp_path)
    with cluster(tmp_path, 2) as client:
        fill(client)
        full = client.checkpoints.save()
        base = client.checkpoints.save(mode="base")
        show(client, [4])
        assert choose_version(store, "latest") == full.version
        delta = client.checkpoints.save(mode="delta")
        with pytest.raises(
            pserver.CheckpointError, match=r"of mode base: .*pserver serve --read-only"
        ):
            client.checkpoints.load(base.version)

    assert (full.rows, base.rows, delta.base) == (4, 3, full.version)
    assert verify(store, base.version).mode == "base"
    with Cluster(3, checkpoint_dir=str(tmp_path)) as shards:
        for shard in shards.shards:
            shard.loads.only_reads = True
            shards._runtime.submit(shard.loads.restore(base.version)).result()
        with shards.connect() as reader:
            rows = {key: reader.inspect("c", key).has_row for key in (1, 2, 3)}
            assert rows == {1: False, 2: True, 3: True}
            assert reader.inspect("p", 7).has_row
    assert prune(store, keep=1) == []


@pytest.mark.parametrize(
    ("mode", "left"),
    [
        ("full", {1: 1.0, 2: 2.0, 3: 3.0}),
        ("delta", {1: 1.0, 2: 0.0, 3: 0.0}),
        ("base", {1: 1.0, 2: 0.0, 3: 0.0}),
        ("batch", {1: 1.0, 2: 2.0, 3: 3.0}),
        ("revert", {1: 1.0, 2: 2.0, 3: 3.0}),
    ],
)
def test_a_save_takes_the_marks_of_the_rows_that_its_mode_chose(
    tmp_path: Path, mode: str, left: dict[int, float]
) -> None:
    """As Paddle's modes 0, 1, 2, 3 and 5 do; what is restored from a full version has them all."""
    with cluster(tmp_path, 2) as client:
        fill(client)
        client.checkpoints.save()
        saved = client.checkpoints.save(mode=mode)
        assert marks(client) == left
        assert all(client.inspect("c", key).words["unseen_days"] == 0 for key in left)
        expected_state = manifest_of(LocalStore(tmp_path), saved.version)

    assert expected_state.mode == mode
    if mode in ("batch", "revert"):
        assert (saved.base, saved.rows) == ("", 4)
        with cluster(tmp_path, 3, restore="latest") as client:
            assert marks(client) == left


def test_the_next_delta_for_serving_has_what_was_shown_since(tmp_path: Path) -> None:
    """A chain of deltas holds every row to the bit; those for serving are chosen by their new marks."""
    with cluster(tmp_path, 2) as client:
        fill(client)
        client.checkpoints.save()
        first = client.checkpoints.save(mode="delta").version
        show(client, [3])
        second = client.checkpoints.save(mode="delta").version
        third = client.checkpoints.save(mode="delta").version
        live = marks(client)

    assert [chosen(tmp_path, v, "delta") for v in (first, second, third)] == [2, 1, 0]
    assert [chosen(tmp_path, v, "base") for v in (first, second, third)] == [2, 2, 2]
    with cluster(tmp_path, 1, restore=third) as client:
        assert marks(client) == live


def test_marks_stay_when_the_save_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken away before a version is durable."""
    with cluster(tmp_path, 2) as client:
        fill(client)
        client.checkpoints.save()

        def refuse(*_: object) -> None:
            raise pserver.CheckpointError("no room")

        monkeypatch.setattr(LocalStore, "publish", refuse)
        with pytest.raises(pserver.CheckpointError, match="no room"):
            client.checkpoints.save(mode="delta")

        assert marks(client) == {1: 1.0, 2: 2.0, 3: 3.0}


def test_a_restart_replays_what_saves_took(tmp_path: Path) -> None:
    """A shard with a journal comes back with the marks that it had, and does not go on from a base."""
    with running(tmp_path / "journal", tmp_path / "store") as first:
        fill(first.client)
        first.client.checkpoints.save()
        show(first.client, [4, 5])
        first.client.checkpoints.save(mode="base")
        show(first.client, [3, 4])
        before = first.kill(tmp_path / "copy")
        expected = marks(first.client)

    with running(tmp_path / "copy", tmp_path / "store") as second:
        assert without_counters(second.state()) == without_counters(before)
        assert marks(second.client) == expected == {1: 1.0, 2: 0.0, 3: 1.0, 4: 2.0, 5: 1.0}


def test_a_base_is_refused_when_no_table_has_scores(tmp_path: Path) -> None:
    """It would choose nothing; the message names the mode to take."""
    with cluster(tmp_path, 2) as client:
        client.create_table(PLAIN)

        with pytest.raises(pserver.RequestError, match="no table has accessor ctr; take full"):
            client.checkpoints.save(mode="base")
