"""Factorization machine: one weight a key, and one inner product a pair of keys.

Rooms before and after: rows come from the parameter servers by way of ``trainer.embedding``; the
logits go to the loss in ``trainer.loop``.

What always holds:
    * A row is the linear weight, then D - 1 factors.
    * All dense weights begin at 0, so there is nothing to seed.
"""

from torch import Tensor, fx, nn
from typing_extensions import override

from trainer.model.parts import DenseLinear, check_inputs, linear_and_pairs

# One operation each where the model is cut into stages: their insides ask for values of tensors.
fx.wrap("check_inputs")
fx.wrap("linear_and_pairs")


class FactorizationMachine(nn.Module):
    """logit = lr + sum over pairs of slots of the inner products of their factors.

    Source:
        Rendle, "Factorization Machines", ICDM 2010.
    """

    def __init__(self, *, num_slots: int, num_dense: int, dim: int, seed: int) -> None:
        """Make the dense weights; ``make_model`` has checked ``dim``."""
        super().__init__()
        del seed  # a part of every constructor's signature
        self._expected = (num_slots, dim, num_dense)
        self.linear = DenseLinear(num_dense)

    @override
    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        """Return logits (B,) for rows (B, F, D) and dense (B, num_dense)."""
        check_inputs("fm", rows, dense, expected=self._expected)
        out: Tensor = linear_and_pairs(rows) + self.linear(dense)
        return out
