"""Splits parameters, gradients and optimizer state over the ranks: ZeRO stage 3, by torch's ``fully_shard``.

Rooms before and after: a training program gives its model, then makes and steps torch's optimizer as ever.
``sharding`` has the stages that leave parameters whole.

A layer's parameters are gathered before its forward and its backward, and given back after; between, a rank
holds 1/N of them. torch does this on its own default process group, not on a ``Group``: the program calls
``torch.distributed.init_process_group`` before, or ``default_group`` where it has a ``Group``. That group finds
its own way between hosts, as torch documents (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME).

What always holds: a rank's batch counts as much as another's (gradients are averaged without weights),
and every rank takes as many steps: who has no batch makes the others wait.
"""

import contextlib
import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore, PrefixStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from collective.errors import GroupError, no_module
from collective.group import Group


@dataclass(frozen=True, slots=True)
class FullOptions:
    """How a model is sharded fully.

    Attributes:
        device: ``cpu`` or ``cuda``, where layers compute.
        degree: ranks that share one copy of the model; None: all. Copies average their gradients.
        offload: ``cpu`` keeps what a rank holds of parameters, gradients and optimizer state in host memory,
            and steps it there; with device cuda.
        compute_dtype: in which parameters are gathered and layers compute, such as bfloat16; None: as they are.
            Gradients are summed in float32.
    """

    device: str = "cpu"
    degree: int | None = None
    offload: Literal["cpu"] | None = None
    compute_dtype: torch.dtype | None = None


def shard_fully(
    model: nn.Module, layers: Sequence[str], *, options: FullOptions | None = None
) -> None:
    """Shard a model's parameters over all ranks, in place. Every rank calls it, for the same model.

    Args:
        model: its parameters have the same values on all ranks.
        layers: names of modules that are gathered one at a time; what is in none of them is
            gathered for the whole forward and backward.
        options: how; None: as their defaults say.

    Raises:
        GroupError: torch has no default process group, a name is no module's, the ranks do not divide by
            the degree, or parameters would be moved from host memory to host memory. Nothing was sharded.
    """
    options = options or FullOptions()
    if options.offload is not None and options.device == "cpu":
        raise GroupError(
            "offload moves what a GPU would hold; on device cpu it is in host memory already"
        )
    if not dist.is_initialized():
        raise GroupError(
            "stage 3 is torch's fully_shard and needs torch's default process group; call "
            "torch.distributed.init_process_group first, or take stage 1 or 2"
        )
    known = dict(model.named_modules())
    for name in layers:
        if name not in known:
            raise no_module("layer", name, known)
    how: dict[str, Any] = {"mesh": _device_mesh(options)}
    if options.offload is not None:
        how["offload_policy"] = CPUOffloadPolicy()
    if options.compute_dtype is not None:
        how["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=options.compute_dtype, reduce_dtype=torch.float32
        )
    for name in layers:
        fully_shard(known[name], **how)
    fully_shard(model, **how)


@contextlib.contextmanager
def default_group(group: Group, *, device: str = "cpu") -> Iterator[None]:
    """Have torch's default process group, of the ranks of a group. Every rank enters it.

    Args:
        group: all ranks of the run.
        device: ``cuda`` sums by nccl what lies there.
    """
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    store = HashStore() if group.store is None else group.store
    dist.init_process_group(
        backend,
        store=PrefixStore("fully_shard", store),
        rank=group.rank,
        world_size=group.world_size,
        timeout=datetime.timedelta(seconds=group.timeout_s),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def layers_of(model: nn.Module) -> list[str]:
    """Return the names of a model's layers: its children that have parameters; those of lists, one by one.

    >>> layers_of(nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.ModuleList([nn.Linear(1, 1)])))
    ['0', '2.0']
    """
    found = []
    for name, child in model.named_children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            found += [f"{name}.{inner}" for inner in layers_of(child)]
        elif any(True for _ in child.parameters()):
            found.append(name)
    return found


def own_part(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor; all of it, if it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor. Every rank calls it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def fill(tensor: Tensor, value: Tensor) -> None:
    """Write into a tensor what is this rank's of the whole. Every rank calls it, with the same values.

    Args:
        tensor: written; sharded or not.
        value: all of it.
    """
    if isinstance(tensor, DTensor):
        mesh = tensor.device_mesh
        value = distribute_tensor(value.to(mesh.device_type), mesh, tensor.placements)
    with torch.no_grad():
        own_part(tensor).copy_(own_part(value))


def _device_mesh(options: FullOptions) -> DeviceMesh:
    """Return all ranks in one row, or copies times degree."""
    world_size = dist.get_world_size()
    degree = world_size if options.degree is None else options.degree
    if degree < 1 or world_size % degree:
        raise GroupError(f"{world_size} ranks do not divide into copies of degree {degree}")
    if degree == world_size:
        return init_device_mesh(options.device, (world_size,))
    shape = (world_size // degree, degree)
    return init_device_mesh(options.device, shape, mesh_dim_names=("copies", "degree"))
