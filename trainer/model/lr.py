"""Logistic regression: one weight a key.

Rooms before and after: rows come from the parameter servers by way of ``trainer.embedding``; the
logits go to the loss in ``trainer.loop``.

What always holds:
    * A row is one float, D = 1: all that this model uses.
    * All dense weights begin at 0, so there is nothing to seed.
"""

from torch import Tensor, fx, nn
from typing_extensions import override

from trainer.model.parts import DenseLinear, check_inputs, linear_weights

# One operation where the model is cut into stages: its inside asks for values of tensors.
fx.wrap("check_inputs")


class LogisticRegression(nn.Module):
    """logit = bias + sum of the row's weights + dense weights * dense."""

    def __init__(self, *, num_slots: int, num_dense: int, dim: int, seed: int) -> None:
        """Make the dense weights; ``make_model`` has checked ``dim``."""
        super().__init__()
        del seed  # a part of every constructor's signature
        self._expected = (num_slots, dim, num_dense)
        self.linear = DenseLinear(num_dense)

    @override
    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        """Return logits (B,) for rows (B, F, 1) and dense (B, num_dense)."""
        check_inputs("lr", rows, dense, expected=self._expected)
        out: Tensor = linear_weights(rows) + self.linear(dense)
        return out
