"""Where pushed keys without a row pass admission, or are counted and dropped.

Rooms before and after: ``sparse`` sends every push through here if its admission is not ``always``;
``admission_filters`` decide, each key once however often it is in the push.

What always holds: ``judge`` changes nothing; ``let_in`` is called once a push, with what was judged.
Owner: the shard's owner thread.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pserver.arrays import Floats, Keys, RowIds
from pserver.kernel import rows
from pserver.kernel.dedupe import dedupe
from pserver.occurrences import NO_OCCURRENCES, Occurrences
from pserver.spec import TableSpec
from pserver.table.accessor import Accessor
from pserver.table.admission import make_admission, make_admission_rule
from pserver.table.admission_filters import AdmissionFilter, Admitted
from pserver.table.ctr import CtrSlab
from pserver.table.index import Index
from pserver.table.layout import AnySlab
from pserver.table.room import Room
from pserver.table.values import read_only


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """What becomes of a push.

    Attributes:
        kept: (V,) positions of the keys that have a row, or get one now.
        fresh: (W,) distinct keys without a row.
        said: of the fresh keys.
        admitted: (W,) which of them get a row.
    """

    kept: RowIds
    fresh: Keys
    said: Occurrences
    admitted: Admitted

    @property
    def new_keys(self) -> Keys:
        """Return the distinct keys that get a row, read-only."""
        return read_only(self.fresh[self.admitted])

    @property
    def waiting_keys(self) -> Keys:
        """Return the distinct keys that do not, read-only."""
        return read_only(self.fresh[~self.admitted])


class Gate:
    """A table's filter before its index.

    Attributes:
        filter: what decides.
        keys_dropped: keys of pushes whose gradient was dropped, each once a push.
    """

    def __init__(self, chosen: AdmissionFilter, index: Index) -> None:
        """Take the filter and the index."""
        self.filter = chosen
        self.keys_dropped = 0
        self._index = index

    def judge(self, keys: Keys, said: Occurrences, *, version: int) -> Judgement | None:
        """Return what becomes of a push, or None if all of its keys have a row.

        Args:
            keys: (U,) repeats allowed, read-only.
            said: of the keys.
            version: pushes applied to the table before.
        """
        row_ids = np.empty(keys.size, np.int64)
        if not self._index.find(keys, row_ids):
            return None
        where = np.flatnonzero(row_ids < 0)
        distinct = dedupe(keys[where])
        told = said.take(where)
        if distinct.keys.size < where.size:
            told = told.summed(distinct.inverse, distinct.keys.size)
        fresh = read_only(distinct.keys)
        admitted = self.filter.admits(fresh, told, version=version)
        is_kept = row_ids >= 0
        is_kept[where] = admitted[distinct.inverse]
        return Judgement(np.flatnonzero(is_kept), fresh, told, admitted)

    def check_room(self, keys: Keys, said: Occurrences, room: Room, *, version: int) -> None:
        """Refuse a push whose new rows, or keys that wait, would not fit; as ``judge`` for the rest.

        Raises:
            TableFullError: nothing was changed.
        """
        if keys.size <= min(room.after(keys.size), self.filter.room):
            return
        judged = self.judge(read_only(keys), said, version=version)
        if judged is not None:
            room.check(judged.new_keys)
            self.filter.check_room(judged.waiting_keys)

    def let_in(
        self,
        keys: Keys,
        grads: Floats,
        said: Occurrences,
        slab: AnySlab,
        create: Callable[[Keys], RowIds],
        *,
        version: int,
    ) -> tuple[Keys, Floats, Occurrences]:
        """Give rows to keys that are admitted now, count those that are not, and drop their gradients.

        Args:
            keys: (U,) repeats allowed, read-only.
            grads: (U * dim,) read-only.
            said: of the keys.
            slab: of the table.
            create: gives keys rows.
            version: pushes applied to the table before.

        Returns:
            What is left of the push: keys that have a row, read-only, gradients and what is said.
        """
        judged = self.judge(keys, said, version=version)
        if judged is None:
            return keys, grads, said
        self.keys_dropped += judged.waiting_keys.size
        before = self.filter.count(judged.fresh, judged.said, judged.admitted)
        row_ids = create(judged.new_keys)
        if before.shows.size and isinstance(slab, CtrSlab):
            slab.remember(row_ids, before)
        kept = np.empty(judged.kept.size * slab.dim, np.float32)
        rows.take(grads, slab.dim, judged.kept, kept)
        return read_only(keys[judged.kept]), read_only(kept), said.take(judged.kept)


def make_gate(spec: TableSpec, accessor: Accessor, index: Index) -> Gate | None:
    """Return the gate of a table, or None where every key gets a row.

    Raises:
        ConfigError: the system refused the address space.
    """
    rule = make_admission_rule(spec.admission, accessor)
    chosen = make_admission(rule, accessor, spec)
    if chosen is None:
        return None
    # On nothing, so that no request waits for a compiler.
    nothing = read_only(dedupe(np.empty(0, np.uint64)).keys)
    admitted = chosen.admits(nothing, NO_OCCURRENCES, version=0)
    chosen.count(nothing, NO_OCCURRENCES, admitted)
    none = read_only(np.empty(0, np.float32))
    rows.take(none, 1, np.empty(0, np.int64), np.empty(0, np.float32))
    return Gate(chosen, index)
