"""What the loop and ``CtrModel`` need of a dense part that this trainer has only some or nothing of.

Rooms before and after: ``loop`` and ``job`` call it; ``dense.elsewhere`` and ``dense.in_stages`` are the two.

A step is ``learn``, ``settle`` and ``step``; one without samples is the last two, since others wait for it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType

from torch import Tensor, nn

from trainer.modes.base import Mode


class SplitDense(nn.Module, ABC):
    """A dense module that is stepped with others, used like an optimizer too. A context.

    Its end is told to the others: that it is a good one, or why it is not.

    Attributes:
        gathers_together: whether every trainer calls ``gather_state`` for a save, after the same step.
    """

    gathers_together = False

    def __enter__(self) -> "SplitDense":
        """Begin."""
        return self

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Say goodbye to the others, or tell them why this one ends."""

    @abstractmethod
    def facts(self, *, seconds: float) -> dict[str, float]:
        """Return the watch list.

        Args:
            seconds: of training.
        """

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

    @property
    def is_made(self) -> bool:
        """Return whether the step that was settled is made: its gradients were finite, where that is looked at."""
        return True

    @abstractmethod
    def settle(self, mode: Mode | None = None) -> float | None:
        """Make gradients what is stepped by: averaged over other trainers, and cut to the limit of the norm.

        Args:
            mode: has this step's rows; None: this trainer has no rows.

        Returns:
            The norm before cutting, as far as this trainer knows it.
        """

    @abstractmethod
    def held_bytes(self) -> dict[str, int]:
        """Return the bytes that this trainer holds of parameters, gradients and optimizer state."""

    @abstractmethod
    def gather_state(self) -> dict[str, Tensor]:
        """Return weights and optimizer state of the whole dense part, to be saved; see ``dense.state``.

        Raises:
            collective.CollectiveError: another trainer failed.
        """

    @abstractmethod
    def resume(self, steps: int = -1, tensors: Mapping[str, Tensor] | None = None) -> int:
        """Take up what was saved, and return the steps that it has; before the first step.

        Args:
            steps: that the version has; -1: this trainer does not know.
            tensors: what ``gather_state`` returned; None: this trainer has no servers.

        Raises:
            collective.CollectiveError: another trainer failed.
        """

    @abstractmethod
    def step(self) -> None:
        """Use the gradients that are there."""

    @abstractmethod
    def finish(self) -> None:
        """End training well, with the others."""
