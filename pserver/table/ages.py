"""When the rows of a table were last written, and how often: the words that eviction and ttl read.

Rooms before and after: ``sparse`` tells which rows were made and written; ``eviction`` and ``shrink``
ask; ``kernel.ages`` says what each word means.

What always holds: reads are not told of and change nothing; the clock counts the commands that wrote,
so ages are the same in a replay. Owner: the shard's owner thread.
"""

import numpy as np

from pserver.arrays import Keys, RowIds, Uint32s, Words
from pserver.kernel import ages as kernel
from pserver.table.fields import Field, Fields

STAMP = Field("stamp", "uint32")
USES = Field("uses", "uint32")
SEEN_DAY = Field("seen_day", "uint32")

_ABSENT = -1


class Ages:
    """The ages of one table's rows.

    Attributes:
        clock: commands that made or wrote rows.
        half_life: of counts of uses, in commands.
    """

    def __init__(self, *, half_life: int) -> None:
        """Begin; ``use`` comes before all else."""
        self.clock = 0
        self.half_life = half_life

    def use(self, fields: Fields) -> None:
        """Take records, all of them new; which of the words they have decides what is kept."""
        self._fields = fields
        names = (STAMP.name, USES.name, SEEN_DAY.name)
        self._stamp_at, self._uses_at, self._seen_at = (
            fields.position(name) if name in fields.fields else _ABSENT for name in names
        )

    def begin(self, row_ids: RowIds) -> None:
        """Note (U,) rows that are new."""
        fields = self._fields
        kernel.begin(fields.words, fields.stride, self._stamp_at, row_ids, self.clock)

    def wrote(self, row_ids: RowIds) -> None:
        """Note (U,) distinct rows that were written."""
        kernel.wrote(
            self._fields.words,
            self._fields.stride,
            self._stamp_at,
            self._uses_at,
            self._seen_at,
            row_ids,
            self.clock,
            self.half_life,
        )

    def ranks(self, kind: int, keys: Keys, row_ids: RowIds, worths: Uint32s, marks: Words) -> Words:
        """Return the (U,) ranks of rows: lower ones go first; see ``kernel.ages.ranks``."""
        out = np.empty(keys.size, np.uint64)
        kernel.ranks(
            self._fields.words,
            self._fields.stride,
            self._stamp_at,
            self._uses_at,
            kind,
            self.clock,
            self.half_life,
            worths,
            marks,
            keys,
            row_ids,
            out,
        )
        return out

    def unseen(self, row_ids: RowIds, day: int) -> RowIds:
        """Return for how many of the days before ``day`` (U,) rows were not written.

        0 if they were since the last shrink. A row is unseen from the first shrink after its last
        write on.
        """
        seen = self._fields.view(SEEN_DAY.name)[row_ids].astype(np.int64)
        return np.where(seen > 0, day - seen, 0)

    def note_day(self, row_ids: RowIds, day: int) -> None:
        """Note that a day's shrink found (U,) rows written since the one before."""
        self._fields.view(SEEN_DAY.name)[row_ids] = day
