"""Hierarchical AllReduce: inside a node, across nodes, inside again.

Rooms before and after: as of ``ring``, which does each of the three parts.

Between nodes the link is slow and inside a node it is fast. So the ranks of a node first share the
work of summing (reduce-scatter), then the ranks with the same chunk sum it across the nodes, then each
node's ranks collect the chunks (all-gather). For M nodes of L ranks, a node's link carries
2 (M - 1) / M of the tensor each way, however the ranks are numbered; a flat ring carries
2 (ML - 1) / (ML) of it for every place where it leaves the node: once if the ranks are in the order
of the nodes, up to L times if they are not.

What always holds: the order of addition is fixed, so all ranks end with the same bits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from collective.errors import GroupError
from collective.group import Group
from collective.ring import (
    Feedback,
    all_gather,
    check_tensor,
    reduce_scatter,
    ring_all_reduce,
    sums_of,
)


@dataclass(frozen=True, slots=True)
class Levels:
    """The two groups that a rank is in.

    Attributes:
        inside: the ranks of its node.
        across: the ranks that have its place in the other nodes.
    """

    inside: Group
    across: Group


def make_levels(group: Group, *, inter_nranks: int) -> Levels:
    """Cut a group into nodes. Every rank of the group calls this.

    Args:
        group: ranks are numbered node by node, as a launcher does.
        inter_nranks: ranks of a node.

    Raises:
        GroupError: the ranks do not divide into such nodes.
    """
    world_size = group.world_size
    if not 1 <= inter_nranks <= world_size or world_size % inter_nranks:
        divisors = [size for size in range(1, world_size + 1) if world_size % size == 0]
        raise GroupError(
            f"inter_nranks must divide the {world_size} ranks of group {group.name!r}, that is be "
            f"one of {divisors}, got {inter_nranks}"
        )
    starts = range(0, world_size, inter_nranks)
    nodes = [range(start, start + inter_nranks) for start in starts]
    places = [range(place, world_size, inter_nranks) for place in range(inter_nranks)]
    return Levels(
        inside=group.split(nodes, name=f"{group.name}-node"),
        across=group.split(places, name=f"{group.name}-across"),
    )


def hierarchical_all_reduce(
    tensor: Tensor,
    levels: Levels,
    *,
    wire: torch.dtype | None = None,
    feedback: Feedback | None = None,
    what: str = "hierarchical all-reduce",
) -> None:
    """Replace a tensor by its sum over all ranks.

    Args:
        tensor: as of ``ring_all_reduce``. Written.
        levels: of this rank.
        wire: ``torch.bfloat16`` sends float32 in half the bytes between nodes, and from the node's
            ranks to each other once the sum is complete; of no effect with one node.
        feedback: as of ``ring_all_reduce``; of this rank's part of the sum.
        what: the operation, in messages.

    Raises:
        TensorError, MissingRanksError: as ``ring_all_reduce``.
    """
    check_tensor(tensor, wire)
    if levels.across.world_size == 1:
        wire = feedback = None
    if tensor.numel() == 0 or levels.inside.world_size * levels.across.world_size == 1:
        return
    with sums_of(tensor) as sums:
        mine = reduce_scatter(sums, levels.inside, what=f"{what}, inside a node")
        across = f"{what}, across nodes"
        ring_all_reduce(sums[mine], levels.across, wire=wire, feedback=feedback, what=across)
        last = f"{what}, inside again"
        all_gather(sums, levels.inside, wire=wire or tensor.dtype, what=last)
