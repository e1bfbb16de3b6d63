"""DeepFM: a factorization machine beside a ReLU network over the same factors.

Rooms before and after: rows come from the parameter servers by way of ``trainer.embedding``; the
logits go to the loss in ``trainer.loop``.

What always holds:
    * A row is the linear weight, then D - 1 factors, which both parts share.
    * The same seed gives the same dense weights on every trainer.
"""

from collections.abc import Sequence

from torch import Tensor, fx, nn
from typing_extensions import override

from trainer.model.parts import DenseLinear, Mlp, check_inputs, linear_and_pairs

# One operation each where the model is cut into stages: their insides ask for values of tensors.
fx.wrap("check_inputs")
fx.wrap("linear_and_pairs")


class DeepFM(nn.Module):
    """logit = fm + mlp(factors, dense).

    Source:
        Guo and others, "DeepFM: A Factorization-Machine based Neural Network for CTR
        Prediction", IJCAI 2017.
    """

    def __init__(
        self, *, num_slots: int, num_dense: int, dim: int, hidden: Sequence[int], seed: int
    ) -> None:
        """Make the dense weights; ``make_model`` has checked ``dim``."""
        super().__init__()
        self._expected = (num_slots, dim, num_dense)
        self.linear = DenseLinear(num_dense)
        self.mlp = Mlp(num_slots=num_slots, num_dense=num_dense, dim=dim, hidden=hidden, seed=seed)

    @override
    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        """Return logits (B,) for rows (B, F, D) and dense (B, num_dense)."""
        check_inputs("deepfm", rows, dense, expected=self._expected)
        out: Tensor = linear_and_pairs(rows) + self.linear(dense) + self.mlp(rows, dense)
        return out
