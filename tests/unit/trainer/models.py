"""What the tests of the trainer share: small tables, models, batches, files and runs."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

import pserver
from trainer.config import RunSettings
from trainer.dataset import Batch
from trainer.embedding import EmbeddingBag
from trainer.loop import CtrModel

IN_ORDER = pserver.ClientSettings(window=1)
"""One request to a shard at a time: a pull sees every push before it."""


def bag(
    client: pserver.Client,
    name: str = "t",
    *,
    dim: int = 1,
    optimizer: str = "sgd:lr=1",
    initializer: str = "zeros",
    **options: str,
) -> EmbeddingBag:
    """Return a module whose steps can be followed by hand."""
    return EmbeddingBag(
        client,
        name,
        dim=dim,
        optimizer=optimizer,
        initializer=initializer,
        **options,  # type: ignore[arg-type] # pooling, as a parametrized test has it
    )


def counts(client: pserver.Client, name: str = "t") -> dict[str, int]:
    """Return what the servers have counted of a table, over all shards."""
    stats = client.stats()
    tables = [table for shard in stats for table in shard.tables if table.table == name]
    return {
        "rows": sum(table.rows for table in tables),
        "bytes": sum(table.bytes for table in tables),
        "version": sum(table.version for table in tables),
        "keys_pushed": sum(table.keys_pushed for table in tables),
        "pushes": sum(shard.pushes_applied for shard in stats),
    }


class Sum(nn.Module):
    """The sum of all floats of a sample's rows, and a bias that a step of the dense part moves."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    @override
    def forward(self, rows: Tensor, _dense: Tensor) -> Tensor:
        """Return (B,) logits."""
        return rows.sum((1, 2)) + self.bias


def ctr_model(
    client: pserver.Client,
    dense: nn.Module | None = None,
    *,
    dim: int = 1,
    optimizer: str = "sgd:lr=1",
    initializer: str = "zeros",
) -> CtrModel:
    """Return a model on the CPU."""
    rows = bag(client, dim=dim, optimizer=optimizer, initializer=initializer)
    return CtrModel(rows, dense or Sum(), device=torch.device("cpu"))


def frozen(model: CtrModel) -> torch.optim.Optimizer:
    """Return an optimizer that leaves the dense part as it is."""
    return torch.optim.SGD(model.dense.parameters(), lr=0.0)


def batch(keys: list[int], labels: list[float], *, position: int = 0) -> Batch:
    """Return samples of one slot and one dense feature."""
    return Batch(
        keys=np.array(keys, np.uint64),
        offsets=None,
        num_slots=1,
        dense=np.zeros((len(labels), 1), np.float32),
        labels=np.array(labels, np.float32),
        teacher=None,
        position=position,
    )


def criteo_line(number: int) -> str:
    """Return a good line of a Criteo file whose label and ids follow from its number."""
    ints = [str((number * 7 + i) % 50) for i in range(13)]
    hexes = [f"{(number * 31 + i) % 40:08x}" for i in range(26)]
    return "\t".join([str(int(number % 3 == 0)), *ints, *hexes]) + "\n"


def numbered(count: int) -> Iterator[Batch]:
    """Yield batches of two samples that are told apart by their positions."""
    for number in range(1, count + 1):
        yield batch([number, number + 1], [1.0, 0.0], position=number)


def broken(after: int, error: BaseException) -> Iterator[Batch]:
    """Yield some batches, then fail."""
    yield from numbered(after)
    raise error


SMALL_FLAGS = (
    *("--rows", "300", "--eval-last", "200", "--scale", "0.001", "--batch-size", "64"),
    *("--dim", "4", "--device", "cpu", "--threads", "1"),
)
"""The flags of a run of five steps on generated rows."""


SMALL = {
    "rows": 500,
    "eval_last": 300,
    "scale": 0.001,
    "batch_size": 64,
    "dim": 4,
    "device": "cpu",
    "window": 1,
}
"""A run of eight steps on generated rows."""


def settings(**values: object) -> RunSettings:
    """Return the settings of a small run, some of them otherwise; None takes one out."""
    merged = {**SMALL, **values}
    return RunSettings.make({k: v for k, v in merged.items() if v is not None}, origins={})


def on_file(path: Path, **values: object) -> RunSettings:
    """Return the settings of a small run on a file."""
    generated_only: dict[str, object] = dict.fromkeys(("rows", "scale", "eval_last"))
    return settings(**{"data": str(path), **generated_only, **values})
