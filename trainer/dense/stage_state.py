"""The weights and optimizer state of all stages of a pipeline, brought together to be saved, and given back.

Rooms before and after: ``checkpoint`` saves and takes up, in the trainer of the first stage; ``job.stage`` takes part in the
others; ``dense.in_stages`` lends its groups.

Names are those of a run in one process: ``dense.NAME``, and ``optimizer.INDEX.KEY`` with a parameter's place in the whole
module. So a run may be resumed with other cuts.

What always holds: tensors travel as sums of one trainer's values and zeros, which changes no bit. Owner: the training
thread.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from collective.group import Group
from trainer.dense.module import make_dense_optimizer


def gather(whole: nn.Module, own: Mapping[str, Tensor], group: Group) -> dict[str, Tensor]:
    """Return parameters and buffers of all stages by name. All trainers of a pipeline call it.

    Args:
        whole: the module, for names and shapes.
        own: those of this trainer's stages.
        group: of the pipeline.

    Raises:
        collective.MissingRanksError: a trainer did not come.
    """
    return {
        name: _sum_of(own.get(name), like=value, group=group, what=f"gathering {name!r}")
        for name, value in _named(whole).items()
    }


def gather_optimizer(
    whole: nn.Module,
    own: Mapping[str, Mapping[str, Tensor]],
    *,
    rule: str,
    group: Group,
) -> dict[str, Tensor]:
    """Return the state of all stages' optimizers, by ``optimizer.INDEX.KEY``. All trainers of a pipeline call it.

    Args:
        whole: the module.
        own: state of this trainer's stages, by parameter and key.
        rule: that all trainers' optimizers follow.
        group: of the pipeline.

    Raises:
        collective.MissingRanksError: a trainer did not come.
    """
    keys = _state_keys(rule)
    found = {}
    for index, (name, parameter) in enumerate(whole.named_parameters()):
        state = own.get(name, {})
        for key, is_array in keys.items():
            like = parameter if is_array else torch.zeros(())
            what = f"gathering {key} of {name!r}"
            label = f"optimizer.{index}.{key}"
            found[label] = _sum_of(state.get(key), like=like, group=group, what=what)
    return found


def spread(
    tensors: Mapping[str, Tensor] | None,
    whole: nn.Module,
    *,
    rule: str,
    group: Group,
) -> dict[str, dict[str, Tensor]]:
    """Give all trainers of a pipeline what was saved. All of them call it.

    Args:
        tensors: what ``gather`` and ``gather_optimizer`` returned, as ``dense.NAME`` and ``optimizer.INDEX.KEY``; None:
            another trainer has them.
        whole: the module; written.
        rule: that the optimizers follow.
        group: of the pipeline.

    Returns:
        The optimizers' state, by parameter and key.

    Raises:
        collective.MissingRanksError: a trainer did not come.
    """
    given: Mapping[str, Tensor] = tensors or {}
    with torch.no_grad():
        for name, value in _named(whole).items():
            what = f"giving {name!r}"
            value.copy_(_sum_of(given.get(f"dense.{name}"), like=value, group=group, what=what))
    keys = _state_keys(rule)
    state: dict[str, dict[str, Tensor]] = {}
    for index, (name, parameter) in enumerate(whole.named_parameters()):
        state[name] = {}
        for key, is_array in keys.items():
            like = parameter if is_array else torch.zeros(())
            label, what = f"optimizer.{index}.{key}", f"giving {key} of {name!r}"
            state[name][key] = _sum_of(given.get(label), like=like, group=group, what=what)
    return state


def _named(whole: nn.Module) -> dict[str, Tensor]:
    return {**dict(whole.named_parameters()), **dict(whole.named_buffers())}


def _sum_of(value: object, *, like: Tensor, group: Group, what: str) -> Tensor:
    """Return the value of the one trainer that has it, on all of them."""
    mine = torch.zeros(like.shape, dtype=like.dtype)
    if isinstance(value, Tensor):
        mine.copy_(value.detach())
    group.all_reduce(mine, what=what)
    return mine


def _state_keys(rule: str) -> dict[str, bool]:
    """Return what an optimizer keeps of a parameter, and whether it is an array of its shape.

    >>> _state_keys("adam")
    {'step': False, 'exp_avg': True, 'exp_avg_sq': True}
    """
    tried = nn.Parameter(torch.zeros(2))
    optimizer = make_dense_optimizer(rule, [tried])
    tried.grad = torch.zeros(2)
    optimizer.step()
    state = optimizer.state[tried]
    return {key: v.dim() > 0 for key, v in state.items() if isinstance(v, Tensor)}
