"""Forward and backward in half floats: torch's autocast, and its scaling of the loss for float16.

Rooms before and after: a training program computes its loss within ``forward`` and gives it to ``backward``; the
optimizer is stepped through ``scaler``: by ``ShardedOptimizer.step(weight, scaler=...)``, or after
``Reducer.wait`` by ``scaler.step(optimizer)``.

What always holds: parameters, gradients and sums over ranks stay float32. A gradient that is not finite on one
rank is so in the average on all, so all skip that step and shrink the scale alike.
"""

import contextlib
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.amp import GradScaler

from collective.errors import GroupError

Kind = Literal["float32", "bfloat16", "float16"]

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class MixedPrecision:
    """In what a model computes. Made on every rank, with the same values.

    Attributes:
        scaler: torch's, which does nothing but for float16. Call its ``update`` after each step.
    """

    def __init__(
        self,
        kind: Kind,
        *,
        device: str = "cpu",
        first_scale: float = 2.0**16,
        growth_interval: int = 2000,
    ) -> None:
        """Take what torch is told.

        Args:
            kind: of the layers that torch runs in half floats; float32: none.
            device: of the model, ``cpu`` or ``cuda``.
            first_scale: of the loss, with float16.
            growth_interval: steps without an overflow until the scale doubles.

        Raises:
            GroupError: an unknown kind.
        """
        if kind not in get_args(Kind):
            raise GroupError(f"kind must be one of {', '.join(get_args(Kind))}, got {kind!r}")
        self._kind = kind
        self._device = device
        self.scaler = GradScaler(
            device,
            init_scale=first_scale,
            growth_interval=growth_interval,
            enabled=kind == "float16",
        )

    def forward(self) -> contextlib.AbstractContextManager[object]:
        """Return the context of a forward pass and its loss."""
        if self._kind == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self._device, dtype=_DTYPES[self._kind])

    def backward(self, loss: Tensor) -> None:
        """Run backward of a loss, scaled."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
