"""Lays the ranks of a run out as pipelines side by side, of which some may share optimizers.

Rooms before and after: ``connect`` gives the group of all ranks; ``pipeline`` runs on one of the
groups that come of it, ``fusion`` or ``sharding`` averages gradients over others.

Rank r of a run with P ranks a pipeline is stage rank r mod P of pipeline ⌊r / P⌋: neighbours in a pipeline are
neighbours in rank, so a launcher that fills hosts one by one keeps a pipeline together. The ranks that hold the
same part of the model, one of each pipeline, are ``data``. S neighbours among them may share one optimizer
(``sharding``); the ranks that hold the same chunk of it are ``replicas``.

After each step of a pipeline the gradients are averaged, in one piece behind the last micro-batch::

    stepped = pipeline.step(inputs, targets)
    reducer.begin(stepped.samples)
    reducer.wait()
    optimizer.step()

With a shared optimizer its step does that: ``ShardedOptimizer(named, make, mesh.sharding, replicas=mesh.replicas)``.
``watch`` looks at whether all ranks go the same way.
"""

from dataclasses import dataclass

from collective.errors import GroupError
from collective.group import Group


@dataclass(frozen=True, slots=True)
class Mesh:
    """This rank's groups.

    Attributes:
        world: all ranks.
        pipeline: the ranks that share one copy of the model.
        data: the ranks that hold the same part of it, one of each pipeline.
        sharding: those of ``data`` that share one optimizer.
        replicas: those of ``data`` that hold the same chunk of it.
    """

    world: Group
    pipeline: Group
    data: Group
    sharding: Group
    replicas: Group


def make_mesh(group: Group, *, pipeline: int, sharding: int = 1) -> Mesh:
    """Return this rank's groups. Every rank calls it.

    Args:
        group: all ranks.
        pipeline: ranks of one pipeline.
        sharding: ranks that share one optimizer.

    Raises:
        GroupError: the ranks do not divide into pipelines, or those of one part into optimizers.
    """
    if pipeline < 1 or group.world_size % pipeline:
        raise GroupError(
            f"{group.world_size} ranks do not divide into pipelines of {pipeline} ranks"
        )
    num = group.world_size // pipeline
    if sharding < 1 or num % sharding:
        raise GroupError(
            f"the {num} ranks that hold the same part of the model do not divide into optimizers of "
            f"{sharding} ranks"
        )
    ranks = range(group.world_size)
    pipelines = [ranks[begin : begin + pipeline] for begin in ranks[::pipeline]]
    copies = [ranks[place::pipeline] for place in range(pipeline)]
    data = group.split(copies, name=f"{group.name}/data")
    places = range(num)
    shared = [places[begin : begin + sharding] for begin in places[::sharding]]
    chunks = [places[place::sharding] for place in range(sharding)]
    return Mesh(
        world=group,
        pipeline=group.split(pipelines, name=f"{group.name}/pipeline"),
        data=data,
        sharding=data.split(shared, name=f"{data.name}/sharding"),
        replicas=data if sharding == 1 else data.split(chunks, name=f"{data.name}/replicas"),
    )
