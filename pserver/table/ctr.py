"""The rows of the ctr accessor: a wide weight at once, and embedx for keys that deserve it.

Rooms before and after: ``sparse`` finds row ids and uses this as it uses a ``Slab``; each part is a slab
of its own with its own rule; ``fields`` has the statistics; ``kernel.ctr`` does the loops.

A push first counts: show, click, delta_score, unseen_days, slot. Then each part that the row has is
stepped. Then the rows whose score reached ``embedx_threshold`` get embedx, with first weights that this
push does not step. Until then embedx reads as 0 and has no bytes.

What always holds: an embedx is named by one row, or is in the free list; rows that are gone name none.
Owner: the shard's owner thread.

Source:
    MemorySparseTable::PushSparse and CtrCommonAccessor of PaddlePaddle, in that order.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pserver.arrays import Epochs, Floats, Keys, RowIds, Words
from pserver.kernel import ctr as kernel
from pserver.kernel import rows
from pserver.occurrences import Occurrences
from pserver.table.accessor import Accessor
from pserver.table.fields import Fields
from pserver.table.initializer import Initializer, make_initializer
from pserver.table.slab import Parts, Slab
from pserver.table.storage import AnyMapping
from pserver.table.values import read_only


class CtrSlab:
    """The arrays that hold the rows of a ctr table; see ``Slab`` for the methods.

    Attributes:
        wide: the first weight of each row, and its state.
        embedx: the other weights, and their state, with row ids of their own.
        dim: weights of a row, both parts.
        num_taken: row ids of embedx ever handed out.
    """

    def __init__(
        self,
        parts: tuple[Slab, Slab],
        fields: Fields,
        accessor: Accessor,
        rule: Initializer,
        *,
        dim: int,
    ) -> None:
        """Join the two parts.

        Args:
            parts: wide and embedx; of dim 1, embedx has room for none and is not looked at.
            fields: of the table; they begin with the words of the accessor.
            accessor: of the table.
            rule: of first weights.
            dim: weights of a row.
        """
        wide, embedx = parts
        assert list(fields.fields)[: len(accessor.fields)] == [f.name for f in accessor.fields]
        self.wide, self.embedx, self._fields, self._accessor = wide, embedx, fields, accessor
        self.dim = dim
        self.num_taken = self._num_free = 0
        self._coeffs = accessor.number("nonclk_coeff"), accessor.number("click_coeff")
        self._threshold = accessor.number("embedx_threshold") if dim > 1 else math.inf
        self._zeros = make_initializer("zeros", table="", seed=0)
        self._rule = rule
        self._wide_rule = self._zeros if accessor.values["wide_first"] == "zeros" else rule

    @property
    def epochs(self) -> Epochs:
        """Return the epoch of each row id."""
        return self.wide.epochs

    @property
    def free_rows(self) -> RowIds:
        """Return the free list of row ids."""
        return self.wide.free_rows

    @property
    def marks(self) -> Words:
        """Return the marks of row ids."""
        return self.wide.marks

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row without embedx."""
        return self.wide.row_bytes

    @property
    def mappings(self) -> list[AnyMapping]:
        """Return all memory of the rows."""
        return [*self.wide.mappings, *self.embedx.mappings]

    @property
    def file_row_bytes(self) -> int:
        """Return what of ``row_bytes`` lies on a file."""
        return self.wide.file_row_bytes

    @property
    def weight_max(self) -> float:
        """Return the largest magnitude of a weight that is assigned."""
        return min(self.wide.weight_max, self.embedx.weight_max)

    @property
    def embedx_bytes(self) -> int:
        """Return the bytes of an embedx: weights and state."""
        return self.embedx.row_bytes - self.embedx.epochs.itemsize  # its epochs are never touched

    @property
    def num_embedx(self) -> int:
        """Return the rows that have embedx."""
        return self.num_taken - self._num_free

    @property
    def extra_bytes(self) -> int:
        """Return the bytes of all embedx that there ever were at one time."""
        return self.num_taken * self.embedx_bytes

    @property
    def scales(self) -> bool:
        """Return whether a part's gradients are divided by the shows of their keys."""
        return self.wide.scales or self.embedx.scales

    @property
    def refusal(self) -> str:
        """Return why ``reserve`` granted less than was asked for."""
        return self.wide.refusal or self.embedx.refusal

    def reserve(self, num_rows: int) -> int:
        """Make room for row ids below ``num_rows``, each of which may get embedx in the next push."""
        granted = self.wide.reserve(num_rows)
        return min(granted, self.embedx.reserve(num_rows)) if self.dim > 1 else granted

    def gather(self, row_ids: RowIds, out: Floats) -> None:
        """Write the weights of the named rows, 0 for embedx that there is not."""
        wide = np.zeros(row_ids.size, np.float32)
        rest = np.zeros(row_ids.size * (self.dim - 1), np.float32)
        self.wide.gather(row_ids, wide)
        if self.dim > 1:
            self.embedx.gather(self.embedx_of(row_ids), rest)
        kernel.join(wide, rest, self.dim, out)

    def step(
        self, keys: Keys, row_ids: RowIds, grads: Floats, said: Occurrences, *, version: int
    ) -> None:
        """Count what the push says, step each part that a row has, and give embedx to rows due."""
        count, rest = row_ids.size, self.dim - 1
        shows = said.shown(count)
        embedx_ids, crossing = np.empty(count, np.int64), np.empty(count, np.int64)
        num_crossing = kernel.count(
            self._fields.words,
            self._fields.floats,
            self._fields.stride,
            row_ids,
            shows,
            said.clicked(count),
            said.slots,
            *self._coeffs,
            self._threshold,
            embedx_ids,
            crossing,
        )
        wide, embedx = np.empty(count, np.float32), np.empty(count * rest, np.float32)
        held_ids, held_shows = np.empty(count, np.int64), np.empty(count, np.float32)
        held = kernel.split(grads, self.dim, shows, embedx_ids, wide, embedx, held_ids, held_shows)
        self.wide.step(keys, row_ids, read_only(wide), Occurrences(shows=shows), version=version)
        if self.dim == 1:
            return
        self.embedx.step(
            read_only(keys[embedx_ids >= 0]),
            held_ids[:held],
            read_only(embedx[: held * rest]),
            Occurrences(shows=read_only(held_shows[:held])),
            version=version,
        )
        where = crossing[:num_crossing]
        self.embedx.write_first(self._rule, keys, where, self.take(row_ids[where]))

    def assign(self, row_ids: RowIds, weights: Floats) -> None:
        """Write weights, (U * dim,) read-only, into the named rows; state stays.

        A row without embedx gets one, with first state, unless all that is written there is 0: what
        was assigned is what is read.
        """
        block = weights.reshape(-1, self.dim)
        if rows.first_repeat(self.marks, row_ids) >= 0:  # the last one counts
            _, last = np.unique(row_ids[::-1], return_index=True)
            order = row_ids.size - 1 - last
            row_ids, block = row_ids[order], block[order]
        self.wide.assign(row_ids, _flat(block[:, 0]))
        held, embedx_ids = self._held(row_ids, block[:, 1:])
        if self.dim > 1:
            self.embedx.assign(embedx_ids, _flat(block[held, 1:]))

    def add(self, keys: Keys, row_ids: RowIds, deltas: Floats, *, version: int) -> None:
        """Add (U * dim,) read-only ``deltas`` to the weights; otherwise as ``step``; state stays.

        A row without embedx gets one that begins at 0, as it was read, unless only 0 is added.
        """
        block = deltas.reshape(-1, self.dim)
        self.wide.add(keys, row_ids, _flat(block[:, 0]), version=version)
        held, embedx_ids = self._held(row_ids, block[:, 1:])
        if self.dim > 1:
            picked = read_only(keys[held])
            self.embedx.add(picked, embedx_ids, _flat(block[held, 1:]), version=version)

    def write_first(self, rule: Initializer, keys: Keys, where: RowIds, row_ids: RowIds) -> None:
        """Write first weights and first state of new rows: the wide part."""
        del rule  # the one of the table, which this has
        self.wide.write_first(self._wide_rule, keys, where, row_ids)

    def preview_first(self, rule: Initializer, keys: Keys, where: RowIds, out: Floats) -> None:
        """Write what ``keys[where]`` read as before they have rows into the rows ``where``."""
        del rule
        wide = np.empty(keys.size, np.float32)
        self.wide.preview_first(self._wide_rule, keys, where, wide)
        block = out.reshape(keys.size, self.dim)
        block[where, 0] = wide[where]
        block[where, 1:] = 0.0

    def remember(self, row_ids: RowIds, before: Occurrences) -> None:
        """Let new rows begin with the shows and clicks that were counted of their keys before."""
        at, floats = row_ids * self._fields.stride, self._fields.floats
        shows, clicks = before.shows, before.clicks
        floats[at + kernel.SHOW], floats[at + kernel.CLICK] = shows, clicks
        wide = shows.astype(np.float64), clicks.astype(np.float64)
        floats[at + kernel.DELTA_SCORE] = kernel.score(*wide, *self._coeffs)

    def weights_of(self, row_id: int) -> Floats:
        """Return a copy of a row's weights, (dim,) float32."""
        out = np.empty(self.dim, np.float32)
        self.gather(np.array([row_id]), out)
        return out

    def state_of(self, row_id: int) -> dict[str, Floats]:
        """Return a copy of a row's state by name: of the wide part, and of the embedx if any."""
        parts = {f"wide.{name}": floats for name, floats in self.wide.state_of(row_id).items()}
        found = int(self.embedx_of(np.array([row_id]))[0])
        if found >= 0:
            state = self.embedx.state_of(found).items()
            parts |= {f"embedx.{name}": floats for name, floats in state}
        return parts

    def embedx_of(self, row_ids: RowIds) -> RowIds:
        """Return the (U,) row id of each row's embedx, or -1."""
        out = np.empty(row_ids.size, np.int64)
        kernel.embedx_of(self._fields.words, self._fields.stride, row_ids, out)
        return out

    def release(self, row_ids: RowIds) -> None:
        """Free the embedx of rows that are gone."""
        embedx_ids = self.embedx_of(row_ids)
        freed = embedx_ids[embedx_ids >= 0]
        self.embedx.free_rows[self._num_free : self._num_free + freed.size] = freed
        self._num_free += freed.size
        none = np.full(row_ids.size, -1)
        kernel.name_embedx(self._fields.words, self._fields.stride, row_ids, none)

    def blocks(self) -> list[tuple[NDArray[Any], Parts]]:
        """Return every array of rows but those of embedx, flat, with the parts of a row in it."""
        return self.wide.blocks()

    def check(self, row_ids: RowIds, num_rows: int) -> None:
        """Assert every invariant; ``row_ids`` are alive, ``num_rows`` were ever taken."""
        embedx_ids = self.embedx_of(row_ids)
        free = self.embedx.free_rows[: self._num_free]
        used = np.sort(np.concatenate([embedx_ids[embedx_ids >= 0], free]))
        assert np.array_equal(used, np.arange(self.num_taken))
        gone = np.setdiff1d(np.arange(num_rows), row_ids)
        assert np.all(self.embedx_of(gone) < 0)
        assert self.wide.is_finite(num_rows)
        assert self.embedx.is_finite(self.num_taken)

    def _held(self, row_ids: RowIds, block: Floats) -> tuple[NDArray[np.bool_], RowIds]:
        """Return which rows have embedx, and its row ids, after giving it where a number is not 0."""
        embedx_ids = self.embedx_of(row_ids)
        fresh = np.unique(row_ids[(embedx_ids < 0) & np.any(block != 0.0, axis=1)])
        if fresh.size:
            taken = self.take(fresh)
            nowhere = np.zeros(fresh.size, np.uint64)
            self.embedx.write_first(self._zeros, read_only(nowhere), np.arange(fresh.size), taken)
            embedx_ids = self.embedx_of(row_ids)
        held = embedx_ids >= 0
        return held, embedx_ids[held]

    def take(self, row_ids: RowIds) -> RowIds:
        """Give each of the named rows, which have none, the row id of an embedx; freed ones first."""
        again = min(row_ids.size, self._num_free)
        self._num_free -= again
        freed = self.embedx.free_rows[self._num_free : self._num_free + again]
        fresh = np.arange(self.num_taken, self.num_taken + row_ids.size - again)
        self.num_taken += fresh.size
        taken = np.concatenate([freed, fresh])
        kernel.name_embedx(self._fields.words, self._fields.stride, row_ids, taken)
        return taken


def _flat(block: Floats) -> Floats:
    """Return a block as a flat read-only array."""
    return read_only(np.ascontiguousarray(block).reshape(-1))
