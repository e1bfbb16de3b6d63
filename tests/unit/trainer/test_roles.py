"""Embedding trainers and dense trainers together: the parameters and rows of one process.

Trainers are threads over shards of this process; they meet by real sockets.
"""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typing_extensions import override

import pserver
from collective import CollectiveError, PeerLostError
from pserver.embedded import Cluster
from tests.unit.trainer.models import criteo_line, on_file
from tests.unit.trainer.test_hybrid import free_port, joined_order
from trainer import job, job_dense, loop
from trainer.config import RunSettings
from trainer.data import choose_data
from trainer.errors import TrainerError
from trainer.summary import Summary

WAIT_S = 90.0
RULE = "sgd:lr=0.1"

Together = Callable[..., tuple[list[Summary], list[torch.Tensor], np.ndarray]]


def vector(module: torch.nn.Module) -> torch.Tensor:
    """Return a module's parameters as one vector."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Together:
    """Return what runs trainers at once on new shards; gives summaries, dense vectors and rows."""
    clusters: list[Cluster] = []
    found: list[torch.Tensor] = []

    class Spied(job_dense.DensePart):
        @override
        def finish(self) -> None:
            super().finish()
            found.append(vector(self._module))

    def spy(model: loop.CtrModel, *parts: Any, **options: Any) -> int:
        steps = loop.train(model, *parts, **options)
        if list(model.dense.parameters()):
            found.append(vector(model.dense))
        return steps

    def connect(given: RunSettings) -> pserver.Client:
        return clusters[-1].connect(settings=given.client_settings())

    def run(given: list[RunSettings]) -> tuple[list[Summary], list[torch.Tensor], np.ndarray]:
        found.clear()
        with Cluster(2) as cluster, ThreadPoolExecutor(len(given)) as pool:
            clusters.append(cluster)
            running = [pool.submit(job.run, one) for one in given]
            summaries = [future.result(WAIT_S) for future in running]
            data = choose_data(given[-1], batch_size=10, seed=0)
            keys = np.concatenate([batch.keys for batch in data.train(0, data.rows)])
            with cluster.connect() as client:
                rows = np.asarray(client.peek(job.TABLE, np.unique(keys)))
        return summaries, list(found), rows

    monkeypatch.setattr(job, "train", spy)
    monkeypatch.setattr(job, "_connect", connect)
    monkeypatch.setattr(job_dense, "DensePart", Spied)
    return run


def listening(denses: int, **values: object) -> list[RunSettings]:
    """Return the settings of dense trainers on ports of their own."""
    own: dict[str, object] = {"role": "dense", "device": "cpu", "dense_optimizer": RULE, "dim": 4}
    if denses > 1:
        own |= {"trainers": denses, "master": f"127.0.0.1:{free_port()}"}
    ids = [{"trainer_id": number} if denses > 1 else {} for number in range(denses)]
    ports = [f"127.0.0.1:{free_port()}" for _ in ids]
    return [
        RunSettings.make({**own, "listen": port, **one, **values}, origins={})
        for port, one in zip(ports, ids, strict=True)
    ]


def embedding(
    path: Path, denses: list[RunSettings], embeds: int, **values: object
) -> list[RunSettings]:
    """Return the settings of embedding trainers."""
    addresses = ",".join(str(one.listen) for one in denses)
    shared = {"role": "embed", "next": addresses, "trainers": embeds, "ps": "here:1", **values}
    return [on_file(path, device=None, trainer_id=number, **shared) for number in range(embeds)]


def alone(path: Path, **values: object) -> RunSettings:
    """Return the settings of one process."""
    return on_file(path, ps="here:1", dense_optimizer=RULE, **values)


def write(path: Path, numbers: list[int]) -> Path:
    """Write a file with the rows of some numbers."""
    path.write_text("".join(map(criteo_line, numbers)), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("embeds", "denses", "parts"), [(2, 1, 3), (1, 2, 4), (2, 2, 1), (3, 1, 9)]
)
def test_roles_equal_one_process_on_the_joined_batch(
    together: Together, tmp_path: Path, embeds: int, denses: int, parts: int
) -> None:
    """Any number on each side, also with fewer samples than micro-batches: parameters within 1e-6."""
    rows, batch = 40 * embeds, 8
    many = write(tmp_path / "many.txt", list(range(rows)))
    one = write(tmp_path / "one.txt", joined_order(rows, embeds, batch))
    sync = {"mode": "sync", "sync_divisor": "samples"}

    behind = listening(denses)
    before = embedding(many, behind, embeds, batch_size=batch, accumulate_steps=parts, **sync)
    summaries, found, weights = together([*behind, *before])
    (wanted_summary,), (wanted,), wanted_weights = together(
        [alone(one, batch_size=batch * embeds, **sync)]
    )

    assert len(found) == denses
    for dense in found:
        assert torch.equal(dense, found[0])
        torch.testing.assert_close(dense, wanted, rtol=0.0, atol=1e-6)
    assert np.abs(weights - wanted_weights).max() < 1e-5
    there, here = summaries[:denses], summaries[denses:]
    assert [summary.steps for summary in here] == [5] * embeds
    assert sum(summary.samples for summary in there) == sum(s.samples for s in here) == rows
    assert {summary.strategy["dense"] for summary in summaries} == {"dense_trainers"}
    for summary in here:  # all micro-batches' gradients leave as one push
        assert summary.watch["pushes"] == 5.0
        assert "dense_wait_share" in summary.watch
    assert wanted_summary.steps == 5
    if denses == 1:
        assert there[0].train_auc == pytest.approx(wanted_summary.train_auc, abs=1e-3)
        assert there[0].watch["stage_queue_bytes_max"] > 0


@pytest.mark.parametrize("mode", ["sync", "async", "half_async", "geo"])
def test_uneven_shares_end_well_and_held_out_rows_are_scored(
    together: Together, tmp_path: Path, mode: str
) -> None:
    """Embedding trainers with 2 and 7 steps, in every mode; trainer 0 scores when both are done."""
    path = write(tmp_path / "rows.txt", list(range(90)))
    behind = listening(1)
    before = embedding(path, behind, 2, mode=mode, eval_last=20)
    sizes = (20, 5)
    before = [
        RunSettings.make(
            {**{n: getattr(one, n) for n in one.model_fields_set}, "batch_size": size}, origins={}
        )
        for one, size in zip(before, sizes, strict=True)
    ]

    (dense, first, second), _, _ = together([*behind, *before])

    assert (first.steps, second.steps, dense.steps) == (2, 7, 7)
    assert dense.samples == first.samples + second.samples == 70
    assert (first.eval_samples, second.eval_samples) == (20, 0)
    assert first.auc is not None
    assert first.mode == dense.mode == mode


def test_another_model_is_refused_with_both_names(together: Together, tmp_path: Path) -> None:
    """The embedding trainer ends with a setting that cannot work; who waited in vain is told."""
    path = write(tmp_path / "rows.txt", list(range(10)))
    (behind,) = listening(1, model="fm", barrier_timeout=0.5)
    (before,) = embedding(path, [behind], 1)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(job.run, behind)

        with pytest.raises(pserver.ConfigError, match=r"model 'fm' here and 'deepfm' there"):
            together([before])

        with pytest.raises(PeerLostError, match=r"no embedding trainer came within 0.5 s; refused"):
            running.result(WAIT_S)


def test_an_embedding_trainer_that_fails_ends_the_dense_one_with_its_words(
    together: Together, tmp_path: Path
) -> None:
    """A bad line in its data: the dense trainer's error has the line, and so has the other's."""
    path = write(tmp_path / "rows.txt", list(range(40)))
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[35] = "bad\n"
    path.write_text("".join(lines), encoding="utf-8")
    (behind,) = listening(1)
    before = embedding(path, [behind], 2, batch_size=4)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(job.run, behind)

        with pytest.raises((CollectiveError, TrainerError)):
            together(before)

        with pytest.raises(PeerLostError, match=r"embedding trainer 1 .* failed: .*rows.txt:36"):
            running.result(WAIT_S)


def test_a_taken_port_is_refused(tmp_path: Path) -> None:
    """The error names the flag and the address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        given = RunSettings.make({"role": "dense", "listen": address}, origins={})

        with pytest.raises(pserver.ConfigError, match=f"--listen: cannot listen on {address}"):
            job.run(given)
