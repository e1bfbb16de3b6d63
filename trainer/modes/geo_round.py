"""One exchange of geo mode: tell the servers what was done here, learn what others did.

Rooms before and after: ``geo`` makes a round of what the tables had to tell, runs it in a thread while
training goes on, and settles it between two steps; ``geo_cache`` holds the rows.

A round, in order: the differences are delivered to every server and acknowledged; the servers name the
keys that others wrote to; those that have a row here are read, with the rows that were told of; dense
tables are read. Reading comes after the acknowledgement, so what is read holds what was told.

What always holds: a round that failed is run again as it is: what was acknowledged is not sent
again, and what was to be read is still to be read.
"""

import threading
from collections.abc import Mapping

import numpy as np

import pserver
from trainer.modes.base import Floats
from trainer.modes.geo_cache import GeoCache

Marks = dict[str, pserver.Marks]
"""By table: how far the servers' change logs are known. Owner: the round that runs."""


class Round:
    """One exchange. Made and settled in the training thread; ``run`` is for any, one at a time."""

    def __init__(
        self,
        cache: GeoCache,
        group: pserver.Group,
        marks: Marks,
        dense: Mapping[str, Floats],
        known: dict[str, pserver.DensePulled],
    ) -> None:
        """Take all progress of the cache's rows.

        Args:
            cache: the rows.
            group: this trainer's place, which holds it back if it is too far ahead.
            marks: read and moved on.
            dense: scaled differences of the dense tables.
            known: dense tables as they were last read; renewed.
        """
        self._cache = cache
        self._group = group
        self._marks = marks
        self._known = known
        deltas = cache.take_all()
        self._push = cache.client.geo.push(deltas, dense)
        self._dense = list(dense)
        self._reread = {
            name: np.union1d(deltas[name][0] if name in deltas else stale[:0], stale)
            for name, stale in cache.take_stale().items()
        }
        self._values: dict[str, Floats] = {}

    def run(self) -> None:
        """Do the exchange.

        Raises:
            pserver.PserverError: it can be run again.
        """
        client = self._cache.client
        self._push.deliver()
        for name, before in self._reread.items():
            changed = client.geo.changed(name, self._marks.get(name))
            self._reread[name] = np.union1d(before, self._cache.choose(name, changed))
            self._marks[name] = changed.marks
        # Rows that are gone from the servers are told of as changed: to read them makes none anew.
        values = self._group.start_peek(self._reread).result()
        self._values = dict(zip(self._reread, values, strict=True))
        for table in self._dense:
            known = self._known.get(table)
            self._known[table] = self._group.pull_dense(table, known=known)

    def settle(self, dense: Mapping[str, pserver.LocalDense]) -> None:
        """Take over what was read. The round is over.

        Args:
            dense: the local vectors.
        """
        for name, keys in self._reread.items():
            self._cache.settle(name, keys, self._values[name])
        for table in self._dense:
            dense[table].settle(self._known[table].values)


class Running:
    """A round in a thread of its own, which does not keep a program from ending."""

    def __init__(self, work: Round) -> None:
        """Start it."""
        self._error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, name="trainer-geo", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Return whether it came to its end, good or bad."""
        return not self._thread.is_alive()

    def result(self) -> None:
        """Wait for its end.

        Raises:
            Exception: what it raised.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        """Be the thread."""
        try:
            self._work.run()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error
