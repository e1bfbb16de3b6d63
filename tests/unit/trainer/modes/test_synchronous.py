"""Mode sync is one trainer on the joined batch, and the same bits every time."""

import numpy as np
import pytest

import pserver
from tests.unit.trainer.modes.models import (
    Data,
    Running,
    batches,
    each,
    shares_of,
    train,
)
from tests.unit.trainers import at_once
from trainer.strategy import Strategy

STEPS = 100
RULES = ["sgd:lr=0.1", "adagrad:lr=0.1", "adam:lr=0.01"]
ASYNC = Strategy(mode="async", dense="pserver")


@pytest.mark.parametrize(
    ("optimizer", "count", "shards"),
    [
        *((rule, 2, 1) for rule in RULES),
        ("adam:lr=0.01", 4, 3),
        *(pytest.param(rule, 4, 3, marks=pytest.mark.slow) for rule in RULES[:2]),
        *(pytest.param(rule, 2, 3, marks=pytest.mark.slow) for rule in RULES),
        *(pytest.param(rule, 4, 1, marks=pytest.mark.slow) for rule in RULES),
    ],
)
def test_a10_split_batches_are_one_trainer_on_the_joined_batch(
    optimizer: str, count: int, shards: int
) -> None:
    """100 steps, sparse and dense: the same weights to 1e-6."""
    steps = batches(STEPS)

    alone = train([steps], shards=1, optimizer=optimizer)
    together = train(shares_of(steps, count), shards=shards, optimizer=optimizer)

    for one, other in zip(each(alone), each(together), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("optimizer", RULES)
def test_async_with_one_trainer_is_sync(optimizer: str) -> None:
    """With one request on the wire, one trainer's async run is its sync run, to the bit."""
    steps = batches(STEPS)

    one = train([steps], shards=2, optimizer=optimizer, window=1)
    other = train([steps], shards=2, optimizer=optimizer, window=1, strategy=ASYNC)

    for ours, theirs in zip(each(one), each(other), strict=True):
        assert ours.tobytes() == theirs.tobytes()
    assert one.losses == other.losses


def test_two_deterministic_runs_give_the_same_bytes() -> None:
    """3 trainers, 2 servers, adam: the sums are taken in the order of ids, whoever came first."""
    steps = batches(30, size=12)
    strategy = Strategy(mode="sync", deterministic=True)

    runs = [
        train(shares_of(steps, 3), shards=2, optimizer="adam:lr=0.01", strategy=strategy)
        for _ in range(2)
    ]

    for ours, theirs in zip(each(runs[0]), each(runs[1]), strict=True):
        assert ours.tobytes() == theirs.tobytes()
    assert runs[0].losses == runs[1].losses


def test_uneven_batches_are_the_joined_batch_when_samples_divide() -> None:
    """Shares of 2 and 6 samples: divided by samples they are the batch of 8, to 1e-6."""
    steps = batches(STEPS)
    shares = [
        [Data(data.keys[:2], data.labels[:2]) for data in steps],
        [Data(data.keys[2:], data.labels[2:]) for data in steps],
    ]

    alone = train([steps])
    together = train(shares, strategy=Strategy(mode="sync", sync_divisor="samples"))

    for one, other in zip(each(alone), each(together), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-6)


def test_a13_adam_moves_a_row_only_when_it_is_in_a_round() -> None:
    """Key 1 in round 1 only: it stays where its one step of adam took it (lazy), 0.1 for lr 0.1."""
    with pserver.Cluster(2) as cluster, cluster.connect() as client:
        running = Running(client, Strategy(mode="sync"), (0, 1))
        spec = pserver.TableSpec(name="t", dim=1, optimizer="adam:lr=0.1", initializer="zeros")
        running.mode.create_table(spec)
        weights = []
        for number in range(1, 11):
            key = np.array([1 if number == 1 else 2], np.uint64)
            running.mode.start_pull({"t": key}).result()
            grads = np.ones(1, np.float32)
            running.mode.start_push({"t": (key, grads, np.empty(0, np.uint32))})
            running.mode.end_step(samples=1)
            running.mode.flush()
            weights.append(float(client.peek("t", [1])[0, 0]))
        running.mode.finish()

    assert weights[0] == pytest.approx(-0.1, abs=1e-6)
    assert set(weights) == {weights[0]}


def test_rows_are_fetched_ahead_when_the_loop_says_whose_they_are() -> None:
    """Pulls of batch n + 2 that are asked for in step n see all rounds up to n + 1."""
    with pserver.Cluster(1) as cluster:

        def run(trainer_id: int) -> list[float]:
            with cluster.connect() as client:
                mode = Running(client, Strategy(mode="sync"), (trainer_id, 2)).mode
                mode.create_table(
                    pserver.TableSpec(name="t", dim=1, optimizer="sgd:lr=1", initializer="zeros")
                )
                key = np.array([5], np.uint64)
                ahead, seen = [], []
                for _ in range(6):
                    mode.begin_fetch()
                    ahead.append(mode.start_pull({"t": key}))
                    if len(ahead) > 2:
                        seen.append(float(ahead.pop(0).result()[0][0, 0]))
                        push = (key, np.ones(1, np.float32), np.empty(0, np.uint32))
                        mode.start_push({"t": push})
                        mode.end_step(samples=1)
                mode.finish()
                return seen

        assert at_once(lambda: run(0), lambda: run(1)) == [[0.0, -1.0, -2.0, -3.0]] * 2


def test_rows_of_a_later_step_are_refused_when_the_step_has_not_ended() -> None:
    """They would never come: an error says to call end_step, instead of a hang."""
    with pserver.Cluster(1) as cluster, cluster.connect() as client:
        mode = Running(client, Strategy(mode="sync"), (0, 1)).mode
        mode.create_table(pserver.TableSpec(name="t", dim=1))
        key = np.array([5], np.uint64)
        mode.begin_fetch()
        mode.start_pull({"t": key}).result()
        mode.begin_fetch()
        early = mode.start_pull({"t": key})

        with pytest.raises(pserver.RequestError, match="call end_step after each step"):
            early.result()
        mode.finish()


def test_the_watch_list_says_what_a_run_did() -> None:
    """Steps, pushes, staleness 0, and the time that pulls waited for the others."""
    outcome = train(shares_of(batches(5), 2))

    for facts in outcome.facts:
        assert facts["steps"] == facts["pushes"] == 5.0
        assert facts["merge_factor"] == 1.0
        assert facts["staleness_max"] == 0.0
        assert facts["barrier_wait_s"] > 0.0
