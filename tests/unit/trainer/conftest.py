"""What the tests of the trainer share: a cluster, a file, and one thread of torch."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import torch
from typing_extensions import override

import pserver
from collective.pipeline_cut import Stage, cut_model
from pserver.embedded import Cluster
from tests.unit.trainer.models import IN_ORDER, criteo_line
from tests.unit.trainer.split_runs import WAIT_S, Losses, RunOn, RunTogether, vector
from trainer import loop
from trainer.config import RunSettings
from trainer.data import choose_data
from trainer.dense import in_stages as dense_in_stages
from trainer.job import dense as job_dense
from trainer.job import model as job_model
from trainer.job import run as job
from trainer.job.summary import Summary


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Keep torch from starting threads that wait for each other, and restore what was set."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def client() -> Iterator[pserver.Client]:
    """Return a client of two shards in this process."""
    with pserver.embedded(2, settings=IN_ORDER) as client:
        yield client


@pytest.fixture
def hundred(tmp_path: Path) -> Path:
    """Return a Criteo file of 100 good rows."""
    path = tmp_path / "hundred.txt"
    path.write_text("".join(map(criteo_line, range(100))), encoding="utf-8")
    return path


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take no setting from outside, and leave none of the command's own behind."""
    for name in RunSettings.model_fields:
        monkeypatch.delenv("TRAINER_" + name.upper(), raising=False)
    for name in (
        "GRPC_VERBOSITY",
        "OMP_WAIT_POLICY",
        "CUBLAS_WORKSPACE_CONFIG",
    ):  # which the command sets if nobody has
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("COLUMNS", "200")
    yield
    structlog.reset_defaults()


@pytest.fixture
def run_together(monkeypatch: pytest.MonkeyPatch) -> RunTogether:
    """Return what runs trainers at once on new shards; gives summaries, dense vectors and rows."""
    clusters: list[Cluster] = []
    found: list[torch.Tensor] = []
    tracing = threading.Lock()

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
                rows = np.asarray(client.peek(job_model.TABLE, np.unique(keys)))
        return summaries, list(found), rows

    def cut(*parts: Any, **options: Any) -> list[Stage]:
        with tracing:  # torch.fx traces in one thread of a process at a time
            return cut_model(*parts, **options)

    monkeypatch.setattr(dense_in_stages, "cut_model", cut)
    monkeypatch.setattr(job, "train", spy)
    monkeypatch.setattr(job, "_connect", connect)
    monkeypatch.setattr(job_dense, "DensePart", Spied)
    return run


@pytest.fixture
def run_on(run_together: RunTogether, monkeypatch: pytest.MonkeyPatch) -> RunOn:
    """Return what runs trainers on shards with checkpoints, restored or new; gives each one's losses."""
    del run_together  # which lets one thread trace at a time

    def run(given: list[RunSettings], folder: Path, restores: bool, *, shards: int = 2) -> Losses:
        losses: Losses = [[] for _ in given]

        def be(number: int) -> None:
            job.run(given[number], on_step=lambda step: losses[number].append(step.loss))

        with Cluster(shards, checkpoint_dir=str(folder)) as cluster:
            monkeypatch.setattr(
                job, "_connect", lambda one: cluster.connect(settings=one.client_settings())
            )
            if restores:
                for shard in cluster.shards:
                    cluster._runtime.submit(shard.loads.restore("latest")).result()
            with ThreadPoolExecutor(len(given)) as pool:
                running = [pool.submit(be, number) for number in range(len(given))]
                for future in running:
                    future.result(WAIT_S)
        return losses

    return run
