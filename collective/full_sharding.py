"""Splits parameters, gradients and optimizer state over the ranks: ZeRO stage 3, by torch's ``fully_shard``.

Rooms before and after: a training program gives its model, then makes and steps torch's optimizer as ever.
``sharding`` has the stages that leave parameters whole.

A layer's parameters are gathered before its forward and its backward, and given back after; between, a rank
holds 1/N of them. torch does this on its own default process group, not on a ``Group``: the program calls
``torch.distributed.init_process_group`` before (gloo on CPU, nccl on CUDA).

What always holds: a rank's batch counts as much as another's (gradients are averaged without weights),
and every rank takes as many steps: who has no batch makes the others wait.
"""

import difflib
from collections.abc import Sequence

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from collective.errors import GroupError


def shard_fully(model: nn.Module, layers: Sequence[str], *, device: str = "cpu") -> None:
    """Shard a model's parameters over all ranks, in place. Every rank calls it, for the same model.

    Args:
        model: its parameters have the same values on all ranks.
        layers: names of modules that are gathered one at a time; what is in none of them is
            gathered for the whole forward and backward.
        device: ``cpu`` or ``cuda``.

    Raises:
        GroupError: torch has no default process group, or a name is no module's. Nothing was
            sharded.
    """
    if not dist.is_initialized():
        raise GroupError(
            "stage 3 is torch's fully_shard and needs torch's default process group; call "
            "torch.distributed.init_process_group first, or take stage 1 or 2"
        )
    known = dict(model.named_modules())
    for name in layers:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}" if near else ""
            raise GroupError(f"layer {name!r} is no module of the model{hint}")
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for name in layers:
        fully_shard(known[name], mesh=mesh)
    fully_shard(model, mesh=mesh)
