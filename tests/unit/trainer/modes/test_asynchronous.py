"""Modes async and half_async: what leaves when, merged how, and what the watch list says."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

import pserver
from tests.unit.trainer.modes.models import batches, shares_of, train
from tests.unit.trainers import UNIT
from trainer.modes import AsyncMode, HalfAsyncMode, Mode, make_mode
from trainer.strategy import Strategy

KEY = np.array([7], np.uint64)
HOUR_S = 3600.0
"""An age that no group of these tests reaches."""


@pytest.fixture
def client() -> Iterator[pserver.Client]:
    """One shard, one request at a time."""
    with pserver.embedded(1, settings=pserver.ClientSettings(window=1)) as made:
        yield made


def make_table(mode: Mode) -> None:
    """Make a table whose weights are the sum of the gradients, times -1."""
    mode.create_table(pserver.TableSpec(name="t", dim=1, optimizer=UNIT, initializer="zeros"))


def step(mode: Mode, value: float = 1.0) -> float:
    """Do one step with key 7, and return its weight before."""
    (weights,) = mode.start_pull({"t": KEY}).result()
    mode.start_push({"t": (KEY, np.array([value], np.float32), np.array([1], np.uint32))})
    mode.end_step(samples=1)
    return float(weights[0, 0])


def weight(client: pserver.Client) -> float:
    """Return what key 7 has now."""
    return float(client.peek("t", KEY)[0, 0])


def pushes(client: pserver.Client) -> int:
    """Return how many messages the shard applied."""
    return client.stats()[0].pushes_applied


def test_each_step_is_a_push_in_async(client: pserver.Client) -> None:
    """Five steps are five pushes of staleness 0, since nobody else pushes."""
    mode = make_mode(client, Strategy(mode="async"))
    make_table(mode)

    assert [step(mode) for _ in range(5)] == [0.0, -1.0, -2.0, -3.0, -4.0]
    mode.finish()

    assert pushes(client) == 5
    facts = mode.facts()
    assert (facts["steps"], facts["pushes"], facts["staleness_max"]) == (5.0, 5.0, 0.0)


def test_staleness_is_in_the_watch_list(client: pserver.Client) -> None:
    """Rows that were fetched two steps ahead are two versions old when their push comes."""
    mode = make_mode(client, Strategy(mode="async"))
    make_table(mode)
    ahead = [mode.start_pull({"t": KEY}) for _ in range(3)]
    for pull in ahead:
        pull.result()
        mode.start_push({"t": (KEY, np.ones(1, np.float32), np.empty(0, np.uint32))})
        mode.end_step(samples=1)
    mode.finish()

    facts = mode.facts()
    assert (facts["staleness_p50"], facts["staleness_max"]) == (1.0, 2.0)


def test_steps_are_merged_when_the_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the queue has no room, steps add up; with room again they leave as one push."""
    has_room = threading.Event()
    monkeypatch.setattr(pserver.Group, "has_room", property(lambda _: has_room.is_set()))
    with pserver.embedded(1) as client:
        mode = make_mode(client, Strategy(mode="async", on_full="merge", max_merge_num=10))
        make_table(mode)
        for _ in range(3):
            step(mode)
        assert pushes(client) == 0

        has_room.set()
        step(mode)
        mode.flush()

        assert pushes(client) == 1
        assert weight(client) == -4.0
        assert mode.facts()["merge_factor"] == 4.0
        mode.finish()


def test_no_more_steps_are_merged_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the most of 2 the second step leaves, and waits for room as any push does."""
    monkeypatch.setattr(pserver.Group, "has_room", property(lambda _: False))
    with pserver.embedded(1) as client:
        mode = make_mode(client, Strategy(mode="async", on_full="merge", max_merge_num=2))
        make_table(mode)
        for _ in range(5):
            step(mode)
        mode.client.flush()
        assert pushes(client) == 2

        mode.finish()

        assert pushes(client) == 3
        assert weight(client) == -5.0


def test_what_was_merged_leaves_when_the_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of one step that found no room is not forgotten."""
    monkeypatch.setattr(pserver.Group, "has_room", property(lambda _: False))
    with pserver.embedded(1) as client:
        mode = make_mode(client, Strategy(mode="async", on_full="merge"))
        make_table(mode)
        step(mode)

        mode.finish()

        assert weight(client) == -1.0


@pytest.mark.parametrize(("merge", "expected"), [("sum", -12.0), ("mean", -4.0)])
def test_a_full_group_is_one_push(client: pserver.Client, merge: str, expected: float) -> None:
    """Gradients 2, 4, 6: their sum, or their mean; the version rises by one."""
    strategy = Strategy.make(
        {"mode": "half_async", "max_merge_num": 3, "merge": merge, "flush_interval_ms": 3_600_000},
        origins={},
    )
    mode = make_mode(client, strategy)
    make_table(mode)

    seen = [step(mode, value) for value in (2.0, 4.0, 6.0)]
    mode.flush()

    assert seen == [0.0, 0.0, 0.0]
    assert weight(client) == expected
    assert client.stats()[0].tables[0].version == 1
    mode.finish()


def test_a_group_leaves_when_it_is_old(client: pserver.Client) -> None:
    """One step of a group of 1000 arrives though no other step follows."""
    mode = HalfAsyncMode(
        client,
        pserver.GroupSettings(mode="half_async"),
        max_merge_num=1_000,
        flush_interval_s=0.01,
    )
    make_table(mode)
    step(mode)

    while weight(client) != -1.0:
        pass

    assert pushes(client) == 1
    mode.finish()


def test_the_rest_of_a_group_leaves_at_the_end(client: pserver.Client) -> None:
    """7 steps in groups of 3 are 3 pushes; nothing is lost."""
    mode = HalfAsyncMode(
        client,
        pserver.GroupSettings(mode="half_async"),
        max_merge_num=3,
        flush_interval_s=HOUR_S,
    )
    make_table(mode)
    for _ in range(7):
        step(mode)

    mode.finish()

    assert pushes(client) == 3
    assert weight(client) == -7.0
    assert mode.facts()["merge_factor"] == pytest.approx(7 / 3)


def test_dense_values_follow_a_group(client: pserver.Client) -> None:
    """Within a group they are those of its beginning; after its push they are pulled once."""
    mode = HalfAsyncMode(
        client,
        pserver.GroupSettings(mode="half_async"),
        max_merge_num=2,
        flush_interval_s=HOUR_S,
    )
    mode.create_dense(
        pserver.DenseSpec(name="d", length=1, optimizer=UNIT), np.zeros(1, np.float32)
    )
    seen = []
    for _ in range(5):
        values = mode.pull_dense("d")
        seen.append(None if values is None else float(values[0]))
        mode.push_dense("d", np.ones(1, np.float32))
        mode.end_step(samples=1)

    assert seen == [None, None, -2.0, None, -4.0]
    mode.finish()


def test_an_error_of_the_thread_is_raised_by_the_next_call(
    client: pserver.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that could not be sent while nobody looked is not lost in silence."""
    mode = HalfAsyncMode(
        client,
        pserver.GroupSettings(mode="half_async"),
        max_merge_num=1_000,
        flush_interval_s=0.01,
    )
    make_table(mode)

    def refuse(*_: object) -> None:
        raise pserver.OverloadedError("no room")

    monkeypatch.setattr(pserver.Group, "start_push", refuse)
    step(mode)
    mode._thread.join(30.0)

    with pytest.raises(pserver.OverloadedError, match="no room"):
        step(mode)


def test_max_merge_num_1_is_async(client: pserver.Client) -> None:
    """Async merges nothing unless it is told to."""
    mode = make_mode(client, Strategy(mode="async"))

    assert isinstance(mode, AsyncMode)
    assert mode._max_merge_num == 1
    mode.finish()


@pytest.mark.parametrize("knobs", [{"mode": "async"}, {"mode": "half_async", "max_merge_num": 3}])
def test_two_trainers_learn(knobs: dict[str, object]) -> None:
    """The loss of both falls; every one of their steps arrives."""
    steps = batches(60)

    outcome = train(shares_of(steps, 2), strategy=Strategy.make(knobs, origins={}))

    for losses in outcome.losses:
        assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:10])
    assert [facts["steps"] for facts in outcome.facts] == [60.0, 60.0]
