"""The rows that a trainer of geo mode keeps: fetched on first use, and told of before they leave.

Rooms before and after: ``geo`` pulls and steps rows through this in the training thread; ``geo_round``
names what it reads again, and settles it; behind both are ``pserver.LocalTable`` and the client.

What always holds:
    * A row that leaves is clean: what it had to tell was acknowledged by its server before.
    * A row that may have changed on the servers between its fetch and its admission is stale: the
      next round reads it again. So no change that a server knows of is missed for good.
    * Progress that was taken from a row is in a ``DeltaPush``, kept until it is acknowledged.
Owner: the training thread; ``lock`` goes with the tables, for the thread of a round.
"""

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

import pserver
from trainer.modes.base import Floats, Keys

EVICT_SHARE: Final = 16
"""A full cache gives up one row in 16 at once, those used longest ago: a step that fetches few rows
then waits for a push that they make room for once in many steps."""


class CachePull:
    """Rows of a coming step: those that the cache lacks are on their way.

    Attributes:
        missing: keys by table.
        is_stale: what comes may be out of date. Written under the cache's lock.
    """

    def __init__(
        self, cache: "GeoCache", keys: Mapping[str, Keys], missing: Mapping[str, Keys]
    ) -> None:
        """Take what a step needs and what of it is missing; ``send`` asks for that."""
        self.missing = missing
        self.is_stale = False
        self._cache = cache
        self._keys = keys

    def send(self) -> None:
        """Ask the servers, without waiting."""
        self._pending = self._cache.client.start_pull(self.missing)

    def result(self) -> list[Floats]:
        """Wait for the rows, give them a place, and return (U, dim) weights of each table."""
        return self._cache.take_in(self, self._keys)

    def weights(self) -> dict[str, Floats]:
        """Wait for the (V, dim) weights of the missing keys."""
        return dict(zip(self.missing, self._pending.result(), strict=True))


class GeoCache:
    """Local copies of tables, of ``rows_max`` rows each.

    Attributes:
        client: the connection.
        tables: the copies by name.
        lock: held by whoever touches the tables.
        hits, misses: keys that were here, or were not, when a step asked for them.
        evicted: rows that left.
    """

    def __init__(
        self, client: pserver.Client, *, rows_max: int, scale: Callable[[], float]
    ) -> None:
        """Begin without tables.

        Args:
            client: not closed by the cache.
            rows_max: rows that are kept of a table at most.
            scale: what progress is multiplied by when it is told.
        """
        self.client = client
        self.tables: dict[str, pserver.LocalTable] = {}
        self.lock = threading.Lock()
        self.hits = self.misses = self.evicted = 0
        self._rows_max = rows_max
        self._scale = scale
        self._pulls: weakref.WeakSet[CachePull] = weakref.WeakSet()
        self._fresh: dict[str, list[Keys]] = {}  # admitted since a round chose what to read again
        self._leaving: list[pserver.DeltaPush] = []

    def create(self, spec: pserver.TableSpec) -> None:
        """Keep a copy of a table; fine if there is one."""
        if spec.name not in self.tables:
            self.tables[spec.name] = pserver.LocalTable(spec, rows_max=self._rows_max)

    # --- steps, in the training thread --------------------------------------------------------

    def start_pull(self, keys: Mapping[str, Keys]) -> CachePull:
        """Ask the servers for rows that are not here, without waiting.

        Args:
            keys: (U,) distinct keys by table.

        Raises:
            pserver.ShapeError: the cache cannot hold the rows of one step.
        """
        missing = {}
        for name, wanted in keys.items():
            if wanted.size > self._rows_max:
                raise pserver.ShapeError(
                    f"table {name!r}: a step has {wanted.size} distinct keys, and the cache of geo "
                    f"mode holds {self._rows_max} rows; raise --geo-cache-rows"
                )
            with self.lock:
                lacking = wanted[self.tables[name].missing(wanted)]
            if lacking.size:
                missing[name] = lacking
        return self._start(keys, missing)

    def take_in(self, pull: CachePull, keys: Mapping[str, Keys]) -> list[Floats]:
        """Give what a pull brought a place, and return (U, dim) weights of each table.

        A row that came meanwhile stays as it is; one that left meanwhile is fetched again.

        Raises:
            pserver.PserverError: as a pull does, or as telling of a row that had to leave.
        """
        came = pull.weights()
        for name, wanted in keys.items():
            brought = (pull.missing[name], came[name]) if name in came else None
            self._admit(name, wanted, pull, brought)
        self._end(pull)
        with self.lock:
            return [self.tables[name].read(wanted) for name, wanted in keys.items()]

    def step(self, name: str, keys: Keys, grads: Floats) -> None:
        """Apply one step of the table's optimizer here, to rows that are fetched if they left.

        Raises:
            pserver.NotFiniteError: a gradient is no number; the step was not taken.
        """
        table = self.tables[name]
        with self.lock:
            is_here = table.missing(keys).size == 0
        if not is_here:
            self.start_pull({name: keys}).result()
        with self.lock:
            table.step(keys, grads)

    def deliver_leaving(self) -> None:
        """Send again what an error kept from being acknowledged when rows were to leave.

        Raises:
            pserver.PserverError: it failed again; it is kept.
        """
        while self._leaving:
            self._leaving[0].deliver()
            del self._leaving[0]

    # --- rounds -------------------------------------------------------------------------------

    def take_all(self) -> dict[str, tuple[Keys, Floats]]:
        """Take the progress of all rows, scaled; tables without any are left out."""
        scale = np.float32(self._scale())
        with self.lock:
            taken = {name: table.take_all() for name, table in self.tables.items()}
        return {name: (keys, deltas * scale) for name, (keys, deltas) in taken.items() if keys.size}

    def take_stale(self) -> dict[str, Keys]:
        """Return the keys of stale rows by table; they are no longer stale."""
        with self.lock:
            return {name: table.take_stale() for name, table in self.tables.items()}

    def choose(self, name: str, changed: pserver.ChangedKeys) -> Keys:
        """Return which changed keys have rows here, and note what comes in from now on.

        Whatever is on its way now may have been read before the change.
        """
        with self.lock:
            table = self.tables[name]
            for pull in self._pulls:
                pull.is_stale = True
            self._fresh[name] = []
            if changed.is_all:
                return table.all_keys()
            return np.delete(changed.keys, table.missing(changed.keys))

    def settle(self, name: str, keys: Keys, values: Floats) -> None:
        """Take over values that were read after ``choose``; rows that came since are newer.

        Args:
            name: of the table.
            keys: (U,) distinct.
            values: (U, dim) float32.
        """
        with self.lock:
            fresh = self._fresh.pop(name, [])
            if fresh:
                is_old = np.isin(keys, np.concatenate(fresh), invert=True)
                keys, values = keys[is_old], values[is_old]
            self.tables[name].settle(keys, values.reshape(-1))

    # --- inside -------------------------------------------------------------------------------

    def _start(self, keys: Mapping[str, Keys], missing: Mapping[str, Keys]) -> CachePull:
        pull = CachePull(self, keys, missing)
        with self.lock:
            self._pulls.add(pull)  # first: what happens while it is on its way concerns it
        pull.send()
        return pull

    def _end(self, pull: CachePull) -> None:
        with self.lock:
            self._pulls.discard(pull)

    def _admit(
        self, name: str, keys: Keys, pull: CachePull, brought: tuple[Keys, Floats] | None
    ) -> None:
        """See that every key of a step has a row here."""
        table = self.tables[name]
        with self.lock:
            lacking = keys[table.missing(keys)]
            num_here = keys.size - lacking.size
            self.hits += num_here
            self.misses += lacking.size
            if lacking.size == 0:
                return
            table.use(keys)  # what is here of this step is the last to leave
            over = table.num_rows + lacking.size - self._rows_max
            spare = table.num_rows - num_here
        if over > 0:
            self._evict(name, min(spare, max(over, self._rows_max // EVICT_SHARE)))
        if brought is not None:
            is_lacking = np.isin(brought[0], lacking)
            some = brought[0][is_lacking]
            self._place(name, some, brought[1][is_lacking], pull)
            lacking = np.setdiff1d(lacking, some, assume_unique=True)
        if lacking.size:  # left since the pull was sent, or was not asked for
            late = self._start({}, {name: lacking})
            self._place(name, lacking, late.weights()[name], late)
            self._end(late)

    def _place(self, name: str, keys: Keys, weights: Floats, pull: CachePull) -> None:
        """Give fetched rows a place."""
        with self.lock:
            self.tables[name].admit(keys, weights.reshape(-1), is_stale=pull.is_stale)
            if name in self._fresh:
                self._fresh[name].append(keys)

    def _evict(self, name: str, count: int) -> None:
        """Let the rows go that were used longest ago, once the servers have what they did."""
        table = self.tables[name]
        with self.lock:
            leaving = table.oldest(count)
            keys, deltas = table.take(leaving)
            table.mark_stale(keys)  # for those that stay because an error came
        if keys.size:
            scaled = deltas * np.float32(self._scale())
            push = self.client.geo.push({name: (keys, scaled)}, {}, ends_window=False)
            self._leaving.append(push)
        self.deliver_leaving()
        with self.lock:
            table.drop(leaving)
            self.evicted += leaving.size
            for pull in self._pulls:
                if name in pull.missing and np.isin(keys, pull.missing[name]).any():
                    pull.is_stale = True  # it may bring the row as it was before
