"""Send queues that hold one request, and groups that wait: nothing stands still."""

import functools
import threading

import numpy as np
import pytest

import pserver
from tests.unit.trainers import Trainer, at_once, grads, joined, unit_table

TIGHT = pserver.ClientSettings(window=1, send_queue_size=1, timeout_s=30.0)


@pytest.mark.parametrize(
    "runs", [5, pytest.param(1_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_e3_pushes_and_pulls_of_many_threads_all_arrive(runs: int) -> None:
    """4 threads share a client whose queues hold one request: all 4 * 10 pushes are there."""
    for _ in range(runs):
        with pserver.embedded(2, settings=TIGHT) as client:
            client.create_table(unit_table())
            keys = np.arange(16, dtype=np.uint64)

            def mixed(client: pserver.Client = client, keys: np.ndarray = keys) -> None:
                for _ in range(10):
                    client.start_push({"t": grads(keys, np.ones(16))})
                    client.start_pull({"t": keys}).result()

            at_once(*[mixed] * 4)
            client.flush()

            assert client.peek("t", keys).tolist() == [[-40.0]] * 16


def test_e3_rounds_go_on_when_queues_hold_one_request() -> None:
    """3 trainers, 2 tables and a dense one: no pull that waits stands before a part it needs."""

    def train(trainer: Trainer) -> None:
        for number in range(1, 11):
            asked = [
                trainer.group.start_pull({name: grads([7], [0.0])[0]}, round_number=number)
                for name in "tu"
            ]
            dense = trainer.group.pull_dense("d", round_number=number).values
            assert [pull.result()[0][0, 0] for pull in asked] == [1.0 - number] * 2
            assert dense[0] == 1.0 - number
            trainer.push(
                {name: grads([7], [1.0]) for name in "tu"},
                dense={"d": np.ones(3, np.float32)},
                round_number=number,
            )
        trainer.client.flush()
        trainer.group.leave()

    with pserver.Cluster(2) as cluster:
        with cluster.connect() as client:
            for name in "tu":
                client.create_table(unit_table(name))
            client.create_dense(pserver.DenseSpec(name="d", length=3, optimizer="sgd:lr=1"))
            client.init_dense("d", np.zeros(3, np.float32))
        with joined(cluster, 3, client=TIGHT, mode="sync") as trainers:
            at_once(*(functools.partial(train, trainer) for trainer in trainers))


def test_others_wait_for_first_dense_values() -> None:
    """A trainer that is earlier than trainer 0 waits for its values, and gets them."""
    with pserver.Cluster(2) as cluster, joined(cluster, 2, mode="sync") as (first, second):
        for trainer in (first, second):
            trainer.client.create_dense(pserver.DenseSpec(name="d", length=3))
        waits = threading.Event()

        def early() -> np.ndarray:
            waits.set()
            return second.group.pull_dense("d").values

        def late() -> None:
            assert waits.wait(30.0)
            first.client.init_dense("d", np.array([1.0, 2.0, 3.0], np.float32))

        assert at_once(early, late)[0].tolist() == [1.0, 2.0, 3.0]
