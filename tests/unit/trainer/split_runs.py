"""What tests of runs with a split model share: the rows, one process as the oracle, and vectors to compare."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tests.unit.trainer.models import criteo_line, on_file
from trainer.config import RunSettings
from trainer.job.summary import Summary

WAIT_S = 90.0
RULE = "sgd:lr=0.1"
SYNC: dict[str, object] = {"mode": "sync", "sync_divisor": "samples"}

RunTogether = Callable[[list[RunSettings]], tuple[list[Summary], list[torch.Tensor], np.ndarray]]
"""Runs trainers at once; gives summaries, dense parameters as vectors, and the rows of the table."""

Losses = list[list[float]]
"""Of each trainer, of each step."""

RunOn = Callable[..., Losses]
"""Runs trainers on shards with a folder of checkpoints, new or restored."""


def vector(module: torch.nn.Module) -> torch.Tensor:
    """Return a module's parameters as one vector."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


def alone(path: Path, **values: object) -> RunSettings:
    """Return the settings of one process."""
    return on_file(path, ps="here:1", dense_optimizer=RULE, **values)


def write(path: Path, numbers: list[int]) -> Path:
    """Write a file with the rows of some numbers."""
    path.write_text("".join(map(criteo_line, numbers)), encoding="utf-8")
    return path
