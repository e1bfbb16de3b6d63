"""Pushes with numbers that no row can hold: refused or mended as the table says, and counted.

Rooms before and after: ``servicer`` has every push checked here before it applies any of it;
``table.sparse`` looks at the numbers; ``report`` tells the counts.

What always holds: at most ``TRAINERS_MAX`` trainers of a table are counted by themselves; who comes
later is counted among "others". Owner: the owner thread.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from pserver.errors import NotFiniteError
from pserver.table.sparse import SparseTable
from pserver.wire import PushId, TablePush

TRAINERS_MAX = 64
"""A job has tens of trainers; a restarted one has a new name, so the number must have an end."""

OTHERS = "others"


@dataclass(slots=True)
class BadPushes:
    """What one trainer sent to one table.

    Attributes:
        pushes: with a bad number, mended or refused; a refused one counts each time it comes.
        last: what the last one brought.
    """

    pushes: int = 0
    last: str = ""


@dataclass(frozen=True, slots=True)
class BadValues:
    """Counts by table and trainer."""

    _counts: dict[str, dict[str, BadPushes]] = field(default_factory=dict)

    def of(self, table: str) -> Mapping[str, BadPushes]:
        """Return the counts of a table by trainer; a copy, so any thread may read on."""
        return dict(self._counts.get(table, {}))

    def total(self, table: str) -> int:
        """Return the bad pushes of all trainers to a table."""
        return sum(entry.pushes for entry in self.of(table).values())

    def checked(self, table: SparseTable, part: TablePush, push_id: PushId) -> TablePush:
        """Return a push's part as it may be applied, or refuse it; see ``SparseTable.check_push``.

        Raises:
            NotFiniteError: a number is bad, and the table does not mend. With ``on_nan`` "fail" the
                table takes no more pushes.
            TableStoppedError, ShapeError, TableFullError: as ``check_push``.
        """
        try:
            values = table.check_push(part.keys, part.values, part.said)
        except NotFiniteError as error:
            self._count(table, push_id, str(error))
            if table.spec.on_nan == "fail":
                table.stop(
                    f"push {push_id.counter} of trainer {push_id.trainer.hex()} stopped this table "
                    f"({error}); `pserver clear --table {table.spec.name}` lets it take pushes again"
                )
            raise
        if values is part.values:
            return part
        self._count(table, push_id, f"push {table.spec.name!r}: bad numbers taken as 0")
        return dataclasses.replace(part, values=values)

    def _count(self, table: SparseTable, push_id: PushId, what: str) -> None:
        """Count one push."""
        counts = self._counts.setdefault(table.spec.name, {})
        trainer = push_id.trainer.hex()
        if trainer not in counts and len(counts) >= TRAINERS_MAX:
            trainer = OTHERS
        entry = counts.setdefault(trainer, BadPushes())
        entry.pushes += 1
        entry.last = f"{what} (its push {push_id.counter})"
