"""Puts what is about to change a shard into its journal, in the turn in which it changes.

Rooms before and after: ``servicer`` and ``group`` run what changes state through ``write``; rooms that
decide by themselves what they change call ``note``; ``recovery`` attaches the journal once it is replayed.

What always holds:
    * A record is written before anything is applied. If it cannot be, the request is refused and nothing
      is applied.
    * A request that was refused for what is outside of the state (time, a full disk, other work under
      way) changed nothing and leaves no record. Any other refusal follows from the state alone: its
      record stays, and a replay is refused the same way.
    * Without a journal, and during a replay, nothing is written.
Owner: whoever has the turn on the shard's tables.
"""

import struct
from collections.abc import Awaitable, Callable
from typing import TypeVar

import numpy as np

from pserver.arrays import Floats, Keys
from pserver.errors import BusyError, ConfigError, TableFullError, TransientError, UnavailableError
from pserver.journal.writer import Journal
from pserver.server.members import TakenError
from pserver.server.methods import Own
from pserver.server.waiting import NotYet
from pserver.table.sparse import SparseTable
from pserver.trace import span

T = TypeVar("T")

_CHANGED_NOTHING = (NotYet, TakenError, TransientError, BusyError, TableFullError, ConfigError)
_NUMBER = struct.Struct("<Q")
_NAME_BYTES = struct.Struct("<H")


class Recorder:
    """The way to the journal of one shard.

    Attributes:
        journal: None before it is attached, or where there is none.
        until_taken: waits until the standby has the records up to a position; None: nobody waits.
        may_acknowledge: is asked before a change is acknowledged, and raises if another server may have
            taken the shard's place.
    """

    def __init__(self) -> None:
        """Begin without a journal."""
        self.journal: Journal | None = None
        self.until_taken: Callable[[int], Awaitable[None]] | None = None
        self.may_acknowledge: Callable[[], None] | None = None
        self._stopped = ""

    def stop(self, why: str) -> None:
        """Refuse every change from now on, since another server has the shard; empty: no more."""
        self._stopped = why

    def attach(self, journal: Journal) -> None:
        """Record from now on."""
        self.journal = journal

    def became(self, incarnation: int) -> None:
        """Let new segments name another incarnation of the shard."""
        if self.journal is not None:
            self.journal.incarnation = incarnation

    def covered(self) -> dict[str, int] | None:
        """Return what a checkpoint of this moment covers; None without a journal."""
        if self.journal is None:
            return None
        return {"number": self.journal.number, "position": self.journal.position}

    def drop_covered(self, position: int) -> None:
        """Remove what a durable checkpoint covers; in any thread.

        Raises:
            JournalError: the system refused.
        """
        if self.journal is not None:
            self.journal.drop_covered(position)

    def close(self) -> None:
        """Sync the journal, and let its folder go."""
        if self.journal is not None:
            self.journal.close()

    def write(self, kind: int, body: bytes, work: Callable[[], T]) -> T:
        """Record a request, apply it, and return what that returned.

        Args:
            kind: of the record.
            body: the request's bytes.
            work: applies it.

        Raises:
            StorageError: the journal could not be written; nothing was applied.
        """
        journal = self.journal
        if journal is None:
            return work()
        self._check_stopped()
        journal.append(kind, body)
        try:
            return work()
        except _CHANGED_NOTHING:
            journal.take_back()
            raise
        finally:
            journal.settle()

    def note(self, kind: int, body: bytes) -> None:
        """Record what is about to change, whatever comes of the request.

        Raises:
            StorageError: the journal could not be written.
        """
        if self.journal is not None:
            self._check_stopped()
            self.journal.append(kind, body)
            self.journal.settle()

    def _check_stopped(self) -> None:
        if self._stopped:
            raise UnavailableError(self._stopped)

    def pull(self, table: SparseTable, keys: Keys, out: Floats) -> None:
        """Pull from a table that makes rows, and record those that it makes.

        Args:
            table: which checked the pull.
            keys: (U,) uint64, repeats allowed.
            out: (U * dim,) float32, written.

        Raises:
            StorageError: rows would have been made, and the journal could not be written.
        """
        if self.journal is None:
            table.pull(keys, out)
            return
        missing = table.peek(keys, out)
        if missing.size and table.gate is None:
            # No row of the command itself falls out, so there the record needs all its keys.
            made = missing if table.keeping.eviction is None else keys
            self.note(Own.ROWS, rows_body(table.spec.name, made))
            table.pull(keys, out)

    async def durable(self) -> None:
        """Return once all that was recorded until now is as durable as was promised.

        Raises:
            StorageError: it could not be synced.
            UnavailableError: it must not be acknowledged here.
        """
        journal = self.journal
        if journal is not None:
            position = journal.position
            with span("durable"):
                await journal.durable(position)
                if self.until_taken is not None:
                    await self.until_taken(position)
            if self.may_acknowledge is not None:
                self.may_acknowledge()


def rows_body(table: str, keys: Keys) -> bytes:
    """Return the body of a record of rows that a pull makes."""
    name = table.encode()
    return _NAME_BYTES.pack(len(name)) + name + keys.tobytes()


def rows_of(body: bytes) -> tuple[str, Keys]:
    """Return table and keys of such a body.

    >>> rows_of(rows_body("ads", np.array([7], np.uint64)))
    ('ads', array([7], dtype=uint64))
    """
    (size,) = _NAME_BYTES.unpack_from(body)
    behind = _NAME_BYTES.size + size
    return body[_NAME_BYTES.size : behind].decode(), np.frombuffer(body[behind:], np.uint64)


def number_body(number: int) -> bytes:
    """Return the body of a record that is a number."""
    return _NUMBER.pack(number)


def number_of(body: bytes) -> int:
    """Return the number that such a body is.

    >>> number_of(number_body(7))
    7
    """
    number: int = _NUMBER.unpack(body)[0]
    return number
