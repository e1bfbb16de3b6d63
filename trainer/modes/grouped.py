"""What the modes with gradients on the servers share: a place in the group, dense values, the watch list.

Rooms before and after: ``synchronous``, ``asynchronous`` and ``half_async`` build on it; ``base`` says what
a mode is; behind it are ``pserver.Client`` and ``pserver.Group``.

Owner: the training thread.
"""

import contextlib
import time
from collections import deque
from dataclasses import dataclass

from typing_extensions import override

import pserver
from trainer.modes.base import Floats, Mode


@dataclass(slots=True)
class Times:
    """Seconds that the training thread waited.

    Attributes:
        pull_s: for rows and dense values; in mode sync this is the wait for the slowest trainer.
        push_s: for room in the send queues.
    """

    pull_s: float = 0.0
    push_s: float = 0.0


class GroupMode(Mode):
    """A mode whose trainer is one of a group.

    Attributes:
        group: this trainer's place.
        times: what the training thread waited for.
        staleness: of this trainer's pushes, in versions, as the servers measured it.
        steps_before: steps of its data that a resumed run has behind it.
        is_in_order: a push leaves when the one before it is in on all shards. Else several are in flight,
            and one may overtake another, so a cut would not have the first pushes of a trainer.
    """

    def __init__(
        self,
        client: pserver.Client,
        settings: pserver.GroupSettings,
        *,
        clip_norm: float | None = None,
    ) -> None:
        """Join the group.

        Raises:
            pserver.GroupError: another trainer has the id, or the group agrees on something else.
        """
        super().__init__(client, clip_norm=clip_norm)
        self.trainer_id = settings.trainer_id
        self.group = client.join(settings)
        self.times = Times()
        self.staleness = pserver.Spread()
        self._known: dict[str, pserver.DensePulled] = {}
        self.steps_before = 0
        self.is_in_order = False
        self._steps = 0
        self._pushes = 0
        self._open: deque[pserver.PendingPush] = deque()

    @override
    def create_dense(self, spec: pserver.DenseSpec, first: Floats) -> Floats:
        """Make a dense table; trainer 0 gives it values unless it has some, the others wait."""
        self.client.create_dense(spec)
        if self.trainer_id == 0:
            with contextlib.suppress(pserver.DenseInitError):  # it has some, of an earlier run
                self.client.init_dense(spec.name, first)
        self._known[spec.name] = self.group.pull_dense(spec.name)
        return self._known[spec.name].values

    def _pull_dense(self, table: str, *, round_number: int = 0) -> Floats | None:
        """Return a dense table's values; None if they are as they were."""
        begin = time.perf_counter()
        known = self._known.get(table)
        pulled = self.group.pull_dense(table, known=known, round_number=round_number)
        self.times.pull_s += time.perf_counter() - begin
        self._known[table] = pulled
        return pulled.values if pulled.is_changed else None

    def _pushed(self, pending: pserver.PendingPush) -> None:
        """Count a push, and take in the staleness of those that were answered."""
        self._pushes += 1
        self._open.append(pending)
        while self._open and self._open[0].is_done:
            self.staleness.add(self._open.popleft().staleness())

    def _count_step(self, loss: float | None) -> None:
        """Count a step, and let the next heartbeat tell of it."""
        self._steps += 1
        self.group.report(step=self._steps, loss=loss)

    def _settle(self) -> None:
        """Wait until all pushes that left were answered."""
        while self._open:
            self.staleness.add(self._open.popleft().staleness())

    @override
    def flush(self) -> None:
        super().flush()
        self._settle()

    @override
    def finish(self) -> None:
        """Flush and leave. If the flush fails, the others see this trainer go when its lease ends."""
        self.flush()
        self.group.leave()

    @override
    def facts(self) -> dict[str, float]:
        """Return the watch list; see ``Mode.facts``."""
        return {
            **super().facts(),
            "steps": float(self._steps),
            "pushes": float(self._pushes),
            "merge_factor": self._steps / self._pushes if self._pushes else 0.0,
            "staleness_p50": float(self.staleness.quantile(0.5)),
            "staleness_p99": float(self.staleness.quantile(0.99)),
            "staleness_max": float(self.staleness.max),
            "pull_wait_s": self.times.pull_s,
            "push_wait_s": self.times.push_s,
        }
