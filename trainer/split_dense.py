"""What the loop and ``CtrModel`` need of a dense part that this trainer has only some or nothing of.

Rooms before and after: ``loop`` calls it; ``dense_elsewhere`` is one.
"""

from abc import ABC, abstractmethod

from torch import Tensor, nn


class SplitDense(nn.Module, ABC):
    """A dense module that is stepped with others, used like an optimizer too."""

    @abstractmethod
    def learn(self, rows: Tensor, dense: Tensor, labels: Tensor) -> tuple[float, Tensor]:
        """Hand gradients of the mean loss to the graph of pooled rows.

        Args:
            rows: (B, F, D), B at least 1.
            dense: (B, num_dense) features.
            labels: (B,).

        Returns:
            The mean loss, and the (B,) logits.

        Raises:
            collective.CollectiveError: another trainer went away or did not answer.
        """

    @abstractmethod
    def step(self) -> None:
        """Use the gradients that are there."""

    @abstractmethod
    def finish(self) -> None:
        """End training well, with the others."""
