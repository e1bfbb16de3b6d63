"""Every method of the service, and what it does to the shard's state: one table for all who ask.

Rooms before and after: ``app`` offers them, ``servicer`` runs them, ``recording`` and ``recovery`` know by
this what a journal holds.

What always holds: a method that changes state leaves a record of it, in one of the ways that are declared
here, and says which role a token must have. The numbers stand in journals, so none is ever given another
meaning.
"""

import enum
from dataclasses import dataclass
from typing import Final


class Effect(enum.Enum):
    """What a method does to state that must outlive the process."""

    READS = "changes nothing"
    WRITES = "its message is recorded before it is applied"
    MAKES = "it records the rows that it makes; they are what a push would make, so no reply waits"
    NOTES = "it records what it changes, if it changes anything"


class Role(enum.IntEnum):
    """What a token may do; each may also do what stands before it."""

    READ = 1
    TRAIN = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Method:
    """One method.

    Attributes:
        number: of its records.
        effect: on the state.
        role: that its sender needs, where the server has tokens; ``auth`` says on which tables.
        is_short: of a few milliseconds at most while rows are in memory: one pass over one message.
    """

    number: int
    effect: Effect
    role: Role
    is_short: bool = False


METHODS: Final = {
    "Describe": Method(1, Effect.READS, Role.READ),
    "CreateTable": Method(2, Effect.WRITES, Role.TRAIN),
    "Pull": Method(3, Effect.MAKES, Role.READ, is_short=True),  # to make rows: TRAIN
    "Push": Method(4, Effect.WRITES, Role.TRAIN, is_short=True),
    "Assign": Method(5, Effect.WRITES, Role.TRAIN, is_short=True),
    "CreateDense": Method(6, Effect.WRITES, Role.TRAIN),
    "InitDense": Method(7, Effect.WRITES, Role.TRAIN),
    "PushDense": Method(8, Effect.WRITES, Role.TRAIN, is_short=True),
    "PullDense": Method(9, Effect.READS, Role.READ, is_short=True),
    "PushDelta": Method(10, Effect.WRITES, Role.TRAIN, is_short=True),
    "PushDenseDelta": Method(11, Effect.WRITES, Role.TRAIN, is_short=True),
    "PullChanged": Method(12, Effect.WRITES, Role.TRAIN),  # the first one of a table opens its log
    "Clear": Method(13, Effect.WRITES, Role.ADMIN),
    "Drop": Method(14, Effect.WRITES, Role.ADMIN),
    "Shrink": Method(15, Effect.NOTES, Role.ADMIN),
    "TopKeys": Method(16, Effect.READS, Role.READ),
    "Save": Method(17, Effect.NOTES, Role.ADMIN),
    "Load": Method(18, Effect.NOTES, Role.ADMIN),
    "Stats": Method(19, Effect.READS, Role.READ),
    "Join": Method(20, Effect.WRITES, Role.TRAIN),
    "Heartbeat": Method(21, Effect.NOTES, Role.TRAIN),
    "Leave": Method(22, Effect.WRITES, Role.TRAIN),
    "Lease": Method(23, Effect.WRITES, Role.TRAIN),
    "Inspect": Method(24, Effect.READS, Role.READ),
    "Feed": Method(25, Effect.READS, Role.ADMIN),
    "Promote": Method(26, Effect.READS, Role.ADMIN),
}
"""Every method, in the order of the service's definition."""

SHORT = tuple(name for name, method in METHODS.items() if method.is_short)
"""Those that the event loop may do itself."""


class Own(enum.IntEnum):
    """Records that are no method's message, by what they hold.

    ROWS: rows that a pull made. EPOCH: that a save raised. SLICE: of a walk. EXPIRE: of a trainer's lease.
    LIMIT: of a round's wait. LOAD: of a checkpoint. INCARNATION: that was drawn anew. MARKS: of rows that a
    save for serving chose. REFUSED: a trainer's push that a quota refused.
    """

    ROWS = 1001
    EPOCH = 1002
    SLICE = 1003
    EXPIRE = 1004
    LIMIT = 1005
    LOAD = 1006
    INCARNATION = 1007
    MARKS = 1008
    REFUSED = 1009


def kind_name(kind: int) -> str:
    """Return what people call a kind of record.

    >>> kind_name(4), kind_name(1001), kind_name(77)
    ('Push', 'rows', '77')
    """
    for name, method in METHODS.items():
        if method.number == kind:
            return name
    return Own(kind).name.lower() if kind in set(Own) else str(kind)
