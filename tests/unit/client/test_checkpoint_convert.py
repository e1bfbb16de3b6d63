"""A version whose weights have another type than the tables that take it."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import pserver
from tests.reference_half import nearest
from tests.unit.checkpoint.helpers import KEYS, clients, cluster, push, rows_in, spec

CTR = "ctr:embedx_threshold=0"


def table(row_dtype: str, accessor: str) -> pserver.TableSpec:
    return dataclasses.replace(spec(), row_dtype=row_dtype, accessor=accessor)


def all_but_weights(folder: Path, version: str) -> dict[int, dict[str, bytes]]:
    """Return a version's rows without the columns whose type is the table's."""
    rows = rows_in(folder, version)
    return {
        key: {name: row[name] for name in row if not name.endswith("weights")}
        for key, row in rows.items()
    }


@pytest.mark.parametrize(
    ("stored", "wanted", "accessor"),
    [
        ("float32", "bfloat16", "plain"),
        ("float16", "float32", "plain"),
        ("bfloat16", "float16", CTR),
    ],
)
def test_weights_are_rounded_to_the_nearest_when_conversion_was_asked_for(
    tmp_path: Path, stored: str, wanted: str, accessor: str
) -> None:
    """By default the load fails and shows both types; converted, state, counters and epochs stay to the bit."""
    with cluster(tmp_path, 1) as client:
        client.create_table(table(stored, accessor))
        push(client, KEYS)
        client.checkpoints.save()
        before = client.peek("t", KEYS)
    with clients(tmp_path, 2) as connect:
        client = connect()
        client.create_table(table(wanted, accessor))
        for refused in ("fail", "reset-state", "pad"):
            with pytest.raises(pserver.CheckpointError, match=rf"t +row_dtype +{stored} +{wanted}"):
                client.checkpoints.load(on_mismatch=refused)

        loaded = client.checkpoints.load(on_mismatch="convert")

        assert (loaded.state_taken, loaded.state_tables) == (1, 1)
        client = connect()
        after = client.peek("t", KEYS)
        with pytest.raises(pserver.CheckpointError, match="take a full one first"):
            client.checkpoints.save(mode="delta")  # the rows are not those of any version
        client.checkpoints.save()
    expected = before.ravel().tolist()
    if wanted != "float32":
        expected = [nearest(wanted, value) for value in expected]
    assert after.ravel().tolist() == expected
    assert all_but_weights(tmp_path, "v00000002") == all_but_weights(tmp_path, "v00000001")


def test_conversion_is_refused_when_a_weight_is_too_large(tmp_path: Path) -> None:
    """Nothing is cut off silently: the table, how many and the largest are named, and nothing is loaded."""
    with cluster(tmp_path, 1) as client:
        client.create_table(spec())
        client.assign("t", KEYS[:2], np.array([[1, 2, 3], [4, -70_000, 6]], np.float32))
        client.checkpoints.save()
    with clients(tmp_path, 1) as connect:
        client = connect()
        client.create_table(table("float16", "plain"))
        with pytest.raises(pserver.CheckpointError, match=r"'t': 1 of 6 .* beyond 65504.* 70000"):
            client.checkpoints.load(on_mismatch="convert")

        push(client, KEYS[:1])  # the client and its tables are what they were


def test_conversion_changes_no_other_difference(tmp_path: Path) -> None:
    """Another dim beside another type is refused."""
    with cluster(tmp_path, 1) as client:
        client.create_table(spec())
        client.checkpoints.save()
    with clients(tmp_path, 1) as connect:
        client = connect()
        client.create_table(dataclasses.replace(table("float16", "plain"), dim=5))
        with pytest.raises(pserver.CheckpointError, match=r"(?s)dim .*row_dtype"):
            client.checkpoints.load(on_mismatch="convert")
