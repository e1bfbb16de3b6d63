"""Which rows fall out of a table that is over its limit: ``lru``, ``lfu`` or ``score``.

Rooms before and after: ``sparse`` tells which rows were made or written, and asks for room after each
command that made some; ``kernel.ages`` ranks rows; ``index`` is walked for candidates.

How. A hand goes round the index, partition by partition. Where a table is over its limit, the next
``SAMPLE`` rows under the hand are ranked exactly, and the lowest eighth of them goes, until the table is
``_slack`` under its limit, so that not every request has to look. Keys lie in the index by their hash,
so a sample is a random one: what goes is, but for chance, of the lowest eighth of the table. A table of
at most ``SAMPLE`` rows is ranked whole and exactly.

What always holds:
    * After a command the table is within its limit, unless the rows of that command alone are more;
      while it runs, it is over by the rows that it makes. (A table that was loaded from one without
      a limit gets there by and by: each command looks ``LOOKS`` times more than its own rows need.)
    * No row of the command itself goes. Reads change no rank.
    * What goes is a function of the commands that came before; no clock but theirs is read.

Cost: 2,048 rows are ranked in about 30 us and sorted in about 60; at 256 rows that go for one look that
is 0.4 us a row that is made, beside the 0.3 us that it costs to make one. Each row has 4 bytes more, 8
with lfu.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from pserver.arrays import Floats, Keys, RowIds, Uint32s, Words
from pserver.config import MESSAGE_BYTES_MAX
from pserver.errors import ConfigError, nearest
from pserver.kernel import ages as kernel
from pserver.spec import ROWS_MAX, parse_rule
from pserver.table.ages import Ages
from pserver.table.fields import Field
from pserver.table.optimizer_options import Kinds, Number, Values, read_options

SAMPLE = 2048
"""Rows that are ranked together."""

BATCH_MAX = 256
"""Rows that fall out for one sample at most: its lowest eighth."""

LOOKS = 64
"""Looks that a command does at most for rows that it did not make: 16,384 rows, 6 ms."""

ROOM = MESSAGE_BYTES_MAX // 8
"""Rows that one command makes at most: keys of 8 bytes in a message. capacity_max must leave room for
them above the limit, since rows fall out after a command, not before it."""

Hand: TypeAlias = tuple[int, int]
"""A partition, and a bucket of its region."""

_BYTES_MIN = 1 << 20  # 1024 empty partitions of an index have 128 KiB
_BYTES_MAX = 1 << 50

_LIMITS: Kinds = {
    "rows": Number(math.inf, 1, ROWS_MAX, is_whole=True),
    "bytes": Number(math.inf, _BYTES_MIN, _BYTES_MAX, is_whole=True),
}
KINDS: dict[str, Kinds] = {
    "none": {},
    "lru": _LIMITS,
    "lfu": {**_LIMITS, "half_life": Number(10_000, 1, 2**31, is_whole=True)},
    "score": _LIMITS,
}
"""Every rule with its options. Limits are of one shard; ``half_life`` counts writes to it."""

_NUMBERS = {"lru": kernel.LRU, "lfu": kernel.LFU, "score": kernel.SCORE}


@dataclass(frozen=True, slots=True)
class EvictionRule:
    """A rule bound to its options. Immutable.

    Attributes:
        text: the rule, spelled out.
        name: none, lru, lfu or score.
        values: the options by name.
    """

    text: str
    name: str
    values: Values

    @property
    def fields(self) -> tuple[Field, ...]:
        """Return the words that it keeps of each row."""
        if self.name == "none":
            return ()
        uses = (Field("uses", "uint32"),) if self.name == "lfu" else ()
        return (Field("stamp", "uint32"), *uses)

    @property
    def rows_max(self) -> float:
        """Return the limit in rows, infinite for none."""
        return float(self.values.get("rows", math.inf))

    @property
    def bytes_max(self) -> float:
        """Return the limit in bytes, infinite for none."""
        return float(self.values.get("bytes", math.inf))

    @property
    def half_life(self) -> int:
        """Return after how many writes a count of uses has halved; of no use but to lfu."""
        return int(self.values.get("half_life", 1))

    def check_capacity(self, capacity_max: int, *, row_bytes: int, where: str) -> None:
        """Refuse a table that would be full before rows can fall out.

        Args:
            capacity_max: rows that the table may hold.
            row_bytes: of a row, at least.
            where: what the error names.

        Raises:
            ConfigError: it has no room for the rows of one command above the limit.
        """
        needed = min(self.rows_max, self.bytes_max // row_bytes) + ROOM
        if self.name != "none" and needed > capacity_max:
            raise ConfigError(
                f"{where}: {self.text} needs capacity_max {needed:.0f} or more, got {capacity_max}: "
                f"its limit, and room for the {ROOM} rows that one command may make before others go"
            )


def make_eviction_rule(text: str, *, is_ctr: bool, where: str = "evict") -> EvictionRule:
    """Bind the rule written in ``text``.

    Args:
        text: such as ``lru:rows=2e8``.
        is_ctr: whether rows have a score.
        where: what an error names.

    Raises:
        ConfigError: unknown rule or option, with the nearest valid name, or no limit, or no score.

    >>> make_eviction_rule("lfu:rows=1e6", is_ctr=False).text
    'lfu:rows=1000000,half_life=10000'
    >>> make_eviction_rule("none", is_ctr=False).text
    'none'
    """
    parsed = parse_rule(text, where=where)
    if parsed.name not in KINDS:
        raise ConfigError(f"{where}: unknown rule {parsed.name!r}; {nearest(parsed.name, KINDS)}")
    full, values = read_options(
        text, parsed.name, parsed.options, KINDS[parsed.name], where=where, quiet=_LIMITS
    )
    if parsed.name != "none" and not {"rows", "bytes"} & set(parsed.options):
        raise ConfigError(f"{where}: {full} needs a limit, rows=NUMBER or bytes=NUMBER of a shard")
    if parsed.name == "score" and not is_ctr:
        raise ConfigError(
            f"{where}: {full}: rows of the accessor plain have no score; take lru or lfu, or the "
            "accessor ctr"
        )
    return EvictionRule(full, parsed.name, values)


class Evictable(Protocol):
    """What eviction sees of a table."""

    @property
    def num_rows(self) -> int:
        """Return the rows alive."""
        ...

    @property
    def live_bytes(self) -> int:
        """Return the bytes of rows alive, with their share of the index."""
        ...

    def scores(self, row_ids: RowIds) -> Floats:
        """Return the (U,) scores of rows; asked by the rule ``score`` only."""
        ...

    def walk(self, hand: Hand, count: int) -> tuple[Keys, RowIds, Hand]:
        """Return the next rows under a hand, about ``count``, and where it is then."""
        ...


class Eviction:
    """The rule of one table at work. Owner: the shard's owner thread.

    Attributes:
        rule: what goes, and when.
        hand: partition and bucket where the next look begins.
        evicted: rows that fell out so far.
        last_rank: the highest rank that fell out at the last look.
    """

    def __init__(self, rule: EvictionRule) -> None:
        """Begin with the hand at the first partition."""
        assert rule.name != "none"
        self.rule = rule
        self.hand: Hand = (0, 0)
        self.evicted = 0
        self.last_rank = 0

    def is_over(self, table: Evictable) -> bool:
        """Return whether rows have to fall out."""
        return self._excess(table, slack=False) > 0

    def make_room(
        self,
        table: Evictable,
        ages: Ages,
        marks: Words,
        erase: Callable[[Keys], int],
        *,
        num_made: int,
    ) -> None:
        """Let rows fall out until the table is within its limit, and a little under it.

        Args:
            table: from which they go.
            ages: of its rows.
            marks: a bit for each row id that must stay.
            erase: removes keys, and returns how many there were.
            num_made: rows that the command made at most.
        """
        barren = 0  # rows looked at since the last one that could go
        for _ in range(LOOKS + 2 * num_made // BATCH_MAX):
            excess = self._excess(table, slack=True)
            if not excess or barren > table.num_rows:
                break
            keys, row_ids, self.hand = table.walk(self.hand, SAMPLE)
            ranks = ages.ranks(self.kind, keys, row_ids, self._worths(table, row_ids), marks)
            movable = int(np.count_nonzero(ranks < kernel.NEVER))
            if not movable:
                barren += max(1, keys.size)
                continue
            barren = 0
            is_whole = keys.size >= table.num_rows
            count = min(excess, movable, movable if is_whole else BATCH_MAX)
            last = np.partition(ranks, count - 1)[count - 1]
            self.evicted += erase(keys[ranks <= last])
            self.last_rank = int(last)

    @property
    def kind(self) -> int:
        """Return the number by which the kernel knows the rule."""
        return _NUMBERS[self.rule.name]

    def fell(self) -> str:
        """Return what the best row of the last look was like."""
        if self.rule.name == "lru":
            return f"not written for {0xFFFFFFFF - (self.last_rank >> 32)} writes or more"
        if self.rule.name == "lfu":
            return f"written {self.last_rank >> 44} times or fewer lately"
        bits = self.last_rank >> 32
        bits = bits & 0x7FFFFFFF if bits >> 31 else ~bits & 0xFFFFFFFF
        return f"a score of {np.uint32(bits).view(np.float32):g} or less"

    def _excess(self, table: Evictable, *, slack: bool) -> int:
        """Return how many rows are too many; with ``slack``, to be within the limit for a while."""
        rows_max, bytes_max = self.rule.rows_max, self.rule.bytes_max
        num_rows = table.num_rows
        over = -math.inf
        if rows_max < math.inf:
            over = num_rows - rows_max + (min(rows_max // 64, BATCH_MAX) if slack else 0)
        if bytes_max < math.inf and num_rows:
            row_bytes = table.live_bytes / num_rows
            spare = min(bytes_max / 64, BATCH_MAX * row_bytes) if slack else 0
            over = max(over, (table.live_bytes - bytes_max + spare) / row_bytes)
        return min(num_rows, math.ceil(over)) if over > 0 else 0

    def _worths(self, table: Evictable, row_ids: RowIds) -> Uint32s:
        """Return scores as words of the same order; none where no score is asked."""
        if self.rule.name != "score":
            return np.empty(0, np.uint32)
        bits = table.scores(row_ids).view(np.uint32)
        return np.where(bits >> 31, ~bits, bits | np.uint32(0x80000000))
