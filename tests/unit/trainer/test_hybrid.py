"""Rows through the servers, dense part averaged: several trainers equal one on the joined batches.

Trainers are threads over shards of this process; they meet by real gloo connections.
"""

import random
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pserver
from collective import DivergedError
from pserver.embedded import Cluster
from tests.unit.trainer.models import criteo_line, on_file
from trainer import loop
from trainer.config import RunSettings
from trainer.data import choose_data
from trainer.job import model as job_model
from trainer.job import run as job
from trainer.job.summary import Summary
from trainer.modes.dense_ranks import DenseOverRanks

WAIT_S = 90.0
ALIKE = {"mode": "sync", "sync_divisor": "samples", "dense_optimizer": "sgd:lr=0.1"}


def free_port() -> int:
    """Return a port that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Outcome:
    """What a job came to.

    Attributes:
        summaries: of each trainer.
        dense: each trainer's dense parameters as one vector; one from the servers, if they are there.
        rows: of the table, for the keys of the file in the order of keys.
    """

    summaries: list[Summary]
    dense: list[torch.Tensor]
    rows: np.ndarray


Together = Callable[..., Outcome]


def write(path: Path, numbers: list[int]) -> Path:
    """Write a file with the rows of some numbers."""
    path.write_text("".join(map(criteo_line, numbers)), encoding="utf-8")
    return path


@pytest.fixture
def together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Together:
    """Return what runs trainers at once on new shards, each with settings of its own."""
    found: dict[int, torch.Tensor] = {}
    clusters: list[Cluster] = []

    def spy(model: loop.CtrModel, *parts: Any, **options: Any) -> int:
        steps = loop.train(model, *parts, **options)
        number = options["mode"].trainer_id
        found[number] = torch.cat([p.detach().reshape(-1) for p in model.dense.parameters()])
        return steps

    def connect(given: RunSettings) -> pserver.Client:
        return clusters[-1].connect(settings=given.client_settings())

    def run(path: Path, *own: dict[str, object], **values: object) -> Outcome:
        values = {"trainers": len(own), "ps": "here:1", "model": "deepfm", **values}
        if values.get("dense") == "allreduce" and len(own) > 1:
            values["master"] = f"127.0.0.1:{free_port()}"
        given = [
            on_file(path, **{**values, "trainer_id": number, **one})
            for number, one in enumerate(own)
        ]
        found.clear()
        with Cluster(2) as cluster, ThreadPoolExecutor(len(own)) as pool:
            clusters.append(cluster)
            running = [pool.submit(job.run, one) for one in given]
            summaries = [future.result(WAIT_S) for future in running]
            dense = [found[number] for number in range(len(own))]
            with cluster.connect() as client:
                data = choose_data(given[0], batch_size=10, seed=0)
                keys = [batch.keys for batch in data.train(0, data.rows)]
                distinct = np.unique(np.concatenate(keys))
                if values.get("dense") == "pserver":
                    dense = [torch.tensor(client.pull_dense(job_model.DENSE_TABLE).values)]
                rows = client.peek(job_model.TABLE, distinct)
        return Outcome(summaries, dense, np.asarray(rows))

    monkeypatch.setattr(job, "train", spy)
    monkeypatch.setattr(job, "_connect", connect)
    return run


def joined_order(rows: int, trainers: int, batch: int) -> list[int]:
    """Return the rows in the order in which trainers with a share each take them, step by step."""
    shares = [
        list(range(rows * t // trainers, rows * (t + 1) // trainers)) for t in range(trainers)
    ]
    steps = range(0, max(map(len, shares)), batch)
    return [number for step in steps for share in shares for number in share[step : step + batch]]


@pytest.mark.parametrize("trainers", [2, 4])
def test_trainers_equal_one_on_the_joined_batch(
    together: Together, tmp_path: Path, trainers: int
) -> None:
    """After 50 steps: dense parameters within 1e-6, the same bits in each trainer; rows too in sync."""
    rows, batch = 50 * trainers * 2, 2
    many, one = list(range(rows)), joined_order(rows, trainers, batch)

    found = together(
        write(tmp_path / "many.txt", many),
        *[{}] * trainers,
        dense="allreduce",
        allreduce="ring",
        check_every=7,
        fuse_grad_mb=0.01,
        last_group_mb=0.001,
        batch_size=batch,
        **ALIKE,
    )
    wanted = together(
        write(tmp_path / "one.txt", one), {}, dense="local", batch_size=batch * trainers, **ALIKE
    )

    assert [summary.steps for summary in found.summaries] == [50] * trainers
    assert [summary.steps for summary in wanted.summaries] == [50]
    for dense in found.dense:
        assert torch.equal(dense, found.dense[0])
        torch.testing.assert_close(dense, wanted.dense[0], rtol=0.0, atol=1e-6)
    assert np.abs(found.rows - wanted.rows).max() < 1e-5
    assert all(summary.watch["averages"] == 50.0 for summary in found.summaries)
    assert all("loss_spread" in summary.watch for summary in found.summaries)


def test_averages_agree_with_the_dense_part_on_the_servers(
    together: Together, tmp_path: Path
) -> None:
    """The same job with --dense pserver under the same rule ends with the same parameters."""
    path = write(tmp_path / "rows.txt", list(range(200)))

    averaged = together(path, {}, {}, dense="allreduce", batch_size=4, **ALIKE)
    served = together(path, {}, {}, dense="pserver", batch_size=4, **ALIKE)

    torch.testing.assert_close(averaged.dense[0], averaged.dense[1], rtol=0.0, atol=0.0)
    assert averaged.summaries[0].steps == served.summaries[0].steps == 25
    torch.testing.assert_close(averaged.dense[0], served.dense[0], rtol=0.0, atol=1e-6)
    assert np.abs(averaged.rows - served.rows).max() < 1e-5


@pytest.mark.parametrize("mode", ["sync", "async", "half_async", "geo"])
@pytest.mark.parametrize("knobs", [{}, {"accumulate": 3}, {"local_sgd_steps": 3}])
def test_uneven_numbers_of_batches_end_well(
    together: Together, tmp_path: Path, mode: str, knobs: dict[str, object]
) -> None:
    """Trainers with 1, 4 and 17 batches all end with the same parameters, in every mode."""
    path = write(tmp_path / "rows.txt", list(range(100)))
    sizes: list[dict[str, object]] = [{"batch_size": 50}, {"batch_size": 9}, {"batch_size": 2}]

    found = together(
        path, *sizes, mode=mode, dense="allreduce", allreduce="ring", check_every=1, **knobs
    )

    assert [summary.steps for summary in found.summaries] == [1, 4, 17]
    assert torch.equal(found.dense[0], found.dense[1])
    assert torch.equal(found.dense[0], found.dense[2])


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_leased_rows_are_trained_on_once(together: Together, tmp_path: Path, mode: str) -> None:
    """A trainer that waits for the last ranges takes part in averages with nothing, and ends."""
    path = write(tmp_path / "rows.txt", list(range(90)))

    found = together(
        path, {}, {}, {}, mode=mode, dense="allreduce", data_mode="dynamic", batch_size=7, epochs=2
    )

    assert sum(summary.samples for summary in found.summaries) == 180
    assert torch.equal(found.dense[0], found.dense[2])


def test_gradients_are_cut_to_one_norm_in_all_trainers(together: Together, tmp_path: Path) -> None:
    """With a limit of the norm, different rows, and different samples, dense parts stay the same."""
    path = write(tmp_path / "rows.txt", random.Random(0).sample(range(120), 120))
    sizes: list[dict[str, object]] = [{"batch_size": 5}, {"batch_size": 3}]
    same: dict[str, Any] = {"dense": "allreduce", "check_every": 1, **ALIKE}

    cut = together(path, *sizes, clip_norm=0.01, **same)
    free = together(path, *sizes, **same)

    assert torch.equal(cut.dense[0], cut.dense[1])
    assert not torch.equal(cut.dense[0], free.dense[0])


def test_merged_steps_equal_larger_batches(together: Together, tmp_path: Path) -> None:
    """Two batches of 5 whose gradients' mean is taken, and rows that stand still, are one of 10."""
    path = write(tmp_path / "rows.txt", list(range(120)))
    still = {**ALIKE, "optimizer": "sgd:lr=0", "dense": "allreduce"}

    merged = together(path, {}, {}, batch_size=5, accumulate=2, accumulate_avg=True, **still)
    large = together(path, {}, {}, batch_size=10, **still)

    torch.testing.assert_close(merged.dense[0], large.dense[0], rtol=0.0, atol=1e-6)
    assert merged.summaries[0].watch["averages"] == large.summaries[0].watch["averages"] == 6.0


def test_a_trainer_that_computes_something_else_is_named(
    together: Together, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One changed weight in trainer 1 ends all three at the next comparison, naming it."""
    path = write(tmp_path / "rows.txt", list(range(90)))
    averaged = DenseOverRanks._averaged

    def broken(self: DenseOverRanks) -> None:
        if self.group.rank == 1 and self._averages == 2:
            with torch.no_grad():
                self._parameters[0].view(-1)[0] += 1e-4
        averaged(self)

    monkeypatch.setattr(DenseOverRanks, "_averaged", broken)

    with pytest.raises(DivergedError, match=r"average 4: .*rank 1 of 3 has another 'linear\."):
        together(path, {}, {}, {}, dense="allreduce", check_every=4, batch_size=5)
