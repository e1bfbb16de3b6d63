"""Layers whose inner values are computed again in backward instead of being kept: less memory, one more forward.

Rooms before and after: a training program calls ``recompute_layers`` on its model (or on a rank's stage of it);
torch's activation checkpointing does the rest.

What always holds: gradients are those of the model as it was, to the bit; names of parameters stay.
Of a layer, its inputs are kept and nothing else. Dropout draws the same numbers again.
"""

import functools
from collections.abc import Sequence

from torch import nn
from torch.utils.checkpoint import checkpoint

from collective.errors import GroupError, no_module


def recompute_layers(model: nn.Module, layers: Sequence[str]) -> None:
    """Have named layers computed again in backward. Called once, before training.

    Args:
        model: changed in place.
        layers: names of modules, such as ``blocks.3``; none within another one.

    Raises:
        GroupError: a name is no module's, or one lies within another or is given twice. Nothing was changed.
    """
    known = dict(model.named_modules())
    for name in layers:
        if name not in known or not name:
            raise no_module("layer", name, known)
        outer = [other for other in layers if name.startswith(f"{other}.")]
        if outer or list(layers).count(name) > 1:
            raise GroupError(f"layer {name!r} is recomputed already, by {(outer or [name])[0]!r}")
    for name in layers:
        module = known[name]
        module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
