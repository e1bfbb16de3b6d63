"""A save of a sync group that is to have just the rounds before one."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import pserver
from pserver.server.align import Align
from tests.unit.checkpoint.helpers import clients, manifest_in, rows_in
from tests.unit.client.test_checkpoint_cut import one_key_a_shard


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_save_waits_for_the_other_trainers_parts_of_the_rounds_that_it_is_to_have(
    tmp_path: Path, num_shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two trainers saves behind its part of a round, before the other one's has come: both are in."""
    asked = threading.Event()
    wait = Align.until_round

    async def waiting(align: Align, round_number: int) -> None:
        asked.set()
        await wait(align, round_number)

    monkeypatch.setattr(Align, "until_round", waiting)
    spec = pserver.TableSpec(name="t", dim=1, optimizer="sgd:lr=1", initializer="zeros")
    keys = [one_key_a_shard(num_shards, trainer) for trainer in range(2)]
    with clients(tmp_path, num_shards) as connect, ThreadPoolExecutor(1) as pool:
        joined = []
        for trainer in range(2):
            client = connect()
            client.create_table(spec)
            settings = pserver.GroupSettings(mode="sync", trainer_id=trainer, trainers=2)
            joined.append((client, client.join(settings)))
        first = joined[0][1].first_round

        def push(trainer: int) -> None:
            gradients = (
                keys[trainer],
                -np.ones(num_shards, np.float32),
                np.ones(num_shards, np.uint32),
            )
            step = pserver.Step({}, {}, first, samples=1, is_everywhere=True)
            joined[trainer][1].start_push({"t": gradients}, step)

        push(0)
        saving = pool.submit(joined[0][0].checkpoints.begin_save, round_number=first + 1)
        assert asked.wait(30.0)
        push(1)
        version = saving.result(30.0).wait().version
        for _, group in joined:
            group.leave()

    rows = rows_in(tmp_path, version)
    assert manifest_in(tmp_path, version).round == first + 1
    for key in np.concatenate(keys).tolist():
        assert float(np.frombuffer(rows[key]["weights"], np.float32)[0]) == 0.5


def test_a_save_refuses_a_round_that_is_past(tmp_path: Path) -> None:
    """The error names both rounds, and nothing was saved."""
    with clients(tmp_path, 1) as connect:
        client = connect()
        group = client.join(pserver.GroupSettings(mode="sync", trainer_id=0, trainers=1))
        for number in range(2):
            group.start_push(
                {}, pserver.Step({}, {}, group.first_round + number, is_everywhere=True)
            )
        with pytest.raises(
            pserver.CheckpointError, match=r"round 1 was to be .*, and round 3 is open"
        ):
            client.checkpoints.begin_save(round_number=group.first_round)
        group.leave()

    assert list(tmp_path.iterdir()) == []
