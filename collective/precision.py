"""Forward and backward in half floats: torch's autocast, and a loss that is scaled for float16.

Rooms before and after: a training program computes its loss within ``forward`` and gives it to ``backward``. With
float16 it takes the scale off the gradients once they are averaged, makes the step only if all of them are finite,
and tells the scale of it: ``ShardedOptimizer.step(weight, scale=...)`` does so, and ``trainer`` around a ``Reducer``.

torch's GradScaler is not what scales here: it looks at what one rank has, and it shrinks at the first overflow.

What always holds: parameters, gradients and sums over ranks stay float32. A gradient that is not finite on one
rank is so in the average on all, so all skip that step and shrink the scale alike.
"""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from collective.errors import GroupError

Kind = Literal["float32", "bfloat16", "float16"]

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class ScaleRule:
    """How a loss is scaled.

    Attributes:
        first: what it is multiplied by at the beginning.
        grow_every: steps without an overflow until the scale grows; 0: it stays as it is.
        grow_by: factor, above 1.
        shrink_after: overflows behind each other until the scale shrinks.
        shrink_by: factor, between 0 and 1.
    """

    first: float = 2.0**15
    grow_every: int = 1000
    grow_by: float = 2.0
    shrink_after: int = 1
    shrink_by: float = 0.5


class LossScale:
    """What a loss is multiplied by, the same on all ranks. Owner: the training thread.

    Attributes:
        value: now; at least 1 once it has shrunk.
        skipped: steps that were not made.
    """

    def __init__(self, rule: ScaleRule) -> None:
        """Begin with the first value."""
        self.value = rule.first
        self.skipped = 0
        self._rule = rule
        self._good = self._bad = 0  # steps behind each other

    def export(self) -> list[float]:
        """Return all of it as numbers, for ``load``."""
        return [self.value, float(self.skipped), float(self._good), float(self._bad)]

    def load(self, numbers: Sequence[float]) -> None:
        """Go on where another scale of the same rule was."""
        self.value = numbers[0]
        self.skipped, self._good, self._bad = (int(number) for number in numbers[1:])

    def take_off(self, gradients: Iterable[Tensor]) -> None:
        """Divide gradients by the scale, in place; what is not finite stays so."""
        for gradient in gradients:
            gradient.div_(self.value)

    def update(self, *, is_made: bool) -> None:
        """Say whether a step was made: its gradients were finite on all ranks."""
        if is_made:
            self._good, self._bad = self._good + 1, 0
        else:
            self._good, self._bad = 0, self._bad + 1
            self.skipped += 1
        rule = self._rule
        if not rule.grow_every:
            return
        if self._good == rule.grow_every:
            self.value, self._good = self.value * rule.grow_by, 0
        if self._bad == rule.shrink_after:
            self.value, self._bad = max(1.0, self.value * rule.shrink_by), 0


class MixedPrecision:
    """In what a model computes. Made on every rank, with the same values.

    Attributes:
        scale: of the loss, with float16; else None.
    """

    def __init__(
        self, kind: Kind = "float32", *, device: str = "cpu", rule: ScaleRule | None = None
    ) -> None:
        """Take what torch is told.

        Args:
            kind: of the layers that torch runs in half floats; float32: none.
            device: of the model, ``cpu`` or ``cuda``.
            rule: of the scale, with float16; None: as its defaults say.

        Raises:
            GroupError: an unknown kind.
        """
        if kind not in get_args(Kind):
            raise GroupError(f"kind must be one of {', '.join(get_args(Kind))}, got {kind!r}")
        self._kind = kind
        self._device = device
        self.scale = LossScale(rule or ScaleRule()) if kind == "float16" else None

    def forward(self) -> contextlib.AbstractContextManager[object]:
        """Return the context of a forward pass and its loss."""
        if self._kind == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self._device, dtype=_DTYPES[self._kind])

    def backward(self, loss: Tensor) -> None:
        """Run backward of a loss, scaled."""
        scaled = loss if self.scale is None else loss * self.scale.value
        scaled.backward()  # type: ignore[no-untyped-call]
