"""What ``table.schedule`` promises: rates worked out by hand, clocked by applied pushes."""

import math

import numpy as np
import pytest

import pserver
from pserver.errors import ConfigError
from pserver.spec import TableSpec
from pserver.table.optimizer import make_optimizer
from pserver.table.schedule import SHAPES
from pserver.table.sparse import SparseTable


def rates(text: str, *versions: int) -> list[float]:
    """Return the learning rate after so many applied pushes."""
    schedule = make_optimizer(f"sgd:{text}", dim=1).schedule
    return [schedule.at(version) for version in versions]


HALF = math.sqrt(0.5)

BY_HAND: list[tuple[str, list[int], list[float]]] = [
    ("lr=0.5", [0, 1, 10**12], [0.5, 0.5, 0.5]),
    ("lr=0.5,warmup=4", [0, 1, 2, 3, 4, 99], [0.125, 0.25, 0.375, 0.5, 0.5, 0.5]),
    ("lr=1,schedule=step,steps=10", [0, 9, 10, 19, 20], [1, 1, 0.1, 0.1, 0.01]),
    (
        "lr=1,schedule=step,steps=2,gamma=0.5,warmup=2",
        [0, 1, 2, 3, 4, 6],
        [0.5, 1, 1, 1, 0.5, 0.25],
    ),
    ("lr=8,schedule=exponential,steps=2,gamma=0.25", [0, 1, 2, 3, 4], [8, 4, 2, 1, 0.5]),
    ("lr=8,schedule=exponential,steps=1,gamma=0.5,warmup=1", [0, 1, 2, 3], [8, 8, 4, 2]),
    ("lr=1,schedule=polynomial,steps=4", [0, 1, 2, 3, 4, 5], [1, 0.75, 0.5, 0.25, 0, 0]),
    ("lr=1,schedule=polynomial,steps=4,power=2,end=0.5", [0, 2, 4, 9], [1, 0.625, 0.5, 0.5]),
    ("lr=1,schedule=polynomial,steps=4,power=2,end=0.5,warmup=2", [1, 4, 6], [1, 0.625, 0.5]),
    (
        "lr=1,schedule=cosine,steps=4",
        [0, 1, 2, 3, 4, 5],
        [1, (1 + HALF) / 2, 0.5, (1 - HALF) / 2, 0, 0],
    ),
    (
        "lr=1,schedule=cosine,steps=2,end=0.5,warmup=2",
        [0, 1, 2, 3, 4, 9],
        [0.5, 1, 1, 0.75, 0.5, 0.5],
    ),
    (
        "lr=1,schedule=noam,warmup=4",
        [0, 1, 3, 4, 15, 63],
        [0.25, 0.5, 1, math.sqrt(0.8), 0.5, 0.25],
    ),
]


@pytest.mark.parametrize(("text", "versions", "expected"), BY_HAND)
def test_the_rate_is_the_one_worked_out_by_hand(
    text: str, versions: list[int], expected: list[float]
) -> None:
    """Each schedule, with and without warm-up, at its ends and between."""
    np.testing.assert_allclose(rates(text, *versions), expected, rtol=1e-12, atol=1e-15)


def test_every_schedule_is_worked_out_by_hand() -> None:
    """No schedule is without numbers here."""
    texts = " ".join(text for text, *_ in BY_HAND)
    assert all(f"schedule={word}" in texts for word in SHAPES if word != "constant")


def test_noam_is_that_of_the_paper_when_lr_is_its_peak() -> None:
    """d^-0.5 * min(n^-0.5, n * warmup^-1.5), for step n from 1."""
    width, warmup = 512, 4000
    lr = (width * warmup) ** -0.5
    steps = [1, 100, 3999, 4000, 4001, 100000]

    expected = [width**-0.5 * min(n**-0.5, n * warmup**-1.5) for n in steps]

    text = f"lr={lr!r},schedule=noam,warmup={warmup}"
    np.testing.assert_allclose(rates(text, *(n - 1 for n in steps)), expected, rtol=1e-12)


NEEDED = {
    "constant": "warmup=3",
    "step": "steps=5,gamma=0.5,warmup=3",
    "exponential": "steps=5,gamma=0.5,warmup=3",
    "polynomial": "steps=5,end=0.01,power=2,warmup=3",
    "cosine": "steps=5,end=0.01,warmup=3",
    "noam": "warmup=3",
}
CHANGED = {"steps": "6", "gamma": "0.4", "end": "0.02", "power": "3", "warmup": "4"}


@pytest.mark.parametrize("word", SHAPES)
def test_the_rate_changes_when_an_option_changes(word: str) -> None:
    """No option of any schedule is taken and dropped, and none but its own is taken."""
    options = dict(item.split("=") for item in NEEDED[word].split(","))
    assert set(options) == {*SHAPES[word].options, "warmup"}

    def of(changed: dict[str, str]) -> list[float]:
        written = ",".join(f"{name}={value}" for name, value in changed.items())
        return rates(f"lr=1,schedule={word},{written}", *range(20))

    for option in CHANGED:
        if option in options:
            assert of({**options, option: CHANGED[option]}) != of(options), option
        else:
            with pytest.raises(ConfigError, match=f"sgd has no option '{option}'"):
                of({**options, option: CHANGED[option]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schedule=cosin,steps=5", r"schedule: unknown value 'cosin'; did you mean 'cosine'\?"),
        ("schedule=cosine", r"sgd needs steps=NUMBER in 'sgd:schedule=cosine'"),
        ("schedule=cosine,step=5", r"no option 'step' .*did you mean 'steps'\?"),
        ("schedule=noam", r"sgd needs warmup=NUMBER"),
        ("schedule=noam,warmup=0", r"sgd:warmup must be a whole number in \[1, 1e\+12\], got '0'"),
        ("warmup=1.5", r"sgd:warmup must be a whole number in \[0, 1e\+12\], got '1.5'"),
        ("steps=5", r"sgd has no option 'steps' in 'sgd:steps=5'"),
        (
            "schedule=polynomial,steps=5,end=10,weight_decay=0.5",
            r"lr \* weight_decay must be at most 1, .*got 10 \* 0.5",
        ),
    ],
)
def test_a_schedule_is_refused_when_it_cannot_work(text: str, message: str) -> None:
    """The error says where, what must hold, what came and the nearest valid name."""
    with pytest.raises(ConfigError, match=message):
        make_optimizer(f"sgd:{text}", dim=1, where="x")


def test_a_schedule_is_spelled_out_when_it_is_on() -> None:
    """All of its options, and a text that reads as the same."""
    text = make_optimizer("adam:schedule=polynomial,steps=1e5,warmup=1000", dim=1).text

    assert text.endswith("step=row,schedule=polynomial,warmup=1000,steps=100000,end=0.0,power=1.0")
    assert make_optimizer(text, dim=1).text == text


def test_a_table_steps_at_its_rate_and_tells_it() -> None:
    """The rate of a push is the schedule at the pushes applied before, and not of its parts."""
    spec = TableSpec(
        name="t", dim=1, optimizer="sgd:lr=1,schedule=step,steps=2", initializer="zeros"
    )
    table, seen = SparseTable(spec), []
    weight = np.zeros(1, np.float32)
    for _ in range(5):
        rate, before = table.learning_rate, float(weight[0])
        table.push(np.array([7], np.uint64), np.ones(1, np.float32))
        table.push(np.array([8], np.uint64), np.ones(1, np.float32))
        table.version += 1
        table.pull(np.array([7], np.uint64), weight)
        seen.append((rate, round(before - float(weight[0]), 6)))

    assert [rate for rate, _ in seen] == [1.0, 1.0, 0.1, 0.1, pytest.approx(0.01)]
    assert [change for _, change in seen] == [1.0, 1.0, 0.1, 0.1, 0.01]


# Without the compiler, integers that wrap around in a shard's thread would warn.
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("num_shards", [1, 2])
def test_the_rate_of_push_20_is_the_late_one_when_pushes_come_over_the_wire(
    num_shards: int,
) -> None:
    """PaddlePaddle/Paddle#20325: lr 1.0, then 0.1 after 10 pushes, on every shard."""
    spec = pserver.TableSpec(
        name="t", dim=1, optimizer="sgd:lr=1,schedule=step,steps=10", initializer="zeros"
    )
    keys, changes = [1, 2, 3, 4], []  # two on each of two shards
    with pserver.embedded(num_shards) as client:
        client.create_table(spec)
        for _ in range(20):
            before = client.pull("t", keys)[:, 0]
            client.push("t", keys, np.ones((4, 1), np.float32))
            client.flush()
            changes.append(before - client.pull("t", keys)[:, 0])

    np.testing.assert_allclose(changes, [[1.0] * 4] * 10 + [[0.1] * 4] * 10, rtol=1e-5)


# Without the compiler, integers that wrap around in a shard's thread would warn.
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_a_shard_counts_the_pushes_that_reach_it() -> None:
    """Three pushes to one key: its shard is at the fourth rate, the other one at the first."""
    spec = pserver.TableSpec(
        name="t", dim=1, optimizer="sgd:lr=1,schedule=polynomial,steps=4", initializer="zeros"
    )
    with pserver.embedded(2) as client:
        client.create_table(spec)
        for _ in range(3):
            client.push("t", [2], [[0.0]])
        client.push("t", [1, 2], [[1.0], [1.0]])
        client.flush()

        assert client.pull("t", [1, 2]).tolist() == [[-1.0], [-0.25]]


def test_the_numbers_are_those_of_monolith_when_its_rate_rises() -> None:
    """monolith-lr-poly: from 0.01 to 0.11 in 10 steps, at step 1; ids [0, 0, 1], gradient -1."""
    spec = TableSpec(
        name="t",
        dim=1,
        optimizer="sgd:lr=0.01,schedule=polynomial,end=0.11,steps=10",
        initializer="zeros",
    )
    table, weights = SparseTable(spec), np.zeros(2, np.float32)
    table.version = 1

    table.push(np.array([0, 0, 1], np.uint64), np.full(3, -1.0, np.float32))

    table.pull(np.array([0, 1], np.uint64), weights)
    np.testing.assert_allclose(weights, [0.04, 0.02], rtol=1e-6)
