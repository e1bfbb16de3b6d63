"""What a table does to keep its size: ages of its rows, eviction, and the day of the last shrink.

Rooms before and after: ``sparse`` tells of rows and asks for room; ``ages`` remembers, ``eviction``
chooses; ``shrink`` walks; checkpoints take and give ``numbers``.

What always holds: a table whose spec asks for none of it keeps no word of any row, and each call here
costs one comparison. Owner: the shard's owner thread.
"""

from collections.abc import Callable, Mapping

import numpy as np

from pserver.arrays import Floats, Keys, RowIds
from pserver.errors import ConfigError
from pserver.kernel import ages as kernel
from pserver.placement import NUM_PARTITIONS
from pserver.spec import TableSpec
from pserver.table.accessor import make_accessor
from pserver.table.ages import SEEN_DAY, Ages
from pserver.table.ctr import CtrSlab
from pserver.table.eviction import Eviction, Hand, make_eviction_rule
from pserver.table.fields import Field, Fields
from pserver.table.index import Index
from pserver.table.layout import AnySlab

INDEX_BYTES = 36
"""Of a row's share of the index: 16 bytes a bucket, 45 % of which are filled on average over the
partitions, which double at different times. A bound in bytes counts with it, so that it is the same
number of rows whenever the index last grew."""


class Keeping:
    """The part of one table.

    Attributes:
        fields: the words that each row needs.
        ages: of the rows; None where nobody asks.
        eviction: what falls out; None for nothing.
        day: of data, of the last shrink that began; 0 before the first.
        gap: days between that one and the one before; 1 for the first.
        next_partition: of a shrink that is under way; ``NUM_PARTITIONS`` if none is.
        shrunk: rows that shrinks removed so far.
        on_erase: is told of keys that the table removes, but not of a clear.
    """

    def __init__(self, spec: TableSpec) -> None:
        """Read the spec.

        Raises:
            ConfigError: its rule of eviction is unknown, lacks a limit, or asks for scores that rows do
                not have; or days are given in two places.
        """
        self._accessor = make_accessor(spec.accessor)
        rule = make_eviction_rule(
            spec.evict, is_ctr=self._accessor.is_ctr, where=f"table {spec.name!r}: evict"
        )
        if spec.ttl_days and self._accessor.is_ctr:
            raise ConfigError(
                f"table {spec.name!r}: ttl_days is for the accessor plain; rows of ctr go by its "
                "delete_after_unseen_days"
            )
        self.fields: tuple[Field, ...] = rule.fields + ((SEEN_DAY,) if spec.ttl_days else ())
        self.eviction = Eviction(rule) if rule.name != "none" else None
        self.ages = Ages(half_life=rule.half_life) if self.fields else None
        self.day, self.gap = 0, 1
        self.next_partition = NUM_PARTITIONS
        self.shrunk = 0
        self.on_erase: Callable[[Keys], None] = _nobody
        self._has_changed = False

    def check_capacity(self, spec: TableSpec) -> None:
        """Refuse a table that would be full before rows can fall out; see ``EvictionRule``."""
        if self.eviction is not None:
            self.eviction.rule.check_capacity(
                spec.capacity_max, row_bytes=self.row_bytes, where=f"table {spec.name!r}: evict"
            )

    def use(self, fields: Fields, slab: AnySlab, index: Index) -> None:
        """Take the memory of a table that has no rows yet, or none any more."""
        self._row_bytes = slab.row_bytes + fields.row_bytes
        self._marks, self._index, self._fields = slab.marks, index, fields
        self._second_part = slab if isinstance(slab, CtrSlab) else None
        if self.ages is not None:
            self.ages.use(fields)
        if self.eviction is not None:
            self.eviction.hand = (0, 0)

    def begin(self, row_ids: RowIds) -> None:
        """Note (U,) rows that are new."""
        if self.ages is not None and row_ids.size:
            self.ages.begin(row_ids)
            self._has_changed = True

    def wrote(self, row_ids: RowIds) -> None:
        """Note (U,) rows that were written."""
        if self.ages is not None and row_ids.size:
            self.ages.wrote(row_ids)
            self._has_changed = True

    def settle(self, row_ids: RowIds, erase: Callable[[Keys], int]) -> None:
        """End a command: let rows fall out if there are too many, and let the clock go on.

        Args:
            row_ids: (U,) of the command; they stay.
            erase: removes keys.
        """
        if not self._has_changed or self.ages is None:
            return
        self._has_changed = False
        if self.eviction is not None and self.eviction.is_over(self):
            kernel.mark(self._marks, row_ids)
            num_made = row_ids.size
            self.eviction.make_room(self, self.ages, self._marks, erase, num_made=num_made)
            kernel.unmark(self._marks, row_ids)
        self.ages.clock += 1

    def compile(self) -> None:
        """Run every kernel on nothing, so that no request waits for a compiler."""
        keys, row_ids, hand = self._index.walk((0, 0), 0)
        assert hand == (0, 0)
        if self.ages is not None:
            self.ages.begin(row_ids)
            self.ages.wrote(row_ids)
        if self.ages is not None and self.eviction is not None:
            worths = np.empty(0, np.uint32)
            self.ages.ranks(self.eviction.kind, keys, row_ids, worths, self._marks)
        kernel.mark(self._marks, row_ids)
        kernel.unmark(self._marks, row_ids)

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row, with its share of the index."""
        return self._row_bytes + INDEX_BYTES

    @property
    def num_rows(self) -> int:
        """Return the rows alive."""
        return self._index.num_rows

    @property
    def live_bytes(self) -> int:
        """Return the bytes of rows alive, with their second parts and their share of the index."""
        second = self._second_part
        extra = second.num_embedx * second.embedx_bytes if second is not None else 0
        return self.num_rows * self.row_bytes + extra

    def bytes_of(self, row_ids: RowIds) -> int:
        """Return the bytes of (U,) rows, counted like ``live_bytes``."""
        second, extra = self._second_part, 0
        if second is not None:
            num_embedx = int(np.count_nonzero(self._fields.view("embedx")[row_ids]))
            extra = num_embedx * second.embedx_bytes
        return row_ids.size * self.row_bytes + extra

    def scores(self, row_ids: RowIds) -> Floats:
        """Return the (U,) scores of rows of ctr."""
        shows, clicks = (
            self._fields.view(name)[row_ids].astype(np.float64) for name in ("show", "click")
        )
        return self._accessor.scores(shows, clicks).astype(np.float32)

    def walk(self, hand: Hand, count: int) -> tuple[Keys, RowIds, Hand]:
        """Return the next rows under a hand, at most ``count``, and where it is then."""
        return self._index.walk(hand, count)

    def gap_to(self, day: int) -> int:
        """Return the days from the last shrink to a later one."""
        return day - self.day if self.day else 1

    @property
    def evicted(self) -> int:
        """Return the rows that fell out so far."""
        return 0 if self.eviction is None else self.eviction.evicted

    def numbers(self) -> dict[str, int]:
        """Return all that a table remembers here beside its rows, for ``restore``."""
        partition, bucket = (0, 0) if self.eviction is None else self.eviction.hand
        return {
            "clock": 0 if self.ages is None else self.ages.clock,
            "hand_partition": partition,
            "hand_bucket": bucket,
            "day": self.day,
            "gap": self.gap,
            "next_partition": self.next_partition,
        }

    def restore(self, numbers: Mapping[str, int]) -> None:
        """Take what ``numbers`` returned."""
        if self.ages is not None:
            self.ages.clock = numbers["clock"]
        if self.eviction is not None:
            self.eviction.hand = (numbers["hand_partition"], numbers["hand_bucket"])
        self.day, self.gap = numbers["day"], numbers.get("gap", 1)
        self.next_partition = numbers["next_partition"]


def _nobody(_: Keys) -> None:
    """Tell nobody."""
