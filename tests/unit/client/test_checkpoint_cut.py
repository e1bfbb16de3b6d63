"""A cut under trainers that push without pause: D1, and what several shards guarantee."""

import threading
from pathlib import Path

import numpy as np
import pytest

import pserver
from tests.unit.checkpoint.helpers import clients, rows_in

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
def test_weights_and_state_of_every_row_belong_together_when_trainers_push_during_a_save(
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
