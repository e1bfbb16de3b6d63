"""Mode ``geo``: each trainer trains rows of its own, and the servers add up the differences.

Rooms before and after: see ``base``. Rows live in ``geo_cache``, dense vectors in ``LocalDense``, and
every ``k_steps`` steps a ``geo_round`` tells the servers what was done and learns what others did.

What always holds:
    * Optimizers, their state and their learning-rate schedules are this trainer's own and count its
      own steps; only weights travel. The servers add, whatever the table's rule.
    * Sparse and dense differences of a window leave together, multiplied by the same factor:
      1 / trainers that are with the group when the window ends, or 1.
    * Training goes on while a round runs, and waits only when the next one is due before.
    * ``flush`` tells what is left of a window. When all trainers flushed, and then flush once
      more, the rows of each are those of the servers, to the bit.
Owner: the training thread.
"""

import time
from collections.abc import Mapping

import numpy as np
from typing_extensions import override

import pserver
from trainer.modes.base import Floats, Keys, Pending, StepGradients
from trainer.modes.geo_cache import GeoCache
from trainer.modes.geo_round import Marks, Round, Running
from trainer.modes.grouped import GroupMode
from trainer.strategy import Strategy


class GeoMode(GroupMode):
    """Local training with exchanges. Owner: the training thread."""

    name = "geo"

    def __init__(
        self, client: pserver.Client, settings: pserver.GroupSettings, strategy: Strategy
    ) -> None:
        """Join the group; there are no tables yet.

        Args:
            client: not closed by the mode.
            settings: of this trainer's place.
            strategy: k_steps, geo_average, geo_cache_rows and clip_norm are read.

        Raises:
            pserver.GroupError: another trainer has the id, or the group agrees on something else.
        """
        super().__init__(client, settings, clip_norm=strategy.clip_norm)
        self._k_steps = strategy.k_steps
        self._averages = strategy.geo_average == "trainers"
        self._cache = GeoCache(client, rows_max=strategy.geo_cache_rows, scale=self._scale)
        self._marks: Marks = {}
        self._dense: dict[str, pserver.LocalDense] = {}
        self._steps_open = 0  # of the window that is not told of yet
        self._round: Round | None = None
        self._running: Running | None = None

    def _scale(self) -> float:
        """Return what a difference is multiplied by."""
        return 1.0 / max(1, self.group.trainers_here) if self._averages else 1.0

    # --- tables -------------------------------------------------------------------------------

    @override
    def create_table(self, spec: pserver.TableSpec) -> pserver.TableSpec:
        """Make a sparse table, there and here.

        Raises:
            pserver.ConfigError: the servers would decide by pushes which rows there are, or what is
                in them; they see none in this mode.
        """
        for field, only in (("accessor", "plain"), ("admission", "always")):
            if getattr(spec, field) != only:
                raise pserver.ConfigError(
                    f"table {spec.name!r}: mode geo takes {field} {only}, got "
                    f"{getattr(spec, field)}: the servers see differences, and no gradients or shows"
                )
        made = self.client.create_table(spec)
        if made.name not in self._marks:  # from here on the servers note what others change
            self._marks[made.name] = self.client.geo.changed(made.name, None).marks
        self._cache.create(made)
        return made

    @override
    def create_dense(self, spec: pserver.DenseSpec, first: Floats) -> Floats:
        """Make a dense table, there and here."""
        values = super().create_dense(spec, first)
        self._dense[spec.name] = pserver.LocalDense(spec, values)
        return values

    # --- a step -------------------------------------------------------------------------------

    @override
    def start_pull(self, keys: Mapping[str, Keys]) -> Pending:
        return self._cache.start_pull(keys)

    @override
    def pull_dense(self, table: str) -> Floats | None:
        return self._dense[table].values()

    @override
    def _send(self, step: StepGradients, *, samples: int, loss: float | None) -> None:
        """Train here; end the window if it is full."""
        if self._running is not None and self._running.is_over:
            self._end_round()
        for table, (keys, grads, _) in step.sparse.items():
            self._cache.step(table, keys, grads)
        for table, grads in step.dense.items():
            self._dense[table].step(grads)
        self._steps_open += 1
        self._count_step(loss)
        if self._steps_open >= self._k_steps:
            self._end_round()
            self._start_round()

    # --- rounds -------------------------------------------------------------------------------

    def _start_round(self) -> None:
        """Take what there is to tell, and let a thread exchange it."""
        self._cache.deliver_leaving()
        scale = np.float32(self._scale())
        dense = {table: local.take() * scale for table, local in self._dense.items()}
        self._round = Round(self._cache, self.group, self._marks, dense, self._known)
        self._steps_open = 0
        self._running = Running(self._round)

    def _end_round(self) -> None:
        """Wait for the round that runs, if one does, and settle it.

        Raises:
            pserver.PserverError: it failed. It is run again by the next call.
        """
        if self._round is None:
            return
        begin = time.perf_counter()
        running = self._running or Running(self._round)
        self._running = None
        running.result()
        self.times.push_s += time.perf_counter() - begin
        self._round.settle(self._dense)
        self._round = None
        self._pushes += 1

    # --- the end ------------------------------------------------------------------------------

    @override
    def flush(self) -> None:
        """Tell the servers all that was done here, and take over what others did until now.

        Raises:
            pserver.PserverError: it failed; nothing is lost, and a later flush goes on with it.
        """
        self._end_round()
        self._start_round()
        self._end_round()

    @override
    def facts(self) -> dict[str, float]:
        """Return the watch list; a push is a round here, and a merge a window."""
        cache = self._cache
        asked = cache.hits + cache.misses
        return {
            **super().facts(),
            "cached_rows": float(sum(table.num_rows for table in cache.tables.values())),
            "cache_hit_share": cache.hits / asked if asked else 1.0,
            "evicted_rows": float(cache.evicted),
        }
