"""Trainers: torch models whose embedding rows live on parameter servers.

``EmbeddingBag`` is the piece for one's own model, ``Strategy`` how several trainers work together;
``trainer run`` trains a built-in model. torch is imported when ``EmbeddingBag`` is first asked for,
so that the command line can set what torch reads when it loads.
"""

from typing import TYPE_CHECKING

from trainer.errors import DataError, TrainerError
from trainer.strategy import Strategy

if TYPE_CHECKING:
    from trainer.embedding import EmbeddingBag

__all__ = ["DataError", "EmbeddingBag", "Strategy", "TrainerError"]


def __getattr__(name: str) -> object:
    """Return ``EmbeddingBag``, importing torch now."""
    if name == "EmbeddingBag":
        from trainer.embedding import EmbeddingBag

        return EmbeddingBag
    raise AttributeError(f"module 'trainer' has no attribute {name!r}")
