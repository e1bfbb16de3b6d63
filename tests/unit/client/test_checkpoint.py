"""Saves and loads of a whole cluster, as a user asks for them."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pserver
from tests.unit.checkpoint.helpers import (
    KEYS,
    clients,
    cluster,
    manifest_in,
    push,
    rows_in,
    rows_of,
    spec,
    without,
)


def test_every_row_is_in_the_files_when_a_cluster_was_saved(tmp_path: Path) -> None:
    """Safetensors alone reads each row once: weights, state by name and epoch, to the bit."""
    with cluster(tmp_path, 3) as client:
        client.create_table(spec())
        push(client, KEYS)
        push(client, KEYS[::3])

        saved = client.checkpoints.save()

        assert rows_in(tmp_path, saved.version) == rows_of(client)
        assert saved.rows == KEYS.size
    assert (tmp_path / "LATEST").read_text() == f"{saved.version}\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, 3),
        (3, 1),
        (3, 2),
        (3, 3),
        (3, 7),
        pytest.param(2, 8, marks=pytest.mark.slow),
        pytest.param(3, 5, marks=pytest.mark.slow),
    ],
)
def test_d5_rows_are_the_same_to_the_bit_when_another_number_of_shards_loads(
    tmp_path: Path, before: int, after: int
) -> None:
    """Any number of servers takes what any number saved: no key is lost, none is there twice."""
    values = np.linspace(-1, 1, 1001)
    with cluster(tmp_path, before) as client:
        client.create_table(spec())
        client.create_dense(pserver.DenseSpec(name="d", length=values.size, optimizer="adam"))
        client.init_dense("d", values)
        client.push_dense("d", np.ones(values.size))
        push(client, KEYS)
        client.checkpoints.save()
        expected, dense = rows_of(client), client.pull_dense("d").values
        push(client, KEYS, 0.5)
        client.push_dense("d", np.ones(values.size))
        stepped, dense_stepped = rows_of(client), client.pull_dense("d").values

    with cluster(tmp_path, after, restore="latest") as client:
        assert rows_of(client) == expected
        assert sum(t.rows for s in client.stats() for t in s.tables) == KEYS.size
        assert np.array_equal(client.pull_dense("d").values, dense)
        # D6: state came along, so one more step is the step that an undisturbed run takes.
        push(client, KEYS, 0.5)
        client.push_dense("d", np.ones(values.size))
        assert without(rows_of(client), "epochs") == without(stepped, "epochs")
        assert np.array_equal(client.pull_dense("d").values, dense_stepped)


@pytest.mark.parametrize("deltas", range(4))
def test_d7_a_chain_of_deltas_gives_each_key_its_exact_value_when_loaded(
    tmp_path: Path, deltas: int
) -> None:
    """D7: full and k deltas, another key in each phase; also keys that came or were written anew."""
    keys = np.arange(5, dtype=np.uint64)
    with cluster(tmp_path, 2) as client:
        client.create_table(spec(optimizer="sgd:lr=0.01"))
        push(client, keys)
        versions = [client.checkpoints.save().version]
        expected = [rows_of(client, keys=np.arange(20))]
        for phase in range(3):
            push(client, keys[phase : phase + 1])
            push(client, np.array([10 + phase], np.uint64))
            saved = client.checkpoints.save(mode="delta")
            assert (saved.rows, saved.base) == (2, versions[-1])
            versions.append(saved.version)
            expected.append(rows_of(client, keys=np.arange(20)))

    with cluster(tmp_path, 3, restore=versions[deltas]) as client:
        assert rows_of(client, keys=np.arange(20)) == expected[deltas]


def test_a_delta_goes_on_from_what_was_loaded_when_a_cluster_restarts(tmp_path: Path) -> None:
    """A restored cluster saves a delta to the version that it was restored from."""
    with cluster(tmp_path, 2) as client:
        client.create_table(spec())
        push(client, KEYS)
        first = client.checkpoints.save()
    with cluster(tmp_path, 3, restore="latest") as client:
        push(client, KEYS[:10])
        second = client.checkpoints.save(mode="delta")
        expected = rows_of(client)
    assert (second.base, second.rows) == (first.version, 10)

    with cluster(tmp_path, 1, restore="latest") as client:
        assert rows_of(client) == expected


def test_a_delta_is_refused_when_there_is_nothing_that_it_could_be_one_to(tmp_path: Path) -> None:
    """Without a full save first there is no delta, and no version either."""
    with cluster(tmp_path, 2) as client:
        client.create_table(spec())

        with pytest.raises(pserver.CheckpointError, match="take a full one first"):
            client.checkpoints.save(mode="delta")

    assert list(tmp_path.iterdir()) == []


def test_a_chain_is_refused_by_name_when_its_base_is_gone(tmp_path: Path) -> None:
    """A delta without its base is not loaded, and the missing version is named."""
    with cluster(tmp_path, 1) as client:
        client.create_table(spec())
        base = client.checkpoints.save().version
        delta = client.checkpoints.save(mode="delta").version
    shutil.rmtree(tmp_path / base)

    with pytest.raises(
        pserver.CheckpointError, match=f"{delta} is a delta to {base}, which is not"
    ):
        pserver.embedded(1, checkpoint_dir=str(tmp_path), restore="latest")


def test_the_last_version_stays_when_a_save_cannot_be_written(tmp_path: Path) -> None:
    """D2: a disk that refuses in the middle of a save leaves the version before as it was."""
    with cluster(tmp_path, 2) as client:
        client.create_table(spec())
        push(client, KEYS)
        good = client.checkpoints.save()
        expected = rows_of(client)
        blocker = tmp_path / ".saving-v00000002"
        blocker.write_text("a file where the save's folder must be")

        with pytest.raises(pserver.CheckpointError, match=r"user .* cannot"):
            client.checkpoints.save()

        blocker.unlink()
        push(client, KEYS[:5])
        assert client.checkpoints.save(mode="delta").base == good.version
    with cluster(tmp_path, 2, restore=good.version) as client:
        assert rows_of(client) == expected


def test_a_file_is_refused_when_one_bit_of_it_changed(tmp_path: Path) -> None:
    """A damaged file is named with both checksums, and nothing is loaded."""
    with cluster(tmp_path, 1) as client:
        client.create_table(spec())
        push(client, KEYS)
        client.checkpoints.save()
    path = next(tmp_path.glob("v*/rows-*"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    with pytest.raises(
        pserver.CheckpointError, match=r"rows-t-00000-00000.*has checksum .*manifest"
    ):
        pserver.embedded(1, checkpoint_dir=str(tmp_path), restore="latest")


def test_clients_learn_of_it_when_another_version_is_loaded_under_them(tmp_path: Path) -> None:
    """D10: nobody goes on silently against older rows: every client must connect anew."""
    with cluster(tmp_path, 2) as client:
        client.create_table(spec())
        push(client, KEYS)
        client.checkpoints.save()
        push(client, KEYS)

        loaded = client.checkpoints.load()

        assert (loaded.rows, loaded.tables, loaded.left) == (KEYS.size, ("t",), ())
        assert (loaded.state_taken, loaded.state_tables) == (1, 1)
        with pytest.raises(pserver.RestartedError, match="loaded a checkpoint"):
            push(client, KEYS)


@pytest.mark.parametrize(
    ("stored", "problem"),
    [
        (spec("other"), "nothing would be loaded"),
        (spec(dim=5), r"t +dim +5 +3"),
        (spec(optimizer="adagrad"), r"t +optimizer +adagrad.*adam"),
    ],
)
def test_d3_a_load_is_refused_when_tables_differ(
    tmp_path: Path, stored: pserver.TableSpec, problem: str
) -> None:
    """D3: a renamed table, another dim, another optimizer: each is an error that shows both sides."""
    with cluster(tmp_path, 2) as client:
        client.create_table(stored)
        push(client, KEYS, table=stored.name)
        client.checkpoints.save()
    with cluster(tmp_path, 2) as client:
        client.create_table(spec())
        push(client, KEYS[:3])
        before = rows_of(client)

        with pytest.raises(pserver.CheckpointError, match=problem):
            client.checkpoints.load()

        assert rows_of(client) == before


def test_d3_a_restore_is_refused_when_the_folder_has_no_version(tmp_path: Path) -> None:
    """D3: an empty folder and an unknown version are errors, not an empty start."""
    with pytest.raises(pserver.CheckpointError, match="no checkpoint is there"):
        pserver.embedded(1, checkpoint_dir=str(tmp_path), restore="latest")


@pytest.mark.parametrize("on_mismatch", ["reset-state", "pad"])
def test_d6_weights_come_without_state_when_the_optimizer_is_another_and_that_was_asked_for(
    tmp_path: Path, on_mismatch: str
) -> None:
    """The rows have the stored weights and the state that new rows have."""
    with cluster(tmp_path, 2) as client:
        client.create_table(spec(optimizer="adagrad"))
        push(client, KEYS)
        client.checkpoints.save()
        weights = client.peek("t", KEYS)
    with clients(tmp_path, 3) as connect:
        first = connect()
        first.create_table(spec(optimizer="ftrl"))

        loaded = first.checkpoints.load(on_mismatch=on_mismatch)

        assert (loaded.state_taken, loaded.state_tables) == (0, 1)
        second = connect()
        with pytest.raises(pserver.CheckpointError, match="take a full one first"):
            second.checkpoints.save(mode="delta")  # the rows are not those of any version
        second.checkpoints.save()
    rows = rows_in(tmp_path, "v00000002")
    found = np.array([np.frombuffer(rows[key]["weights"], np.float32) for key in KEYS.tolist()])
    assert np.array_equal(found, weights)
    assert {np.frombuffer(row["state.n"], np.float32).tobytes() for row in rows.values()} == {
        np.zeros(3, np.float32).tobytes()
    }


@pytest.mark.parametrize("dim", [2, 5])
def test_rows_are_cut_or_padded_when_the_dim_is_another_and_that_was_asked_for(
    tmp_path: Path, dim: int
) -> None:
    """More weights begin as first weights with first state, fewer are cut off."""
    with cluster(tmp_path, 1) as client:
        client.create_table(spec())
        push(client, KEYS)
        client.checkpoints.save()
        weights = client.peek("t", KEYS)
    with clients(tmp_path, 1) as connect:
        client = connect()
        client.create_table(spec(dim=dim))
        first = client.peek("t", KEYS)
        with pytest.raises(pserver.CheckpointError, match="dim"):
            client.checkpoints.load(on_mismatch="reset-state")

        client.checkpoints.load(on_mismatch="pad")
        connect().checkpoints.save()

    rows = rows_in(tmp_path, "v00000002")
    found = np.array([np.frombuffer(rows[key]["weights"], np.float32) for key in KEYS.tolist()])
    both = min(dim, 3)
    assert np.array_equal(found[:, :both], weights[:, :both])
    assert np.array_equal(found[:, both:], first[:, both:])


def test_d8_an_empty_shard_and_an_empty_table_load_and_read_as_first_weights(
    tmp_path: Path,
) -> None:
    """D8: shards without rows, a table without any, a dense table without values."""
    with cluster(tmp_path, 4) as client:
        client.create_table(spec())
        client.create_table(spec("empty"))
        client.create_dense(pserver.DenseSpec(name="d", length=3))
        push(client, KEYS[:1])
        expected = client.peek("empty", KEYS)
        client.checkpoints.save()

    with cluster(tmp_path, 3, restore="latest") as client:
        assert np.array_equal(client.peek("empty", KEYS), expected)
        assert len(rows_of(client)) == 1
        with pytest.raises(pserver.DenseInitError):
            client.pull_dense("d")
        client.init_dense("d", [1.0, 2.0, 3.0])


@given(
    pushes=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=20), max_size=6),
    before=st.integers(1, 4),
    after=st.integers(1, 4),
)
def test_load_of_save_is_the_identity_whatever_was_pushed(
    tmp_path_factory: pytest.TempPathFactory, pushes: list[list[int]], before: int, after: int
) -> None:
    """For any pushes and any two numbers of shards, every row comes back to the bit."""
    folder = tmp_path_factory.mktemp("versions")
    keys = np.arange(61)
    with cluster(folder, before) as client:
        client.create_table(spec())
        for some in pushes:
            push(client, np.array(some, np.uint64))
        expected = rows_of(client, keys=keys)
        client.checkpoints.save()

    with cluster(folder, after, restore="latest") as client:
        assert rows_of(client, keys=keys) == expected


@pytest.mark.parametrize("after", [2, 3])
def test_ages_and_the_clock_of_eviction_come_back(tmp_path: Path, after: int) -> None:
    """The words of each row, and what a table with eviction remembers beside them."""
    evicting = pserver.TableSpec(
        name="t", dim=2, evict="lfu:rows=300", ttl_days=3, capacity_max=1_000_000
    )
    with cluster(tmp_path, 2) as client:
        client.create_table(evicting)
        for _ in range(3):
            push(client, KEYS)
        client.checkpoints.save()
    entry = manifest_in(tmp_path, "v00000001").table("t")
    words = rows_in(tmp_path, "v00000001")
    with cluster(tmp_path, after, restore="latest") as client:
        client.checkpoints.save()
    again = manifest_in(tmp_path, "v00000002").table("t")

    assert {"field.stamp", "field.uses", "field.seen_day"} <= set(entry.columns)
    assert rows_in(tmp_path, "v00000002") == words
    if after == 2:
        assert again.numbers == entry.numbers
    assert {numbers["clock"] for numbers in again.numbers} == {3}


def test_a_delta_is_refused_when_a_table_was_cleared_since(tmp_path: Path) -> None:
    """Rows that went all at once are in no list of erased keys; clearing itself is not held up."""
    with cluster(tmp_path, 2) as client:
        client.create_table(spec())
        push(client, KEYS)
        client.checkpoints.save()
        client.lifecycle.clear("t")

        with pytest.raises(
            pserver.CheckpointError, match=r"table 't' was dropped.*take a full save"
        ):
            client.checkpoints.save(mode="delta")

        assert client.checkpoints.save().rows == 0


@pytest.mark.parametrize("after", [2, 3])
@pytest.mark.parametrize(
    "fields",
    [
        {"accessor": "ctr:embedx_threshold=3"},
        {"admission": "count:n=3"},
        {"admission": "count:n=3", "accessor": "ctr:embedx_threshold=3", "row_dtype": "bfloat16"},
    ],
)
def test_whatever_a_table_keeps_comes_back_when_it_is_restored(
    tmp_path: Path, fields: dict[str, Any], after: int
) -> None:
    """Both parts of ctr rows, statistics, 16-bit weights, what admission counted: the same pushes give
    the same rows as without the restart.
    """
    table = pserver.TableSpec(name="t", dim=4, optimizer="adagrad", capacity_max=10_000, **fields)
    with cluster(tmp_path, 2) as client:
        client.create_table(table)
        for i in range(1, 5):
            push(client, KEYS[::i])
        client.checkpoints.save()
        push(client, KEYS)
        push(client, KEYS)
        expected = client.peek("t", KEYS)
        rows = sum(t.rows for s in client.stats() for t in s.tables)

    with cluster(tmp_path, after, restore="latest") as client:
        push(client, KEYS)
        push(client, KEYS)
        assert np.array_equal(client.peek("t", KEYS), expected)
        assert sum(t.rows for s in client.stats() for t in s.tables) == rows
