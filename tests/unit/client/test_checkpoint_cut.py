"""A cut under trainers that push without pause: D1, and what several shards guarantee."""

import concurrent.futures
import contextlib
import threading
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import pserver
from pserver.arrays import Keys
from pserver.client.saving import Steps
from pserver.embedded import Cluster
from pserver.server.quota import Quota, Quotas
from tests.unit.checkpoint.helpers import clients, manifest_in, rows_in

STEPS_MAX = 2000


def momentum_rows() -> dict[bytes, int]:
    """Return weight and momentum after n steps with gradients of 1, as bytes to n."""
    weight = state = np.float32(0.0)
    rows = {weight.tobytes() + state.tobytes(): 0}
    for step in range(1, STEPS_MAX + 1):
        state = np.float32(0.9) * state + np.float32(1.0)
        weight = weight - np.float32(0.001) * state
        rows[weight.tobytes() + state.tobytes()] = step
    return rows


def push_on(
    client: pserver.Client, rng: np.random.Generator, stop: threading.Event
) -> threading.Thread:
    """Push ones until told to stop, new keys among them; return when the first push is in."""
    begun = threading.Event()

    def run() -> None:
        step = 0
        while not stop.is_set() and step < STEPS_MAX // 3:
            some = np.unique(rng.integers(0, 2000 + 50 * step, 1500))
            client.push("t", some, np.ones((some.size, 4), np.float32))
            step += 1
            begun.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(30.0)
    return thread


@pytest.mark.parametrize("num_shards", [1, 3])
def test_d1_weights_and_state_of_every_row_belong_together_when_trainers_push_during_a_save(
    tmp_path: Path, num_shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1: three trainers insert and push without pause while three versions are saved. Of each row one
    number of steps gives its weights and its momentum: a torn row, or one without state, fits none.
    """
    monkeypatch.setattr("pserver.server.save.SLICE_BYTES", 4000)  # pushes come between slices
    stop = threading.Event()
    with clients(tmp_path, num_shards) as connect:
        saving = connect()
        saving.create_table(
            pserver.TableSpec(
                name="t",
                dim=4,
                optimizer="momentum:lr=0.001,momentum=0.9",
                initializer="zeros",
                capacity_max=1_000_000,
            )
        )
        threads = [push_on(connect(), np.random.default_rng(t), stop) for t in range(3)]
        try:
            versions = [
                saving.checkpoints.save(mode=mode).version for mode in ("full", "delta", "full")
            ]
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    fits = momentum_rows()
    found = [rows_in(tmp_path, version) for version in versions]
    for row in (row for rows in found for row in rows.values()):
        for i in range(4):
            part = slice(4 * i, 4 * i + 4)
            assert row["weights"][part] + row["state.m"][part] in fits
    assert len(found[0]) > 100


def test_a_push_answered_before_the_save_is_in_and_one_sent_after_it_is_not(tmp_path: Path) -> None:
    """On every shard: what was acknowledged before is in the version, what began later is not."""
    keys = np.arange(3000, dtype=np.uint64)
    with clients(tmp_path, 3) as connect:
        first, second = connect(), connect()
        first.create_table(
            pserver.TableSpec(
                name="t", dim=4, optimizer="sgd:lr=1", initializer="zeros", capacity_max=10_000
            )
        )
        first.push("t", keys, np.ones((keys.size, 4)))

        second.checkpoints.save()
        first.push("t", keys, np.ones((keys.size, 4)))

    rows = rows_in(tmp_path, "v00000001")
    assert {np.frombuffer(row["weights"], np.float32)[0] for row in rows.values()} == {-1.0}
    assert len(rows) == keys.size


def one_key_a_shard(num_shards: int, trainer: int) -> np.ndarray:
    """Return a key for each shard, other ones for each trainer."""
    keys = np.arange(1000 * trainer, 1000 * trainer + 1000, dtype=np.uint64)
    shards = pserver.shard_of(keys, num_shards)
    return np.array([keys[shards == shard][0] for shard in range(num_shards)])


class Stepper:
    """A trainer that takes one step after the other, each of which adds 1 to a row on every shard."""

    def __init__(self, group: pserver.Group, keys: np.ndarray, *, is_sync: bool) -> None:
        self._group, self._keys, self._is_sync = group, keys, is_sync
        self._stop = threading.Event()
        self.begun = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(pserver.GroupError):  # it has left
            number = self._group.first_round
            while not self._stop.is_set():
                self._step(number if self._is_sync else 0)
                number += 1
                self.begun.set()

    def _step(self, number: int) -> None:
        step = pserver.Step({}, {}, number, samples=1, is_everywhere=True)
        minus_one = -np.ones(self._keys.size, np.float32)
        counts = np.ones(self._keys.size, np.uint32)
        self._group.start_push({"t": (self._keys, minus_one, counts)}, step)
        if number:
            self._group.start_pull({"t": self._keys}, round_number=number + 1).result()

    def end(self) -> None:
        self._stop.set()
        if self._is_sync:
            self._group.leave()
        self._thread.join()


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_step_is_in_on_all_shards_or_on_none_when_a_group_trains_during_a_save(
    tmp_path: Path, mode: Literal["async", "sync"]
) -> None:
    """Each step of two trainers adds 1 to a row on each of three shards: in every version the rows of a
    trainer are equal, and the manifest says how many of its steps, or of the rounds, are in.
    """
    is_sync = mode == "sync"
    with clients(tmp_path, 3) as connect:
        saving = connect()
        saving.create_table(
            pserver.TableSpec(
                name="t", dim=1, optimizer="sgd:lr=1", initializer="zeros", capacity_max=1000
            )
        )
        keys = [one_key_a_shard(3, trainer) for trainer in range(2)]
        joined = [
            connect().join(pserver.GroupSettings(mode=mode, trainer_id=trainer, trainers=2))
            for trainer in range(2)
        ]
        steppers = [Stepper(joined[i], keys[i], is_sync=is_sync) for i in range(2)]
        try:
            assert all(stepper.begun.wait(30.0) for stepper in steppers)
            versions = [saving.checkpoints.save().version for _ in range(6)]
        finally:
            for stepper in steppers:
                stepper.end()

    for version in versions:
        rows = rows_in(tmp_path, version)
        manifest = manifest_in(tmp_path, version)
        steps = [
            [float(np.frombuffer(rows[key]["weights"], np.float32)[0]) for key in own.tolist()]
            for own in keys
        ]
        assert all(len(set(own)) == 1 for own in steps), steps
        if is_sync:  # a row has half of a round's step, as there are two contributors
            assert {own[0] for own in steps} == {(manifest.round - joined[0].first_round) / 2}
        else:
            assert sorted(manifest.pushes.values()) == sorted(own[0] for own in steps)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_geo_window_is_in_with_its_dense_part_or_not_at_all(
    tmp_path: Path, num_shards: int
) -> None:
    """Each window adds 1 to a row on each shard and to all of a vector: in every version all are equal."""
    stop, begun = threading.Event(), threading.Event()
    keys = one_key_a_shard(num_shards, 0)
    with clients(tmp_path, num_shards) as connect:
        saving, client = connect(), connect()
        for each in (saving, client):
            each.create_table(
                pserver.TableSpec(
                    name="t", dim=1, optimizer="sgd:lr=1", initializer="zeros", capacity_max=1000
                )
            )
            each.create_dense(pserver.DenseSpec(name="d", length=30, optimizer="sgd:lr=1"))
        client.init_dense("d", np.zeros(30, np.float32))
        group = client.join(pserver.GroupSettings(mode="geo", trainer_id=0, trainers=1))

        def train() -> None:
            one = {"t": (keys, np.ones(keys.size, np.float32))}
            while not stop.is_set():
                client.geo.push(one, {"d": np.ones(30, np.float32)}).deliver()
                begun.set()

        thread = threading.Thread(target=train)
        thread.start()
        try:
            assert begun.wait(30.0)
            versions = [saving.checkpoints.save().version for _ in range(8)]
        finally:
            stop.set()
            thread.join()
        group.leave()

    for version in versions:
        assert len(windows_in(tmp_path, version, keys, num_shards)) == 1


def windows_in(folder: Path, version: str, keys: Keys, num_shards: int) -> set[float]:
    """Return which numbers of windows rows and vector of a version have."""
    with pserver.embedded(num_shards, checkpoint_dir=str(folder), restore=version) as restored:
        return {
            *restored.peek("t", keys).reshape(-1).tolist(),
            *restored.pull_dense("d").values.tolist(),
        }


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_cut_waits_for_a_window_when_every_shard_has_its_dense_part_only(
    tmp_path: Path, num_shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All shards are equally far, in the middle of the same window: its rows come before the cut."""
    keys, held = one_key_a_shard(num_shards, 0), threading.Event()
    ask_all = Steps.all

    def noted(steps: Steps, step: str, **fields: Any) -> Any:
        replies = ask_all(steps, step, **fields)
        if step == "hold":
            held.set()
        return replies

    monkeypatch.setattr(Steps, "all", noted)
    with clients(tmp_path, num_shards) as connect:
        saving, client = connect(), connect()
        client.create_table(
            pserver.TableSpec(name="t", dim=1, initializer="zeros", capacity_max=1000)
        )
        client.create_dense(pserver.DenseSpec(name="d", length=30))
        client.init_dense("d", np.zeros(30, np.float32))
        group = client.join(pserver.GroupSettings(mode="geo", trainer_id=0, trainers=1))
        window = client.geo.push(
            {"t": (keys, np.ones(keys.size, np.float32))}, {"d": np.ones(30, np.float32)}
        )
        rows = {
            n: window._left.pop(n) for n in list(window._left) if window._left[n][1] == "PushDelta"
        }
        window.deliver()
        window._left.update(rows)

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            saved = pool.submit(saving.checkpoints.save)
            assert held.wait(30.0)
            window.deliver()
            version = saved.result(30.0).version
        group.leave()

    assert windows_in(tmp_path, version, keys, num_shards) == {1.0}


@pytest.mark.parametrize("is_full", [False, True], ids=["nan", "full"])
def test_a_cut_waits_for_no_push_that_a_shard_refused(tmp_path: Path, is_full: bool) -> None:
    """One shard takes its part of a step, the other refuses NaN, or has no room; saves work all the same."""
    keys = one_key_a_shard(2, 0)
    values = np.array([1.0, 1.0 if is_full else np.nan], np.float32)
    refusal = pserver.TableFullError if is_full else pserver.NotFiniteError
    with clients(tmp_path, 2) as connect:
        saving, client = connect(), connect()
        spec = pserver.TableSpec(name="t", dim=1, optimizer="sgd:lr=1", capacity_max=1000)
        for each in (saving, client):
            each.create_table(spec)
        if is_full:
            others = np.arange(10_000, 20_000, dtype=np.uint64)
            client.pull("t", others[pserver.shard_of(others, 2) == 1][:1000])
        group = client.join(pserver.GroupSettings(mode="async", trainer_id=0, trainers=1))
        step = pserver.Step({}, {}, is_everywhere=True)
        pushed = group.start_push({"t": (keys, values, np.ones(2, np.uint32))}, step)
        with pytest.raises(refusal):
            pushed.result()

        saved = saving.checkpoints.save()
        with contextlib.suppress(refusal):  # told of once more
            client.flush()
        group.leave()

    assert list(manifest_in(tmp_path, saved.version).pushes.values()) == [1]


def test_a_cut_waits_for_no_push_that_a_quota_refused(tmp_path: Path) -> None:
    """One shard takes its part of a step, the other lets the table have no more rows; saves work all the same."""
    keys = one_key_a_shard(2, 0)
    settings = pserver.GroupSettings(mode="async", trainer_id=0, trainers=1)
    with Cluster(2, checkpoint_dir=str(tmp_path)) as shards, shards.connect() as client:
        client.create_table(pserver.TableSpec(name="t", dim=1, optimizer="sgd:lr=1"))
        full = shards.shards[1]
        full.quota = Quota(Quotas(table_rows_max=0), full.pushes, 2, note=lambda *_: None)
        group = client.join(settings)
        step = pserver.Step({}, {}, is_everywhere=True)
        pushed = group.start_push(
            {"t": (keys, np.ones(2, np.float32), np.ones(2, np.uint32))}, step
        )
        with pytest.raises(pserver.QuotaError, match="at most 0 are allowed"):
            pushed.result()

        with shards.connect() as saving:
            saved = saving.checkpoints.save()
        with contextlib.suppress(pserver.QuotaError):  # told of once more
            client.flush()
        group.leave()

    assert list(manifest_in(tmp_path, saved.version).pushes.values()) == [1]
