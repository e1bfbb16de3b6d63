"""Mode ``half_async``: a trainer adds up a group of steps and pushes them as one; dense values follow.

Rooms before and after: see ``base``; a merged push is that of ``asynchronous``. A group leaves when it has
``max_merge_num`` steps, or when its first step is ``flush_interval_ms`` old, whatever comes first.

What always holds:
    * Dense values are pulled after each group that left, and not within one: the steps of a group are
      computed from the same ones.
    * A group that is old leaves though no further step ends: a thread of its own looks after it.
Owner: the training thread; what is merged is shared with that thread, under ``_lock``.
"""

import threading
import time
from collections.abc import Mapping
from typing import Literal

from typing_extensions import override

import pserver
from trainer.modes.asynchronous import AsyncMode
from trainer.modes.base import Floats, Keys, Pending, StepGradients


class HalfAsyncMode(AsyncMode):
    """Groups of steps. Owner: the training thread."""

    name = "half_async"

    def __init__(
        self,
        client: pserver.Client,
        settings: pserver.GroupSettings,
        *,
        clip_norm: float | None = None,
        max_merge_num: int = 20,
        merge: Literal["sum", "mean"] = "sum",
        flush_interval_s: float = 0.05,
    ) -> None:
        """Join the group; see ``AsyncMode``.

        Args:
            client: the connection.
            settings: of the group.
            clip_norm: see ``Mode``.
            max_merge_num: steps of a group at the most.
            merge: whether a group counts as the sum of its steps or as their mean.
            flush_interval_s: age of its first step at which a group leaves.
        """
        super().__init__(
            client, settings, clip_norm=clip_norm, max_merge_num=max_merge_num, merge=merge
        )
        self._interval_s = flush_interval_s
        self._lock = threading.Condition()
        self._due_s: float | None = None  # when the group leaves; under _lock, as the next three
        self._is_over = False
        self._failure: Exception | None = None
        self._left = 0  # groups that left
        self._dense_after: dict[str, int] = {}  # of each dense table, the groups at its last pull
        self._thread = threading.Thread(target=self._watch, name="trainer-groups", daemon=True)
        self._thread.start()

    @override
    def start_pull(self, keys: Mapping[str, Keys]) -> Pending:
        with self._lock:
            self._check()
        return super().start_pull(keys)

    @override
    def pull_dense(self, table: str) -> Floats | None:
        with self._lock:
            self._check()
            left = self._left
        if self._dense_after.get(table) == left:
            return None
        self._dense_after[table] = left
        return super().pull_dense(table)

    @override
    def _send(self, step: StepGradients, *, samples: int, loss: float | None) -> None:
        with self._lock:
            self._check()
            self._merged.add(step, self._pulled)
            if self._merged.steps >= self._max_merge_num:
                self._send_merged()
            elif self._due_s is None:
                self._due_s = time.monotonic() + self._interval_s
                self._lock.notify()
        self._count_step(loss)

    @override
    def _send_merged(self) -> None:
        self._due_s = None
        self._left += self._merged.steps > 0
        super()._send_merged()

    @override
    def flush(self) -> None:
        with self._lock:
            self._check()
            super().flush()

    @override
    def finish(self) -> None:
        with self._lock:
            self._is_over = True
            self._lock.notify()
        self._thread.join()
        super().finish()

    def _check(self) -> None:
        """Raise what the thread could not send."""
        if self._failure is not None:
            raise self._failure

    def _watch(self) -> None:
        """Be the thread: send each group that is old."""
        with self._lock:
            while not self._is_over:
                if self._due_s is None:
                    self._lock.wait()
                elif (left_s := self._due_s - time.monotonic()) > 0.0:
                    self._lock.wait(left_s)
                else:
                    self._send_old()

    def _send_old(self) -> None:
        try:
            self._send_merged()
        except Exception as error:  # noqa: BLE001 - raised by the training thread's next call
            self._failure = error
            self._is_over = True
