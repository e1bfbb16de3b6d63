"""Sync rounds as a trainer sees them: applied once, in order, whole, on every shard."""

import functools
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import pserver
from tests.unit.trainers import Trainer, at_once, grads, joined, unit_table, versions


@pytest.fixture
def cluster() -> Iterator[pserver.Cluster]:
    """Two shards with one table of dim 1."""
    with pserver.Cluster(2) as made, made.connect() as client:
        client.create_table(unit_table())
        yield made


def test_a1_rounds_never_mix(cluster: pserver.Cluster) -> None:
    """A sends rounds 1, 2, 3 at once; B is late with each. Round r gives -(A_r + B_r) / 2 to both."""
    of_a, of_b = [2.0, 20.0, 200.0], [4.0, 40.0, 400.0]
    turns = [threading.Event() for _ in of_a]

    with joined(cluster, 2, mode="sync") as (a, b):

        def eager() -> list[float]:
            for number, value in enumerate(of_a, 1):
                a.push({"t": grads([7], [value])}, round_number=number)
            turns[0].set()
            return [float(a.pull([7], round_number=number)[0, 0]) for number in (2, 3, 4)]

        def late() -> list[float]:
            assert turns[0].wait(30.0)
            read = []
            for number, value in enumerate(of_b, 1):
                read.append(float(b.pull([7], round_number=number)[0, 0]))
                b.push({"t": grads([7], [value])}, round_number=number)
            return read

        read_by_a, read_by_b = at_once(eager, late)

        assert read_by_b == [0.0, -3.0, -33.0]
        assert read_by_a[2] == -333.0
        assert b.pull([7], round_number=4).tolist() == [[-333.0]]


@pytest.mark.parametrize("rounds", [250, pytest.param(5_000, marks=pytest.mark.slow)])
def test_a2_no_row_of_many_rounds_is_lost(cluster: pserver.Cluster, rounds: int) -> None:
    """Trainer t of 4 pushes 1 to key t in each round: every key ends at -rounds / 4."""

    def train(trainer: Trainer) -> None:
        key = trainer.group.settings.trainer_id
        for number in range(1, rounds + 1):
            trainer.push({"t": grads([key], [1.0])}, round_number=number)
        trainer.client.flush()

    with joined(cluster, 4, mode="sync") as trainers:
        at_once(*(functools.partial(train, trainer) for trainer in trainers))

        weights = trainers[0].pull([0, 1, 2, 3], round_number=rounds + 1)
        assert weights.tolist() == [[-rounds / 4]] * 4
        assert versions(trainers[0].client) == [{"t": rounds}] * 2


def test_a16_a_trainer_without_keys_or_samples_holds_nobody_up(cluster: pserver.Cluster) -> None:
    """No keys counts in D of contributors, no samples does not: 8 / 2, then 8 / 1."""
    with joined(cluster, 2, mode="sync") as (a, b):
        a.push({"t": grads([7], [8.0])}, round_number=1)
        b.push({}, round_number=1, samples=4)
        assert a.pull([7], round_number=2).tolist() == [[-4.0]]

        a.push({"t": grads([7], [8.0])}, round_number=2)
        b.push({}, round_number=2, samples=0)
        assert b.pull([7], round_number=3).tolist() == [[-12.0]]


def test_a18_a_step_raises_each_version_by_one(cluster: pserver.Cluster) -> None:
    """3 tables, one of them dense, on 2 shards: 1 everywhere, with keys there or not."""
    with joined(cluster, 2, mode="sync") as trainers:
        client = trainers[0].client
        client.create_table(unit_table("u"))
        client.create_dense(pserver.DenseSpec(name="d", length=3, optimizer="sgd:lr=1"))
        client.init_dense("d", np.zeros(3, np.float32))
        for trainer in trainers:
            trainer.push(
                {"t": grads([7], [1.0]), "u": grads([9], [1.0])},
                dense={"d": np.ones(3, np.float32)},
                round_number=1,
            )
        client.flush()
        trainers[1].client.flush()

        assert versions(client) == [{"t": 1, "u": 1, "d": 1}] * 2
        assert client.pull_dense("d").values.tolist() == [-1.0, -1.0, -1.0]


@pytest.mark.parametrize(
    ("divisor", "weights"), [("contributors", -6.0), ("registered", -4.0), ("samples", -7.0)]
)
def test_sparse_and_dense_are_divided_by_the_same_number(
    cluster: pserver.Cluster, divisor: str, weights: float
) -> None:
    """Gradients 4, 8 of 1 and 3 samples, and a trainer without any: 12/2, 12/3, (4 + 24)/4."""
    with joined(cluster, 3, mode="sync", sync_divisor=divisor) as trainers:
        client = trainers[0].client
        client.create_dense(pserver.DenseSpec(name="d", length=2, optimizer="sgd:lr=1"))
        client.init_dense("d", np.zeros(2, np.float32))
        for trainer, value, samples in zip(trainers, [4.0, 8.0, 0.0], [1, 3, 0], strict=True):
            trainer.push(
                {"t": grads([7], [value])} if samples else {},
                dense={"d": np.full(2, value, np.float32)} if samples else {},
                round_number=1,
                samples=samples,
            )

        assert trainers[0].pull([7], round_number=2).tolist() == [[weights]]
        pulled = trainers[1].group.pull_dense("d", round_number=2)
        assert pulled.values.tolist() == [weights, weights]


def test_a_part_of_many_messages_is_one_part(cluster: pserver.Cluster) -> None:
    """300,000 keys of dim 8 are several messages a shard; the round steps each key once."""
    count, dim = 300_000, 8
    with joined(cluster, 2, mode="sync") as trainers:
        trainers[0].client.create_table(unit_table("wide", dim=dim))
        keys = np.arange(count)
        for trainer in trainers:
            trainer.push({"wide": grads(keys, np.ones((count, dim)))}, round_number=1)
        assert len(trainers[0].push({}, round_number=2).replies) == 2

        weights = trainers[1].pull(keys, round_number=2, table="wide")
        assert weights.shape == (count, dim)
        assert np.all(weights == -1.0)
        assert all(shard["wide"] == 1 for shard in versions(trainers[0].client))


def test_e1_uneven_numbers_of_batches_end_well(cluster: pserver.Cluster) -> None:
    """10, 10, 10 and 25 batches: whoever is done leaves; D is 4 for 10 rounds, then 1 for 15."""

    def train(trainer: Trainer, batches: int) -> None:
        for number in range(1, batches + 1):
            trainer.pull([7], round_number=number)
            trainer.push({"t": grads([7], [4.0])}, round_number=number)
        trainer.client.flush()
        trainer.group.leave()

    with joined(cluster, 4, mode="sync") as trainers:
        at_once(
            *(
                functools.partial(train, trainer, batches)
                for trainer, batches in zip(trainers, [10, 10, 10, 25], strict=True)
            )
        )

        assert trainers[0].client.peek("t", [7]).tolist() == [[-25.0 * 4.0]]
        assert trainers[0].client.stats()[0].group.group.mode == ""  # over: nobody is in it


def test_a_round_is_answered_when_the_window_is_one(cluster: pserver.Cluster) -> None:
    """With one request on the wire, a pull that waits never stands before the part it needs."""

    def train(trainer: Trainer) -> None:
        for number in range(1, 21):
            trainer.pull([7], round_number=number)
            trainer.push({"t": grads([7], [1.0])}, round_number=number)
        trainer.client.flush()

    with joined(cluster, 3, client=pserver.ClientSettings(window=1), mode="sync") as trainers:
        at_once(*(functools.partial(train, trainer) for trainer in trainers))

        assert trainers[0].pull([7], round_number=21).tolist() == [[-20.0]]


def test_a_bare_push_is_refused_while_a_sync_group_is_there(cluster: pserver.Cluster) -> None:
    """Gradients outside of a round would be in no round; after the group they are taken."""
    with joined(cluster, 1, mode="sync") as (trainer,), cluster.connect() as bare:
        with pytest.raises(pserver.GroupError, match="taken in its rounds only"):
            bare.push("t", [7], [[1.0]])
        trainer.group.leave()

        bare.push("t", [7], [[1.0]])

        assert bare.peek("t", [7]).tolist() == [[-1.0]]
