"""What the tests of the trainer share: clients whose runs can be repeated, small tables and counts."""

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

import pserver
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
