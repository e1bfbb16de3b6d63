"""The weights of a dense module and the state of its optimizer as named tensors, and back.

Rooms before and after: ``checkpoint`` saves and takes them up; ``job.dense`` hands them to an embedding trainer.

Names are ``dense.NAME``, and ``optimizer.INDEX.KEY`` with a parameter's place in the module; so one process, stages
(``stage_state``) and dense trainers save alike.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn, optim


def export_dense(module: nn.Module, optimizer: optim.Optimizer) -> dict[str, Tensor]:
    """Return copies of weights, buffers and optimizer state, in host memory."""
    tensors = {
        f"dense.{name}": tensor.detach().cpu().contiguous().clone()
        for name, tensor in module.state_dict().items()
    }
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            tensor = torch.as_tensor(value).detach().cpu().contiguous().clone()
            tensors[f"optimizer.{index}.{name}"] = tensor
    return tensors


def load_dense(
    module: nn.Module, optimizer: optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Take what ``export_dense`` returned; other names are left alone."""
    weights = {n.removeprefix("dense."): t for n, t in tensors.items() if n.startswith("dense.")}
    module.load_state_dict(weights)
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            states.setdefault(int(index), {})[key] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": states, "param_groups": groups})
