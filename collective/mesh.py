"""Lays the ranks of a run out as pipelines side by side.

Rooms before and after: ``connect`` gives the group of all ranks; ``pipeline`` runs on one of the two
groups that come of it, ``fusion`` averages gradients over the other.

Rank r of a run with P ranks a pipeline is stage rank r mod P of pipeline ⌊r / P⌋: neighbours in a pipeline are
neighbours in rank, so a launcher that fills hosts one by one keeps a pipeline together.

After each step of a pipeline the gradients are averaged, in one piece behind the last micro-batch::

    stepped = pipeline.step(inputs, targets)
    reducer.begin(stepped.samples)
    reducer.wait()
    optimizer.step()
"""

from dataclasses import dataclass

from collective.errors import GroupError
from collective.group import Group


@dataclass(frozen=True, slots=True)
class Mesh:
    """This rank's two groups.

    Attributes:
        pipeline: the ranks that share one copy of the model.
        data: the ranks that hold the same part of it, one of each pipeline.
    """

    pipeline: Group
    data: Group


def make_mesh(group: Group, *, pipeline: int) -> Mesh:
    """Return this rank's groups. Every rank calls it.

    Args:
        group: all ranks.
        pipeline: ranks of one pipeline.

    Raises:
        GroupError: the ranks do not divide into pipelines.
    """
    if pipeline < 1 or group.world_size % pipeline:
        raise GroupError(
            f"{group.world_size} ranks do not divide into pipelines of {pipeline} ranks"
        )
    ranks = range(group.world_size)
    pipelines = [ranks[begin : begin + pipeline] for begin in ranks[::pipeline]]
    copies = [ranks[place::pipeline] for place in range(pipeline)]
    return Mesh(
        pipeline=group.split(pipelines, name=f"{group.name}/pipeline"),
        data=group.split(copies, name=f"{group.name}/data"),
    )
