"""Tools that need no server: verify, diff, prune, fold."""

from pathlib import Path

import numpy as np
import pytest

import pserver
from pserver.checkpoint.fold import fold
from pserver.checkpoint.local import LocalStore
from pserver.checkpoint.store import manifest_of
from pserver.checkpoint.tools import Difference, diff, prune, rows_of, verify
from pserver.errors import CheckpointError
from tests.unit.checkpoint.helpers import KEYS, cluster, push, rows_in, spec


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three versions of three shards: a full one, and two deltas."""
    folder = tmp_path_factory.mktemp("versions")
    with cluster(folder, 3) as client:
        client.create_table(spec(optimizer="sgd:lr=1"))
        client.create_dense(pserver.DenseSpec(name="d", length=7))
        client.init_dense("d", np.arange(7.0))
        push(client, KEYS)
        client.checkpoints.save(trainers={"a": {"step": 3}}, files={"a.bin": b"abc"})
        for keys in (KEYS[:10], np.array([5, 6], np.uint64)):
            push(client, keys)
            client.checkpoints.save(mode="delta")
    return folder


def test_a_good_chain_is_verified(folder: Path) -> None:
    """Every file of a version and its bases is read and checked."""
    assert verify(LocalStore(folder), "v00000003").num_rows == 2


def test_damage_is_found_in_a_base_when_a_delta_is_verified(folder: Path, tmp_path: Path) -> None:
    """One bit of the full version is enough."""
    copy = _copied(folder, tmp_path)
    path = next((tmp_path / "v00000001").glob("rows-*"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)

    with pytest.raises(CheckpointError, match=f"{path.name}: has checksum"):
        verify(copy, "v00000003")


def test_a_difference_counts_rows_and_measures_the_change(folder: Path) -> None:
    """Ten rows changed by one step of 1 to 7, two came; and back the other way."""
    store = LocalStore(folder)
    steps = (KEYS[:10] % np.uint64(7) + np.uint64(1)).astype(float)
    norm = float(np.sqrt(3 * (steps**2).sum()))

    (there,) = diff(store, "v00000001", "v00000003")
    (back,) = diff(store, "v00000003", "v00000001")

    assert there == Difference("t", 2, 0, 10, KEYS.size - 10, there.norm)
    assert back == Difference("t", 0, 2, 10, KEYS.size - 10, there.norm)
    assert there.norm == pytest.approx(norm)


def test_a_folded_version_holds_the_rows_of_its_chain(folder: Path, tmp_path: Path) -> None:
    """Deltas applied, trainers' files taken along, and it stands by itself in another place."""
    target = LocalStore(tmp_path)

    made = fold(LocalStore(folder), "v00000002", target)

    assert (made.version, made.base, made.mode) == ("v00000001", None, "full")
    assert verify(target, made.version) == made
    expected = {**rows_in(folder, "v00000001"), **rows_in(folder, "v00000002")}
    assert rows_in(tmp_path, made.version) == expected
    with cluster(tmp_path, 2, restore="latest") as client:
        assert np.array_equal(client.pull_dense("d").values, np.arange(7.0))


def test_rows_of_a_chain_come_as_one_table(folder: Path) -> None:
    """Each key once, with the newest weights."""
    pieces = list(rows_of(LocalStore(folder), "v00000003", "t"))
    keys = np.concatenate([keys for keys, _ in pieces])

    assert np.array_equal(np.sort(keys), np.sort([*KEYS, np.uint64(5), np.uint64(6)]))
    with pytest.raises(CheckpointError, match="no table 'u'; it has t, d"):
        list(rows_of(LocalStore(folder), "v00000003", "u"))


def test_old_versions_go_and_what_kept_ones_stand_on_stays(folder: Path, tmp_path: Path) -> None:
    """Of two full versions the older goes with its deltas, and so does what a cut-off save left."""
    store = _copied(folder, tmp_path)
    fold(store, "v00000003", store)
    store.begin("v00000002")
    store.begin("v00000005")  # may be under way

    assert prune(store, keep=2) == ["v00000002"]
    removed = prune(store, keep=1)

    assert removed == ["v00000001", "v00000002", "v00000003"]
    assert store.versions() == ["v00000004"]
    assert store.leftovers() == ["v00000005"]
    assert verify(store, "v00000004").num_rows == KEYS.size + 2


def test_facts_of_trainers_are_kept_with_the_version(folder: Path) -> None:
    """What trainers said stands in the manifest, their files beside it."""
    manifest = manifest_of(LocalStore(folder), "v00000001")

    assert manifest.trainers == {"a": {"step": 3}}
    assert (folder / "v00000001" / "a.bin").read_bytes() == b"abc"
    assert [file.name for file in manifest.files if file.kind == "trainer"] == ["a.bin"]


def _copied(folder: Path, target: Path) -> LocalStore:
    """Return a copy that a test may spoil."""
    for path in folder.rglob("*"):
        if path.is_file():
            copy = target / path.relative_to(folder)
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(path.read_bytes())
    return LocalStore(target)
