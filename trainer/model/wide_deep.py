"""Wide and deep: logistic regression beside a ReLU network over the factors.

Rooms before and after: rows come from the parameter servers by way of ``trainer.embedding``; the
logits go to the loss in ``trainer.loop``.

What always holds:
    * A row is the linear (wide) weight, then D - 1 factors, which only the network sees.
    * The same seed gives the same dense weights on every trainer.
"""

from collections.abc import Sequence

from torch import Tensor, fx, nn
from typing_extensions import override

from trainer.model.parts import DenseLinear, Mlp, check_inputs, linear_weights

# One operation where the model is cut into stages: its inside asks for values of tensors.
fx.wrap("check_inputs")


class WideDeep(nn.Module):
    """logit = lr + mlp(factors, dense).

    Source:
        Cheng and others, "Wide & Deep Learning for Recommender Systems", DLRS 2016.
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
        check_inputs("wide_deep", rows, dense, expected=self._expected)
        out: Tensor = linear_weights(rows) + self.linear(dense) + self.mlp(rows, dense)
        return out
