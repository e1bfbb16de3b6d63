"""Trainers: torch models whose embedding rows live on parameter servers.

``EmbeddingBag`` is the piece for one's own model; ``trainer run`` trains a built-in one.
"""

from trainer.embedding import EmbeddingBag
from trainer.errors import DataError, TrainerError

__all__ = ["DataError", "EmbeddingBag", "TrainerError"]
