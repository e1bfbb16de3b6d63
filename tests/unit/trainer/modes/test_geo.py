"""Geo mode: what trainers do by themselves adds up on the servers, once, and comes back to all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pserver
from tests.clients import Network, clients
from tests.geo_trainers import WAIT_S, both, local, spec, step, together, trainer, vector
from tests.reference_geo import GeoServers, GeoTrainer
from trainer.modes.geo import GeoMode

POOL = [0, 1, 2, 3, 4, 2**63, 2**64 - 1]


@pytest.mark.parametrize(("average", "total"), [("none", 200.0), ("trainers", 100.0)])
def test_a21_every_step_of_every_trainer_is_counted(average: str, total: float) -> None:
    """A21: two trainers add 1 per step for 100 steps, k = 4: 200, or the mean 100; both agree."""
    with clients(2) as (one, two):
        modes = both([one, two], k_steps=4, geo_average=average)

        def train(mode: GeoMode) -> None:
            for _ in range(100):
                step(mode, [1], [-1.0])
            mode.flush()

        together(*(lambda m=m: train(m) for m in modes))
        for mode in modes:
            mode.flush()

        assert one.peek("t", [1]).item() == total
        assert [local(mode, [1]) for mode in modes] == [[total], [total]]
        assert all(mode.facts()["pushes"] == 27 for mode in modes)


def test_a21_a_window_that_is_not_full_is_told_of_at_the_end() -> None:
    """A21: of 10 steps with k = 4 the last two are not lost."""
    with clients(1) as (client,):
        mode = trainer(client, k_steps=4)
        for _ in range(10):
            step(mode, [1], [-1.0])
        mode.finish()

        assert client.peek("t", [1]).item() == 10.0


def test_the_worked_example_of_the_modes_page() -> None:
    """ARCHITECTURE, "Modes": k = 2, two trainers, sgd with lr 1, divided by trainers."""
    with clients(2) as (one, two):
        a, b = both([one, two], k_steps=1000)
        one.assign("t", [1, 2], [[10.0], [20.0]])

        assert step(a, [1], [2.0]) == [10.0]  # A: 8
        assert step(a, [1], [2.0]) == [8.0]  # A: 6
        assert step(b, [1, 2], [-4.0, 1.0]) == [10.0, 20.0]  # B: 14, 19
        a.flush()  # tells (6 - 10) / 2 = -2
        assert one.peek("t", [1, 2])[:, 0].tolist() == [8.0, 20.0]
        assert local(a, [1]) == [8.0]
        assert step(b, [1], [-2.0]) == [14.0]  # B: 16
        b.flush()  # tells (16 - 10) / 2 = 3 and (19 - 20) / 2 = -0.5
        assert one.peek("t", [1, 2])[:, 0].tolist() == [11.0, 19.5]
        assert local(b, [1, 2]) == [11.0, 19.5]
        assert step(a, [1], [1.0]) == [8.0]  # A: 7, of which -1 is not told
        a.flush()  # tells -0.5, and learns of B's 3
        assert one.peek("t", [1])[:, 0].tolist() == [10.5]
        assert local(a, [1]) == [10.5]


def test_progress_made_while_a_round_runs_is_kept() -> None:
    """What was done since the window ended stays on top of what the servers answer."""
    with clients(2) as (one, two):
        a, b = both([one, two], k_steps=2, geo_average="none")
        for _ in range(3):
            step(b, [1], [-10.0])
        b.flush()
        for _ in range(3):  # the window ends after the second one
            step(a, [1], [-1.0])

        a._end_round()

        assert local(a, [1]) == [33.0]
        assert two.peek("t", [1]).item() == 32.0


ops = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.one_of(
            st.none(),
            st.lists(
                st.tuples(st.sampled_from(POOL), st.integers(-8, 8)),
                unique_by=lambda pair: pair[0],
                min_size=1,
                max_size=3,
            ),
        ),
    ),
    max_size=14,
)


@settings(max_examples=40)
@given(ops, st.integers(3, 5), st.sampled_from(["none", "trainers"]), st.integers(0, 10**6))
def test_any_run_is_the_oracles_when_replies_are_lost_and_requests_come_twice(
    todo: list[tuple[int, list[tuple[int, int]] | None]], rows: int, average: str, seed: int
) -> None:
    """Steps and rounds of two trainers with small caches, over a bad network, are the dicts' own.

    Gradients are multiples of 8 and factors powers of two, so float32 is exact.
    """
    with clients(2, networks=[Network(faults=0.05, seed=seed)] * 2) as pair:
        modes = both(pair, k_steps=10**6, geo_average=average, geo_cache_rows=rows)
        slow = GeoServers(2)
        scale = 0.5 if average == "trainers" else 1.0
        oracle = [GeoTrainer(slow, i, rows_max=rows, scale=scale) for i in range(2)]
        for who, what in [*todo, (0, None), (1, None), (0, None), (1, None)]:
            if what is None:
                modes[who].flush()
                oracle[who].flush()
                continue
            keys, grads = [key for key, _ in what], [8.0 * grad for _, grad in what]
            step(modes[who], keys, grads)
            oracle[who].step(keys, grads)
            cached = modes[who]._cache.tables["t"].all_keys().tolist()
            assert cached == list(oracle[who].local)
            assert local(modes[who], keys) == [oracle[who].local[key] for key in keys]

        assert pair[0].peek("t", np.array(POOL, np.uint64))[:, 0].tolist() == [
            slow.values.get(k, 0.0) for k in POOL
        ]
        for mode, own in zip(modes, oracle, strict=True):
            held = list(own.local)
            assert local(mode, held) == [own.local[key] for key in held]
            mode._cache.tables["t"].check()


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.integers(1, 5), st.booleans())
def test_nothing_is_lost_or_doubled_while_rounds_run_beside_training(
    seed: int, k_steps: int, is_small: bool
) -> None:
    """Whatever the timing, the servers end with the sum of all gradients, and both trainers agree."""
    rows, num_keys, num_steps = (24 if is_small else 1000), 60, 40
    rng = np.random.default_rng(seed)
    plans = [
        [
            (rng.choice(num_keys, 8, replace=False).tolist(), rng.integers(-9, 9, 8).tolist())
            for _ in range(num_steps)
        ]
        for _ in range(2)
    ]
    total = np.zeros(num_keys)
    for keys, grads in (pair for plan in plans for pair in plan):
        total[keys] -= grads
    with clients(2, networks=[Network(faults=0.02, seed=seed)] * 2) as pair:
        modes = both(pair, k_steps=k_steps, geo_average="none", geo_cache_rows=rows)

        def train(mode: GeoMode, plan: list[tuple[list[int], list[int]]]) -> None:
            ahead = mode.start_pull({"t": np.array(plan[0][0], np.uint64)})
            for (keys, grads), (coming, _) in zip(plan, [*plan[1:], plan[0]], strict=True):
                pull, ahead = ahead, mode.start_pull({"t": np.array(coming, np.uint64)})
                pull.result()
                array, none = np.array(keys, np.uint64), np.empty(0, np.uint32)
                mode.start_push({"t": (array, np.array(grads, np.float32), none)})
                mode.end_step(samples=1)
            mode.flush()

        together(*(lambda m=m, p=p: train(m, p) for m, p in zip(modes, plans, strict=True)))
        for mode in modes:
            mode.flush()

        assert pair[0].peek("t", range(num_keys))[:, 0].tolist() == total.tolist()
        for mode in modes:
            held = mode._cache.tables["t"].all_keys().tolist()
            assert len(held) <= rows
            assert local(mode, held) == total[held].tolist()


@pytest.mark.parametrize("trainers", [1, 2])
def test_a8_a_schedule_counts_the_trainers_own_steps(trainers: int) -> None:
    """A8: 1.0, and 0.1 after 10 steps: the 20th step moves 0.1, however far the other one is."""
    with clients(trainers) as made:
        first, *others = (
            trainer(
                client,
                number,
                trainers=trainers,
                optimizer="sgd:lr=1,schedule=step,steps=10,gamma=0.1",
                k_steps=3,
                geo_average="none",
            )
            for number, client in enumerate(made)
        )
        for other in others:
            for _ in range(100):
                step(other, [2], [1.0])
        for _ in range(19):
            step(first, [1], [0.0])
        step(first, [1], [-1.0])
        first.flush()

        assert made[0].peek("t", [1]).item() == np.float32(0.1)


def test_a_cache_of_10000_rows_serves_a_million_keys_and_forgets_the_oldest() -> None:
    """Rows leave in the order of their last use, told of before; none of the progress is lost."""
    rng = np.random.default_rng(5)
    num_keys, rows, none = 10**6, 10**4, np.empty(0, np.uint32)
    total = np.zeros(num_keys, np.float32)
    last_use = np.full(num_keys, -1)
    with clients(1, num_shards=2) as (client,):
        mode = trainer(client, k_steps=7, geo_cache_rows=rows)
        clock = 0
        for _ in range(60):
            # Some keys come often, most of them once.
            keys = np.unique(np.minimum(rng.zipf(1.3, 3000), num_keys) - 1).astype(np.uint64)
            keys = np.union1d(keys, rng.integers(0, num_keys, 2000).astype(np.uint64))
            grads = rng.integers(-9, 9, keys.size).astype(np.float32)
            mode.start_pull({"t": keys}).result()
            mode.start_push({"t": (keys, grads, none)})
            mode.end_step(samples=1)
            total[keys] -= grads
            last_use[keys] = clock + np.arange(keys.size)
            clock += keys.size
            held = mode._cache.tables["t"].all_keys()
            used = np.flatnonzero(last_use >= 0)
            newest = used[np.argsort(last_use[used])][-held.size :]
            assert held.size <= rows
            assert np.array_equal(held, newest.astype(np.uint64))
        mode.flush()

        assert mode.facts()["evicted_rows"] > 5 * rows
        assert np.array_equal(client.peek("t", np.arange(num_keys))[:, 0], total)


def test_a_step_larger_than_the_cache_is_refused() -> None:
    """The error names the knob; nothing was fetched."""
    with clients(1) as (client,):
        mode = trainer(client, geo_cache_rows=3)

        with pytest.raises(pserver.ShapeError, match=r"4 distinct keys, .* raise --geo-cache-rows"):
            mode.start_pull({"t": np.arange(4, dtype=np.uint64)})

        assert sum(table.rows for stats in client.stats() for table in stats.tables) == 0


def test_rows_that_left_before_the_gradient_came_are_fetched_again() -> None:
    """Two forwards before one backward may push rows out: their gradients still count."""
    with clients(1) as (client,):
        mode = trainer(client, geo_cache_rows=2, geo_average="none")
        keys, none = np.array([1, 2], np.uint64), np.empty(0, np.uint32)
        mode.start_pull({"t": keys}).result()
        mode.start_pull({"t": np.array([3, 4], np.uint64)}).result()

        mode.start_push({"t": (keys, np.array([5.0, 6.0], np.float32), none)})
        mode.end_step(samples=1)
        mode.flush()

        assert client.peek("t", [1, 2, 3])[:, 0].tolist() == [-5.0, -6.0, 0.0]


def test_a_row_that_was_fetched_before_it_left_is_read_again() -> None:
    """A pull sent ahead brings a row as it was; the next round brings what was told since."""
    with clients(1) as (client,):
        mode = trainer(client, geo_cache_rows=2, geo_average="none")
        ahead = mode.start_pull({"t": np.array([1], np.uint64)})  # sent while it is not here
        step(mode, [1], [-1.0])
        step(mode, [2, 3], [0.0, 0.0])  # pushes key 1 out, told of
        ahead.result()
        mode.flush()

        assert client.peek("t", [1]).item() == 1.0
        assert local(mode, [1]) == [1.0]


def test_the_divisor_follows_the_group() -> None:
    """A difference is divided by the trainers that are with the group when its window ends."""
    with clients(2) as pair:
        modes = both(pair, k_steps=1)
        step(modes[0], [1], [-8.0])
        modes[0].flush()
        modes[1].finish()
        group = modes[0].group
        group._beating.cancel()
        pair[0]._runtime.submit(group._beat_once(0, WAIT_S)).result(WAIT_S)
        step(modes[0], [1], [-8.0])
        modes[0].flush()

        assert pair[0].peek("t", [1]).item() == 8.0 / 2 + 8.0


@pytest.mark.parametrize("k_steps", [1, 10])
def test_what_failed_is_told_later_and_once(k_steps: int) -> None:
    """While no reply comes back, a round and an eviction fail in time; later all of it is there."""
    pserver.LocalTable(spec(), rows_max=1)  # compiles, which takes longer than the timeout
    network, short = Network(), pserver.ClientSettings(timeout_s=0.2)
    with clients(1, networks=[network], settings=short) as (client,):
        mode = trainer(client, k_steps=k_steps, geo_cache_rows=2, geo_average="none")
        mode.create_dense(pserver.DenseSpec(name="d", length=2), np.zeros(2, np.float32))
        step(mode, [1, 2], [-1.0, -2.0])
        mode.flush()
        mode.push_dense("d", np.full(2, -20.0, np.float32))
        step(mode, [1, 2], [-1.0, -2.0])
        network.is_mute = True
        for ask in (mode.flush, lambda: step(mode, [3, 4], [0.0, 0.0]), mode.flush):
            with pytest.raises(pserver.DeadlineError):
                ask()
        network.is_mute = False
        step(mode, [3, 4], [-3.0, -4.0])
        mode.finish()

        assert client.peek("t", [1, 2, 3, 4])[:, 0].tolist() == [2.0, 4.0, 3.0, 4.0]
        assert client.pull_dense("d").values.tolist() == [1.0, 1.0]
        assert vector(mode) == [1.0, 1.0]


def test_dense_vectors_meet_at_the_same_point() -> None:
    """Two trainers' steps of a dense table are averaged at the end of each window, as rows are."""
    with clients(2) as pair:
        modes = both(pair, k_steps=2)
        first = np.array([10.0, 20.0, 30.0], np.float32)
        dense = pserver.DenseSpec(name="d", length=3, optimizer="sgd:lr=1")
        for mode in modes:
            assert mode.create_dense(dense, first).tolist() == first.tolist()
        for mode, grad in zip(modes, (1.0, -3.0), strict=True):
            for _ in range(2):
                mode.push_dense("d", np.full(3, grad, np.float32))
                step(mode, [1], [grad])
        for mode in [*modes, *modes]:
            mode.flush()

        # (-2 + 6) / 2 on top of the first values
        assert pair[0].pull_dense("d").values.tolist() == [12.0, 22.0, 32.0]
        assert [vector(mode) for mode in modes] == [[12.0, 22.0, 32.0]] * 2
        assert [local(mode, [1]) for mode in modes] == [[2.0], [2.0]]


def test_a_trainer_too_many_windows_ahead_waits_for_the_slowest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With max_staleness 1 the third window of one waits until the other one told of its first."""
    for room in ("client.group", "server.waiting"):
        monkeypatch.setattr(f"pserver.{room}.HOLD_S", 0.05)
    pserver.LocalTable(spec(), rows_max=1)  # compiles, which takes longer than the timeout
    with clients(2, settings=pserver.ClientSettings(timeout_s=1.2)) as pair:
        fast, slow = both(pair, max_staleness=1, barrier_timeout=0.3, geo_average="none")
        step(fast, [1], [-1.0])
        fast.flush()
        step(fast, [1], [-1.0])
        with pytest.raises(pserver.DeadlineError):
            fast.flush()
        step(slow, [1], [-1.0])
        slow.flush()

        fast.flush()

        assert local(fast, [1]) == [3.0]


@pytest.mark.parametrize("given", [{"accessor": "ctr"}, {"admission": "count:n=2"}])
def test_tables_that_learn_from_what_is_pushed_are_refused(given: dict[str, str]) -> None:
    """The servers of geo mode see differences only; the error says what the mode takes."""
    with clients(1) as (client,):
        mode = trainer(client)
        (field,) = given
        wanted = pserver.TableSpec(name="other", dim=2, optimizer="adagrad", **given)  # type: ignore[arg-type]

        with pytest.raises(pserver.ConfigError, match=f"mode geo takes {field} "):
            mode.create_table(wanted)
