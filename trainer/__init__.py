"""Trainers: torch models whose embedding rows live on parameter servers.

``EmbeddingBag`` is the piece for one's own model; ``make_mode`` makes it one of several trainers that
work together as a ``Strategy`` says, ``DenseOnServers`` keeps its dense part with them. ``trainer run``
trains a built-in model. torch is imported when one of them is first asked for, so that the command
line can set what torch reads when it loads.
"""

import importlib
from typing import TYPE_CHECKING

from trainer.errors import DataError, TrainerError
from trainer.strategy import Strategy

if TYPE_CHECKING:
    from trainer.embedding import EmbeddingBag
    from trainer.modes import make_mode
    from trainer.modes.dense import DenseOnServers

__all__ = [
    "DataError",
    "DenseOnServers",
    "EmbeddingBag",
    "Strategy",
    "TrainerError",
    "make_mode",
]

_WITH_TORCH = {
    "DenseOnServers": "trainer.modes.dense",
    "EmbeddingBag": "trainer.embedding",
    "make_mode": "trainer.modes",
}


def __getattr__(name: str) -> object:
    """Return a name of which the room needs torch, importing that now."""
    if name in _WITH_TORCH:
        return getattr(importlib.import_module(_WITH_TORCH[name]), name)
    raise AttributeError(f"module 'trainer' has no attribute {name!r}")
