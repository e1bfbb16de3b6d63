"""Sums of tensors over the processes of a run, for the dense part of a model.

``connect`` finds the other ranks; ``ring_all_reduce`` and ``hierarchical_all_reduce`` sum a tensor
over them, with the same bits on each. ``Reducer`` averages a model's gradients, ``ParameterAverager`` its
parameters. Knows no ``pserver``; ``trainer`` stands on it.
"""

from collective.agree import check_same, gather, give_from_first
from collective.algorithm import Summer
from collective.errors import (
    CollectiveError,
    DivergedError,
    GroupError,
    MissingRanksError,
    PeerLostError,
    StageError,
    TensorError,
)
from collective.fusion import Reducer, plan_buckets, plan_text
from collective.group import Group, alone
from collective.hierarchical import Levels, hierarchical_all_reduce, make_levels
from collective.local_sgd import ParameterAverager
from collective.meeting import connect
from collective.pipeline_cut import StageEnd
from collective.ring import Feedback, ring_all_reduce

__all__ = [
    "CollectiveError",
    "DivergedError",
    "Feedback",
    "Group",
    "GroupError",
    "Levels",
    "MissingRanksError",
    "ParameterAverager",
    "PeerLostError",
    "Reducer",
    "StageEnd",
    "StageError",
    "Summer",
    "TensorError",
    "alone",
    "check_same",
    "connect",
    "gather",
    "give_from_first",
    "hierarchical_all_reduce",
    "make_levels",
    "plan_buckets",
    "plan_text",
    "ring_all_reduce",
]
