"""The weights of a dense module and the state of its optimizer as named tensors, and back.

Rooms before and after: ``checkpoint`` saves and takes them up, with ``modes.dense_buckets`` and its like where several
trainers step one dense part; ``job.dense`` hands them to an embedding trainer.

Names are ``dense.NAME``, and ``optimizer.INDEX.KEY`` with a parameter's place in the module; so one process, stages
(``stage_state``) and dense trainers save alike.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn, optim


def export_dense(module: nn.Module, optimizer: optim.Optimizer) -> dict[str, Tensor]:
    """Return copies of weights, buffers and optimizer state, in host memory."""
    tensors = weights_of(module)
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            tensor = torch.as_tensor(value).detach().cpu().contiguous().clone()
            tensors[f"optimizer.{index}.{name}"] = tensor
    return tensors


def load_dense(
    module: nn.Module, optimizer: optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Take what ``export_dense`` returned; other names are left alone."""
    take_weights(module, tensors)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": _by_index(tensors), "param_groups": groups})


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of weights and buffers, in host memory."""
    return {
        f"dense.{name}": tensor.detach().cpu().contiguous().clone()
        for name, tensor in module.state_dict().items()
    }


def take_weights(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Take the weights and buffers of ``export_dense``, in place."""
    weights = {n.removeprefix("dense."): t for n, t in tensors.items() if n.startswith("dense.")}
    module.load_state_dict(weights)


def numbered_state(
    module: nn.Module, state: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Return the state of an optimizer of a module's parameters as ``optimizer.INDEX.KEY``.

    Args:
        module: whose parameters have the indices.
        state: by parameter and key.
    """
    return {
        f"optimizer.{index}.{key}": value
        for index, (name, _) in enumerate(module.named_parameters())
        for key, value in state.get(name, {}).items()
    }


def named_state(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return what ``numbered_state`` was given."""
    found = _by_index(tensors)
    return {n: found.get(i, {}) for i, (n, _) in enumerate(module.named_parameters())}


def _by_index(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            states.setdefault(int(index), {})[key] = tensor
    return states
