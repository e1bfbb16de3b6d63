"""What the four large messages say, once they are arrays.

Rooms before and after: ``build`` and ``parse`` turn them into bytes and back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pserver.arrays import Counts, Floats, Keys, Uint32s
from pserver.occurrences import NO_FLOATS, NO_SLOTS, Occurrences

WIRE_VERSION = 1
"""Raised when an old peer could not understand a new one; also the proto package's name."""

TRAINER_BYTES = 16
"""Length of a trainer's uuid."""


@dataclass(frozen=True, slots=True)
class TablePull:
    """The keys that a request reads from one table.

    Attributes:
        table: its name.
        create: whether keys without a row get one.
        keys: (U,), read-only in a request.
        shown: whether shows and clicks are asked for too.
    """

    table: str
    create: bool
    keys: Keys
    shown: bool = False


@dataclass(frozen=True, slots=True)
class PullRequest:
    """What a Pull asks of one shard."""

    incarnation: int
    tables: Sequence[TablePull]
    trainer: bytes = b""
    round: int = 0


@dataclass(frozen=True, slots=True)
class TableRows:
    """What a Pull answers for one table.

    Attributes:
        version: that the weights belong to.
        weights: (U * dim,).
        shows: (U,), or (0,) if not asked for.
        clicks: as ``shows``.
    """

    version: int
    weights: Floats
    shows: Floats = field(default_factory=lambda: NO_FLOATS)
    clicks: Floats = field(default_factory=lambda: NO_FLOATS)


@dataclass(frozen=True, slots=True)
class TablePush:
    """The part of a push for one table: keys (U,), values (U * dim,), and what is said of the keys.

    Attributes:
        counts, shows, clicks, slots: (U,), or (0,) if left out; see ``Occurrences``.
        dense_part: part + 1 of the shard's slice of a dense table, without keys; 0: a sparse table.
        pulled: version + 1 that the values were computed from; 0: not known.
    """

    table: str
    keys: Keys
    values: Floats
    counts: Counts
    dense_part: int = 0
    pulled: int = 0
    shows: Floats = field(default_factory=lambda: NO_FLOATS)
    clicks: Floats = field(default_factory=lambda: NO_FLOATS)
    slots: Uint32s = field(default_factory=lambda: NO_SLOTS)

    @property
    def said(self) -> Occurrences:
        """Return what is said of the keys beside their values."""
        return Occurrences(self.counts, self.shows, self.clicks, self.slots)


class TableSize(NamedTuple):
    """What a table's part of a push needs: its numbers of entries, and its small fields."""

    table: str
    num_keys: int
    num_values: int
    num_counts: int
    dense_part: int = 0
    pulled: int = 0
    num_shows: int = 0
    num_clicks: int = 0
    num_slots: int = 0


@dataclass(frozen=True, slots=True)
class Stamp:
    """Which round a push is a part of.

    Attributes:
        round: from 1.
        samples: of the trainer's batch.
        messages: that its part has on this shard.
    """

    round: int
    samples: int
    messages: int


@dataclass(frozen=True, slots=True)
class PushId:
    """The name of one push on one shard, the same on every retry."""

    trainer: bytes
    counter: int


@dataclass(frozen=True, slots=True)
class PushRequest:
    """What a Push or Assign brings to one shard."""

    incarnation: int
    push_id: PushId
    more: bool
    tables: Sequence[TablePush]
    stamp: Stamp | None = None
    position: int = 0
