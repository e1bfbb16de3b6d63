"""Groups over real servers: a server dies or comes back empty, a trainer is killed in the middle."""

import signal
import subprocess
import sys

import numpy as np
import pytest

import pserver
from tests.integration.servers import WAIT_S, Server, Start, endpoints, start_cluster
from tests.unit.trainers import Trainer, grads, unit_table

KEYS = np.arange(64)
"""Enough for every shard to have some."""

PUSHER = """
import sys
import numpy as np
import pserver

client = pserver.connect(sys.argv[1])
group = client.join(pserver.GroupSettings(trainer_id=2, trainers=3, lease_s=1.0))
keys = np.arange(64, dtype=np.uint64)
ones, none = np.ones(64, np.float32), np.empty(0, np.uint32)
while True:
    group.start_push({"t": (keys, ones, none)}, pserver.Step({}, {}))
    print("pushed", flush=True)
"""
"""A trainer that pushes 1 to all keys until it is killed."""


def join(cluster: list[Server], trainer_id: int, **group: object) -> Trainer:
    """Return a trainer that gives up a dead server after three seconds, and waits long for others."""
    settings = pserver.ClientSettings(timeout_s=3.0, try_timeout_s=1.5)
    client = pserver.connect(endpoints(cluster), settings=settings, connect_s=WAIT_S)
    client.create_table(unit_table())
    wanted = {"trainer_id": trainer_id, "barrier_timeout": 3600.0, **group}
    return Trainer(client, client.join(pserver.GroupSettings.make(wanted, origins={})))


def close(*trainers: Trainer) -> None:
    """Close clients of which pushes have failed."""
    for trainer in trainers:
        trainer.client.close(flush=False)


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_e2_the_dead_server_is_named(start: Start, mode: str) -> None:
    """SIGKILL 1 of 3: every trainer's pull ends in an error that names the server's endpoint."""
    cluster = start_cluster(start, 3)
    trainers = [join(cluster, number, mode=mode, trainers=2) for number in range(2)]
    round_number = int(mode == "sync")
    for trainer in trainers:
        trainer.push({"t": grads(KEYS, np.ones(64))}, round_number=round_number)
        trainer.client.flush()

    cluster[1].send(signal.SIGKILL)
    cluster[1].wait_exit()

    for trainer in trainers:
        with pytest.raises(pserver.PserverError, match=cluster[1].endpoint):
            trainer.pull(KEYS, round_number=2 * round_number)
    close(*trainers)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_e2_an_empty_server_never_serves_first_weights(start: Start, mode: str) -> None:
    """A server that comes back without its rows is told apart: the run ends with that reason."""
    cluster = start_cluster(start, 2)
    trainers = [join(cluster, number, mode=mode, trainers=2) for number in range(2)]
    round_number = int(mode == "sync")
    for trainer in trainers:
        trainer.push({"t": grads(KEYS, np.ones(64))}, round_number=round_number)
        trainer.client.flush()

    cluster[1].send(signal.SIGKILL)
    cluster[1].wait_exit()
    start("--shard", "1", "--shards", "2", "--bind", cluster[1].endpoint).wait_ready()

    for trainer in trainers:
        with pytest.raises(pserver.RestartedError, match="shard 1 was restarted"):
            trainer.pull(KEYS, round_number=2 * round_number)
    close(*trainers)


def test_a20_a_killed_trainer_spoils_nothing(start: Start) -> None:
    """Of 3 async trainers one is killed while it pushes: each of its pushes is whole on each shard."""
    cluster = start_cluster(start, 2)
    trainers = [join(cluster, number, trainers=3, lease_s=1.0) for number in range(2)]
    process = subprocess.Popen(
        [sys.executable, "-c", PUSHER, endpoints(cluster)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        for _ in range(20):
            assert process.stdout.readline() == "pushed\n"
            for trainer in trainers:
                trainer.push({"t": grads([1000], [1.0])}).result()
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S)
    for _ in range(20):
        for trainer in trainers:
            trainer.push({"t": grads([1000], [1.0])}).result()

    client = trainers[0].client
    states: list[str] = []
    while "expired" not in states:
        states = [trainer.state for trainer in client.stats()[0].group.trainers]
    assert states == ["live", "live", "expired"]
    weights = client.peek("t", KEYS)[:, 0]
    for shard in range(2):
        of_shard = weights[pserver.shard_of(KEYS.astype(np.uint64), 2) == shard]
        assert set(of_shard) == {of_shard[0]}
        assert of_shard[0] <= -20.0 + 4  # all but what was on its way
    assert client.peek("t", [1000]).tolist() == [[-80.0]]
    for trainer in trainers:
        trainer.client.close()
