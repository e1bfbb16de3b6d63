"""Which way a tensor is summed: by torch, around the ring, or by levels.

Rooms before and after: ``fusion`` and ``hooks`` hand over buckets; ``ring``, ``hierarchical`` and
torch.distributed do the work.

``auto`` measures: before training, every way sums tensors of a few sizes, and for each size the one
whose slowest rank was fastest is taken by all ranks. ``Summer.table`` shows what was measured.

What always holds: all ranks take the same way for the same tensor, since they decide on the same
numbers.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from collective.errors import GroupError
from collective.group import Group
from collective.hierarchical import hierarchical_all_reduce, make_levels
from collective.ring import Feedback, ring_all_reduce

Way = Literal["torch", "ring", "hierarchical"]
Choice = Literal["auto", "torch", "ring", "hierarchical"]

SIZES_BYTES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
"""What ``auto`` measures with; a tensor is summed as the nearest of these is, by ratio."""

_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Measured:
    """One row of what ``auto`` measured.

    Attributes:
        size_bytes: of the tensor.
        seconds: of each way, the best of five on the slowest rank.
        way: the fastest.
    """

    size_bytes: int
    seconds: Mapping[Way, float]
    way: Way


class Summer:
    """Sums tensors over a group by one way, or by the one that is fastest for their size.

    Attributes:
        group: of the ranks.
        table: what ``auto`` measured; empty for the other choices.
        wire: in what float32 travels; None: as it is.
    """

    def __init__(
        self,
        group: Group,
        choice: Choice = "auto",
        *,
        inter_nranks: int | None = None,
        wire: torch.dtype | None = None,
    ) -> None:
        """Prepare, and for ``auto`` measure. Every rank of the group does this.

        Args:
            group: of the ranks.
            choice: the way, or ``auto``.
            inter_nranks: ranks of a node; needed by ``hierarchical``, and ``auto`` tries that way
                only if it is given.
            wire: as of ``ring_all_reduce``; torch has no such choice.

        Raises:
            GroupError: the choice lacks ``inter_nranks``, or has one or a wire of no effect.
        """
        if choice == "hierarchical" and inter_nranks is None:
            raise GroupError("hierarchical needs inter_nranks, the ranks of a node")
        if inter_nranks is not None and choice in ("torch", "ring"):
            raise GroupError(f"inter_nranks has no effect with {choice}; leave it out")
        if wire is not None and choice == "torch":
            raise GroupError("wire has no effect with torch; use ring or hierarchical")
        self.group = group
        self.table: list[Measured] = []
        self.wire = wire
        self._choice: Way = "torch" if choice == "auto" else choice
        self._ways: dict[Way, Callable[[Tensor, str, Feedback | None], None]] = {}
        if wire is None:
            self._ways["torch"] = lambda tensor, what, _: group.all_reduce(tensor, what=what)
        self._ways["ring"] = lambda tensor, what, feedback: ring_all_reduce(
            tensor, group, wire=self._wire_of(tensor), feedback=feedback, what=what
        )
        if inter_nranks is not None:
            levels = make_levels(group, inter_nranks=inter_nranks)
            self._ways["hierarchical"] = lambda tensor, what, feedback: hierarchical_all_reduce(
                tensor, levels, wire=self._wire_of(tensor), feedback=feedback, what=what
            )
        if choice == "auto" and group.world_size > 1:
            self.table = [self._measure(size) for size in SIZES_BYTES]

    def way(self, size_bytes: int) -> Way:
        """Return how a tensor of that size is summed."""
        if not self.table:
            return self._choice
        nearest = min(
            self.table,
            key=lambda row: (
                max(row.size_bytes, size_bytes) / max(1, min(row.size_bytes, size_bytes))
            ),
        )
        return nearest.way

    def sum(
        self, tensor: Tensor, *, what: str, exact: int = 0, feedback: Feedback | None = None
    ) -> None:
        """Replace a tensor by its sum over the group.

        Args:
            tensor: as of ``ring_all_reduce``; with ``exact`` (n,).
            what: the operation, in messages.
            exact: numbers at the end that no narrow wire may round, such as weights to divide by.
            feedback: remembers what a narrow wire rounds away; of no effect where nothing is rounded.

        Raises:
            TensorError, MissingRanksError: as of ``ring_all_reduce``.
        """
        way = self._ways[self.way(tensor.numel() * tensor.element_size())]
        if self._wire_of(tensor) is None:
            way(tensor, what, None)
            return
        last = tensor[-exact:].clone() if exact else None
        if last is not None:
            tensor[-exact:] = 0.0
        way(tensor, what, feedback)
        if last is not None:
            self.group.all_reduce(last, what=f"{what}, its last numbers")
            tensor[-exact:] = last

    def _measure(self, size_bytes: int) -> Measured:
        """Time every way; all ranks get the same numbers."""
        ways: Sequence[Way] = tuple(self._ways)
        tensor = torch.zeros(size_bytes // 4)
        best = torch.full((len(ways),), float("inf"), dtype=torch.float64)
        for _ in range(_REPEATS):
            for index, way in enumerate(ways):
                self.group.barrier()
                begin = time.perf_counter()
                self._ways[way](tensor, "measuring", None)
                best[index] = min(best[index].item(), time.perf_counter() - begin)
        self.group.maximum(best)
        seconds = {way: best[index].item() for index, way in enumerate(ways)}
        return Measured(size_bytes, seconds, min(seconds, key=lambda way: seconds[way]))

    def _wire_of(self, tensor: Tensor) -> torch.dtype | None:
        """Return the wire for a tensor: other dtypes than float32 travel as they are."""
        return self.wire if tensor.dtype == torch.float32 else None
