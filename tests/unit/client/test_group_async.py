"""Async as a trainer sees it: applied on arrival, staleness measured, the fastest held back."""

import math
from collections.abc import Iterator

import numpy as np
import pytest

import pserver
from tests.unit.trainers import UNIT, Trainer, grads, joined, unit_table


@pytest.fixture
def cluster() -> Iterator[pserver.Cluster]:
    """One shard with one table of dim 1."""
    with pserver.Cluster(1) as made, made.connect() as client:
        client.create_table(unit_table())
        yield made


def push_from(trainer: Trainer, version: int, value: float = 1.0) -> pserver.PendingPush:
    """Push a gradient of key 7 that was computed from a version."""
    step = pserver.Step({}, {"t": {0: version}}, is_everywhere=True)
    return trainer.group.start_push({"t": grads([7], [value])}, step)


def test_staleness_is_the_versions_between_pull_and_push(cluster: pserver.Cluster) -> None:
    """A pulls at 0; three pushes of B are applied; A's push is 3 versions old, the next one 0."""
    with joined(cluster, 2, mode="async") as (a, b):
        assert a.group.start_pull({"t": grads([7], [0.0])[0]}).versions() == [{0: 0}]
        for version in range(3):
            assert push_from(b, version).staleness() == 0

        assert push_from(a, 0).staleness() == 3
        assert push_from(a, 4).staleness() == 0

        first, second = a.client.stats()[0].group.trainers
        assert (first.staleness_p50, first.staleness_p99, first.staleness_max) == (0, 3, 3)
        assert (second.pushes, second.staleness_max) == (3, 0)


def test_a_stale_push_counts_less_when_it_is_told_to(cluster: pserver.Cluster) -> None:
    """1 / (1 + s): gradient 4 that is 3 versions old is 1."""
    with joined(cluster, 2, mode="async", staleness_lr="inverse") as (a, b):
        for version in range(3):
            push_from(b, version, 0.0).result()

        push_from(a, 0, 4.0).result()

        assert a.client.peek("t", [7]).tolist() == [[-1.0]]


def test_the_fastest_is_held_back(cluster: pserver.Cluster) -> None:
    """With max_staleness 2, A pulls when it is 2 steps ahead and waits when it is 3 ahead."""
    key = {"t": grads([7], [0.0])[0]}
    with joined(cluster, 2, mode="async", max_staleness=2) as (a, b):
        for version in range(2):
            push_from(a, version).result()
        a.group.start_pull(key).result()
        push_from(a, 2).result()

        held = a.group.start_pull(key)
        b.group.start_pull(key).result()  # the slowest is never held
        assert not held.is_done
        push_from(b, 3).result()

        assert held.result()[0].tolist() == [[-4.0]]


@pytest.mark.parametrize("way", ["leaves", "dies"])
def test_nobody_waits_for_a_trainer_that_is_gone(cluster: pserver.Cluster, way: str) -> None:
    """The slowest one leaves, or its lease ends: the others are held back by it no more."""
    with joined(cluster, 2, mode="async", max_staleness=0, lease_s=0.3) as (a, b):
        push_from(a, 0).result()
        held = a.group.start_pull({"t": grads([7], [0.0])[0]})
        assert not held.is_done

        if way == "leaves":
            b.group.leave()
        else:
            b.group._beating.cancel()

        assert held.result()[0].tolist() == [[-1.0]]


def test_a_newcomer_is_as_far_as_the_slowest(cluster: pserver.Cluster) -> None:
    """A trainer that comes late does not hold the others back until it has caught up."""
    with joined(cluster, 1, mode="async", trainers=2, max_staleness=0) as (a,):
        for version in range(5):
            push_from(a, version).result()
        settings = a.group.settings.model_copy(update={"trainer_id": 1})
        with cluster.connect() as client:
            client.join(settings)

            assert a.pull([7]).tolist() == [[-5.0]]


def test_dense_gradients_travel_with_the_rows(cluster: pserver.Cluster) -> None:
    """One push, one version of each table; staleness is the most of any table."""
    with joined(cluster, 1, mode="async") as (trainer,):
        trainer.client.create_dense(pserver.DenseSpec(name="d", length=3, optimizer=UNIT))
        trainer.client.init_dense("d", np.zeros(3, np.float32))
        dense = {"d": np.array([1.0, 2.0, 3.0], np.float32)}

        pending = trainer.group.start_push(
            {"t": grads([7], [1.0])}, pserver.Step(dense, {"d": {0: 0}})
        )

        assert pending.result() == 1
        assert trainer.client.pull_dense("d").values.tolist() == [-1.0, -2.0, -3.0]
        assert trainer.client.stats()[0].pushes_applied == 2  # the first values, and this


def test_a8_a_schedule_runs_by_the_pushes_applied(cluster: pserver.Cluster) -> None:
    """lr 1, from push 10 on 0.125: gradient 1 moves the weight by 0.125 then, whoever sends it."""
    schedule = "sgd:lr=1,schedule=step,steps=10,gamma=0.125"
    with joined(cluster, 2, mode="async") as trainers:
        trainers[0].client.create_table(unit_table("s", optimizer=schedule))
        weights = []
        for number in range(12):
            trainers[number % 2].push({"s": grads([7], [1.0])}).result()
            weights.append(float(trainers[0].pull([7], table="s")[0, 0]))

        assert weights[9] == -10.0
        assert weights[11] - weights[10] == -0.125


def test_a8_a_schedule_runs_by_rounds_in_sync(cluster: pserver.Cluster) -> None:
    """Two trainers' parts are one step: the 11th round, not the 6th, is the first at 0.125."""
    schedule = "sgd:lr=1,schedule=step,steps=10,gamma=0.125"
    with joined(cluster, 2, mode="sync") as trainers:
        trainers[0].client.create_table(unit_table("s", optimizer=schedule))
        weights = []
        for number in range(1, 13):
            for trainer in trainers:
                trainer.push({"s": grads([7], [1.0])}, round_number=number)
            pulled = trainers[0].pull([7], round_number=number + 1, table="s")
            weights.append(float(pulled[0, 0]))

        assert weights[9] == -10.0
        assert weights[11] - weights[10] == -0.125


def test_status_shows_each_trainer(cluster: pserver.Cluster) -> None:
    """Mode, state, step, loss and when it was last seen, from the heartbeats."""
    with joined(cluster, 2, mode="async", lease_s=0.3) as (a, _):
        a.group.report(step=12, loss=0.5)
        shown = a.client.stats()[0].group
        while shown.trainers[0].step != 12:
            shown = a.client.stats()[0].group

        assert shown.group.mode == "async"
        assert shown.trainers[0].loss == 0.5
        assert math.isnan(shown.trainers[1].loss)
        assert [trainer.state for trainer in shown.trainers] == ["live", "live"]
        assert all(trainer.last_seen_s >= 0.0 for trainer in shown.trainers)
