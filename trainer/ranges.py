"""Training rows in leased ranges: read ahead in one thread, reported when trained in another.

Rooms before and after: ``job`` makes a source with the group's leases and the run's data; ``loop`` reads its
batches; after each step ``job`` says so here, and the last step of a range reports it.

What always holds:
    * A range is reported when all its pushes are applied, or parked for their round: the mode is flushed
      before. So a range that a dead trainer held goes to another one, and no row is lost.
    * A trainer that dies after it reported its ranges has its rows counted once; one that dies while it
      holds a range has what it pushed of it trained on again by whoever gets it.
    * While others train on the last ranges there are batches without samples: in rounds, where nobody
      may stay away, one a round; otherwise one, after which the loop has trained on all that it has,
      and the source waits.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

import pserver
from trainer.data import Data
from trainer.dataset import Batch

RANGE_BATCHES_MAX = 64
"""Batches of a range at most, when nothing is said: what is trained on again if a trainer dies."""

RANGES_A_TRAINER = 10
"""Ranges of an epoch that each trainer gets at least, where there are rows for it: so the last ones to
finish wait for a tenth of a share at most."""


def choose_range_rows(rows: int, *, batch_size: int, trainers: int) -> int:
    """Return the rows of a range, whole batches where there are enough rows.

    >>> choose_range_rows(1_000_000, batch_size=100, trainers=4)
    6400
    >>> choose_range_rows(10_000, batch_size=100, trainers=4)
    300
    >>> choose_range_rows(50, batch_size=100, trainers=4)
    50
    """
    fair = -(-rows // (RANGES_A_TRAINER * trainers))
    batches = min(RANGE_BATCHES_MAX, max(1, -(-fair // batch_size)))
    return min(rows, batches * batch_size)


class RangeSource:
    """The batches of one trainer's leased ranges.

    ``batches`` is the reading thread's, ``trained`` the training thread's; ``_ends`` is shared, and a
    deque is safe for one that appends and one that pops.
    """

    def __init__(self, leases: pserver.Leases, data: Data, *, epochs: int, in_rounds: bool) -> None:
        """Begin with no range.

        Args:
            leases: of the trainer's place in its group.
            data: the rows.
            epochs: passes over them.
            in_rounds: whether a step waits for one of every trainer, so that nobody may stay away.
        """
        self._leases = leases
        self._data = data
        self._epochs = epochs
        self._in_rounds = in_rounds
        self._ends: deque[tuple[int, int] | None] = deque()  # of each batch: what its step ends
        self.again = 0
        """Ranges that another trainer trains on too, since this one was taken for gone meanwhile."""

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of all epochs.

        Raises:
            pserver.PserverError: shard 0 does not answer, or the trainers disagree on the rows.
            trainer.DataError: the rows cannot be read.
        """
        for epoch in range(self._epochs):
            self._data.begin_pass()
            may_wait = False
            while (found := self._leases.next_range(epoch, may_wait=may_wait)) != "over":
                if isinstance(found, str):
                    yield from self._idle()
                    may_wait = not self._in_rounds
                else:
                    yield from self._range(epoch, found)
                    may_wait = False

    def trained(self, flush: Callable[[], None]) -> None:
        """Say that the next batch was trained on; report its range if that was the last of it.

        Args:
            flush: waits until all pushes so far are applied.
        """
        end = self._ends.popleft()
        if end is not None:
            flush()
            self._report(*end)

    def _range(self, epoch: int, found: pserver.RowRange) -> Iterator[Batch]:
        is_empty = True
        for batch, is_last in _with_last(self._data.train(found.begin, found.end)):
            is_empty = False
            self._ends.append((epoch, found.number) if is_last else None)
            yield batch
        if is_empty:  # bad lines only
            self._report(epoch, found.number)

    def _report(self, epoch: int, number: int) -> None:
        self.again += not self._leases.report(epoch, number)

    def _idle(self) -> Iterator[Batch]:
        """Yield a batch of no samples; one that is a step ends no range."""
        if self._in_rounds:
            self._ends.append(None)
        yield Batch(
            keys=np.empty(0, np.uint64),
            offsets=None,
            num_slots=self._data.num_slots,
            dense=np.empty((0, self._data.num_dense), np.float32),
            labels=np.empty(0, np.float32),
            teacher=None,
            position=0,
        )


def _with_last(batches: Iterable[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Yield each batch and whether it is the last."""
    before: Batch | None = None
    for batch in batches:
        if before is not None:
            yield before, False
        before = batch
    if before is not None:
        yield before, True
