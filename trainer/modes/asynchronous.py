"""Mode ``async``: a step's push leaves when the step ends and is applied when it arrives.

Rooms before and after: see ``base``. Nothing waits for other trainers unless ``max_staleness`` holds
back the fastest.
"""

import contextlib
from collections.abc import Mapping

from typing_extensions import override

import pserver
from trainer.modes.base import Floats, Keys, Mode, Pending, StepGradients


class AsyncMode(Mode):
    """Pushes on their own. Owner: the training thread."""

    name = "async"

    def __init__(self, client: pserver.Client, *, clip_norm: float | None = None) -> None:
        """Take the connection; see ``Mode``."""
        super().__init__(client, clip_norm=clip_norm)
        self._dense: dict[str, pserver.DensePulled] = {}

    @override
    def create_dense(self, spec: pserver.DenseSpec, first: Floats) -> Floats:
        self.client.create_dense(spec)
        with contextlib.suppress(pserver.DenseInitError):  # another trainer's, or an earlier run's
            self.client.init_dense(spec.name, first)
        self._dense[spec.name] = self.client.pull_dense(spec.name)
        return self._dense[spec.name].values

    @override
    def start_pull(self, keys: Mapping[str, Keys]) -> Pending:
        return self.client.start_pull(keys)

    @override
    def pull_dense(self, table: str) -> Floats | None:
        pulled = self.client.pull_dense(table, known=self._dense.get(table))
        self._dense[table] = pulled
        return pulled.values if pulled.is_changed else None

    @override
    def _send(self, step: StepGradients, *, samples: int, loss: float | None) -> None:
        if step.sparse:
            self.client.start_push(step.sparse)
        for table, grads in step.dense.items():
            self.client.push_dense(table, grads)
