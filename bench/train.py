"""Training through one server process, beside the dense part alone in the same run.

``dnn``: the standard workload's 26 embeddings of dim 16 and 13 dense features into an MLP
429-400-400-400-1. The dense part alone is the same MLP with the same optimizer on ready inputs, the
gradient of its input included, since a trainer needs it. ``sum``: the embeddings summed to one
logit, so that communication is all there is.
"""

import itertools
import statistics
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

import pserver
from bench.common import BATCH, DIM, batches, servers
from trainer.dataset import Batch
from trainer.embedding import EmbeddingBag
from trainer.loop import CtrModel, train
from trainer.modes.base import Rows

_SLOTS, _DENSE = 26, 13
_WIDTH = _SLOTS * DIM + _DENSE
_BATCHES = 40
_TURNS = 11  # short ones: a shared machine drifts by more than what is measured
_DNN_STEPS, _SUM_STEPS, _WARM_STEPS = 12, 60, 3


class Dnn(nn.Module):
    """MLP 429-400-400-400-1 over all embeddings and the dense features."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        sizes = (_WIDTH, 400, 400, 400)
        layers: list[nn.Module] = []
        for size_in, size_out in itertools.pairwise(sizes):
            layers += [nn.Linear(size_in, size_out), nn.ReLU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    @override
    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        """Return the (B,) logits."""
        logits: Tensor = self.mlp(torch.cat((rows.flatten(1), dense), 1))
        return logits.squeeze(1)


class Sum(nn.Module):
    """All embeddings and a bias summed to one logit."""

    def __init__(self) -> None:
        """Make the bias."""
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    @override
    def forward(self, rows: Tensor, _dense: Tensor) -> Tensor:
        """Return the (B,) logits from bags that hold a whole sample each, (B, 1, D)."""
        return rows.sum((1, 2)) + self.bias


def run() -> dict[str, Any]:
    """Return samples a second of both models, and what they are to be held against."""
    data = batches(_BATCHES)
    wide = [_whole_samples(batch) for batch in data]
    turns: list[dict[str, float]] = []
    with servers(1) as endpoint, pserver.connect(endpoint) as client:
        dnn = make_model(client, "dnn", Dnn())
        total = make_model(client, "sum", Sum())
        dense_alone = DenseAlone()
        for model, rows in ((dnn, data), (total, wide)):
            _train(client, model, rows, steps=_BATCHES)  # every row exists from here on
        for _ in range(_TURNS):
            alone = BATCH / dense_alone.seconds(_DNN_STEPS)
            dnn_figures = _train(client, dnn, data, steps=_DNN_STEPS)
            sum_figures = _train(client, total, wide, steps=_SUM_STEPS)
            turns.append(
                {
                    "dnn.samples_per_s": dnn_figures["samples_per_s"],
                    "dnn.dense_alone_samples_per_s": alone,
                    "dnn.dense_alone_ratio": dnn_figures["samples_per_s"] / alone,
                    "dnn.comm_share": dnn_figures["comm_share"],
                    **{f"sum.{name}": value for name, value in sum_figures.items()},
                }
            )
    result: dict[str, Any] = {"dnn": {}, "sum": {}}
    for path in turns[0]:
        model_name, _, name = path.partition(".")
        result[model_name][name] = statistics.median(turn[path] for turn in turns)
    return result


def _whole_samples(batch: Batch) -> Batch:
    """Return the batch with one bag a sample, all slots in it."""
    return Batch(
        keys=batch.keys,
        offsets=np.arange(0, batch.keys.size, batch.num_slots, dtype=np.int64),
        num_slots=1,
        dense=batch.dense,
        labels=batch.labels,
        teacher=None,
        position=batch.position,
    )


def make_model(rows: Rows, name: str, dense: nn.Module) -> CtrModel:
    """Return a model on a table of that name, reached through a client or a mode."""
    bag = EmbeddingBag(rows, name, dim=DIM, optimizer="adagrad:lr=0.02")
    return CtrModel(bag, dense, device=torch.device("cpu"))


def make_adam(model: nn.Module) -> torch.optim.Optimizer:
    """Return what steps the dense part."""
    return torch.optim.Adam(model.parameters(), lr=0.001)


def _train(
    client: pserver.Client, model: CtrModel, data: list[Batch], *, steps: int
) -> dict[str, float]:
    """Train and return the figures of the steps after the warm-up."""
    begin_s, cpu_s, comm_s = 0.0, 0.0, 0.0

    def on_step(report: Any) -> None:
        nonlocal begin_s, cpu_s, comm_s
        if report.step == _WARM_STEPS:
            cpu_s, comm_s = client.stats()[0].cpu_s, model.bag.comm.total_s
            begin_s = time.perf_counter()

    source = (data[i % len(data)] for i in range(steps + _WARM_STEPS))
    train(model, source, optimizer=make_adam(model.dense), on_step=on_step)
    seconds = time.perf_counter() - begin_s
    mkeys = (
        sum(
            pserver.dedupe(data[i % len(data)].keys).keys.size
            for i in range(_WARM_STEPS, _WARM_STEPS + min(steps, len(data)))
        )
        / min(steps, len(data))
        * steps
        / 1e6
    )
    return {
        "samples_per_s": steps * BATCH / seconds,
        "comm_share": (model.bag.comm.total_s - comm_s) / seconds,
        "server_cpu_s_per_mkeys": (client.stats()[0].cpu_s - cpu_s) / mkeys,
    }


class DenseAlone:
    """The MLP on inputs that are ready."""

    def __init__(self) -> None:
        """Make the inputs."""
        self._model = Dnn()
        self._optimizer = make_adam(self._model)
        self._rows = torch.randn(BATCH, _SLOTS, DIM, requires_grad=True)
        self._dense = torch.randn(BATCH, _DENSE)
        self._labels = (torch.rand(BATCH) < 0.25).float()

    def seconds(self, steps: int) -> float:
        """Return the seconds of one of ``steps`` steps."""
        return self.cost(steps)[0]

    def cost(self, steps: int) -> tuple[float, float]:
        """Return the seconds of one of ``steps`` steps, and those of CPU that this thread had."""
        self._steps(_WARM_STEPS)
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        self._steps(steps)
        wall_s, cpu_s = time.perf_counter() - begin, time.thread_time() - begin_cpu
        return wall_s / steps, cpu_s / steps

    def _steps(self, count: int) -> None:
        for _ in range(count):
            self._optimizer.zero_grad(set_to_none=True)
            self._rows.grad = None
            logits = self._model(self._rows, self._dense)
            loss = functional.binary_cross_entropy_with_logits(logits, self._labels)
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            loss.item()
