"""Mode ``async``: a step's push leaves when the step ends and is applied when it arrives.

Rooms before and after: see ``base``. Nothing waits for other trainers unless ``max_staleness`` holds
back the fastest. With ``on_full`` "merge" a step that finds a send queue full is added to the next one
instead of waiting, up to ``max_merge_num`` steps.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from typing_extensions import override

import pserver
from trainer.modes.base import Floats, Keys, Pending, StepGradients
from trainer.modes.grouped import GroupMode


@dataclass(frozen=True, slots=True)
class TrackedPull:
    """Rows on their way, whose versions the mode remembers when they are used."""

    mode: "AsyncMode"
    tables: tuple[str, ...]
    pending: pserver.PendingPull

    def result(self) -> list[Floats]:
        """Wait for the rows; see ``Pending``."""
        begin = time.perf_counter()
        weights = self.pending.result()
        self.mode.times.pull_s += time.perf_counter() - begin
        for table, versions in zip(self.tables, self.pending.versions(), strict=True):
            self.mode.computed_from(table, versions)
        return weights


class Merged:
    """Steps that leave as one push. Owner: the mode.

    Attributes:
        steps: that are in it.
        gradients: their sum.
        pulled: the oldest version of each table and shard that they were computed from.
    """

    def __init__(self) -> None:
        """Begin without steps."""
        self.steps = 0
        self.gradients = StepGradients()
        self.pulled: dict[str, dict[int, int]] = {}

    def add(self, step: StepGradients, pulled: Mapping[str, Mapping[int, int]]) -> None:
        """Add a step."""
        self.steps += 1
        for table, gradients in step.sparse.items():
            self.gradients.add(table, gradients)
        for table, grads in step.dense.items():
            before = self.gradients.dense.get(table)
            self.gradients.dense[table] = grads if before is None else before + grads
        for table, versions in pulled.items():
            oldest = self.pulled.setdefault(table, {})
            for shard, version in versions.items():
                oldest[shard] = min(oldest.get(shard, version), version)


class AsyncMode(GroupMode):
    """Pushes on their own. Owner: the training thread."""

    name = "async"

    def __init__(
        self,
        client: pserver.Client,
        settings: pserver.GroupSettings,
        *,
        clip_norm: float | None = None,
        max_merge_num: int = 1,
        merge: Literal["sum", "mean"] = "sum",
    ) -> None:
        """Join the group; see ``GroupMode``.

        Args:
            client: the connection.
            settings: of the group.
            clip_norm: see ``Mode``.
            max_merge_num: steps that may become one push; 1: none is merged.
            merge: whether a merged push is their sum or their mean.
        """
        super().__init__(client, settings, clip_norm=clip_norm)
        self._max_merge_num = max_merge_num
        self._merge = merge
        self._merged = Merged()
        self._sent = 0  # steps that left
        self._pulled: dict[str, dict[int, int]] = {}

    def computed_from(self, table: str, versions: dict[int, int]) -> None:
        """Remember what the step that goes on is computed from."""
        self._pulled[table] = versions

    @override
    def start_pull(self, keys: Mapping[str, Keys]) -> Pending:
        return TrackedPull(self, tuple(keys), self.group.start_pull(keys))

    @override
    def pull_dense(self, table: str) -> Floats | None:
        values = self._pull_dense(table)
        self._pulled[table] = dict(enumerate(self._known[table].versions))
        return values

    @override
    def _send(self, step: StepGradients, *, samples: int, loss: float | None) -> None:
        self._merged.add(step, self._pulled)
        if self._merged.steps >= self._max_merge_num or self.group.has_room:
            self._send_merged()
        self._count_step(loss)

    def _send_merged(self) -> None:
        """Send what was merged, as one push; waits while a send queue is full."""
        merged, self._merged = self._merged, Merged()
        if not merged.steps:
            return
        gradients = merged.gradients
        if self._merge == "mean" and merged.steps > 1:
            gradients.scale(1.0 / merged.steps)
        # Each shard must hear of each push: staleness and the cuts of checkpoints count them.
        self._sent += merged.steps
        position = self.steps_before + self._sent
        step = pserver.Step(gradients.dense, merged.pulled, is_everywhere=True, position=position)
        begin = time.perf_counter()
        if self.is_in_order:
            self._settle()
        self._pushed(self.group.start_push(gradients.sparse, step))
        self.times.push_s += time.perf_counter() - begin

    @override
    def flush(self) -> None:
        self._send_merged()
        super().flush()
