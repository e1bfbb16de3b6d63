"""Sums of tensors over the processes of a run, for the dense part of a model.

``connect`` finds the other ranks; ``ring_all_reduce`` and ``hierarchical_all_reduce`` sum a tensor
over them, with the same bits on each. Knows no ``pserver``; ``trainer`` stands on it.
"""

from collective.errors import (
    CollectiveError,
    GroupError,
    MissingRanksError,
    PeerLostError,
    StageError,
    TensorError,
)
from collective.group import Group, alone
from collective.hierarchical import Levels, hierarchical_all_reduce, make_levels
from collective.meeting import connect
from collective.ring import Feedback, ring_all_reduce

__all__ = [
    "CollectiveError",
    "Feedback",
    "Group",
    "GroupError",
    "Levels",
    "MissingRanksError",
    "PeerLostError",
    "StageError",
    "TensorError",
    "alone",
    "connect",
    "hierarchical_all_reduce",
    "make_levels",
    "ring_all_reduce",
]
