"""Roll call: which ranks are there when an operation failed, and whose fault it was.

Rooms before and after: ``group`` asks when an operation fails; the answer is in its error. Ranks speak
through the store that they met at.

A failed operation shows a broken connection, but not whose: the neighbour may be alive and have failed a moment
earlier for the same reason. So the first rank that fails calls the roll. A thread in every process answers,
whatever the process computes. Who does not answer within ``GRACE_S`` is gone; if all answer, who does not wait in
the operation did not come. The first verdict is everybody's, and a rank that hears it before its own
operation fails keeps it, for the store may be gone by then.

What always holds: one verdict for a run. Owner of a ``Roll``: the groups of one process; its thread ends with them.
"""

import json
import threading
import time
import weakref
from collections.abc import Collection
from dataclasses import dataclass

from torch._C._distributed_c10d import Store

GRACE_S = 5.0
"""How long ranks get to answer: threads of a busy machine, and time limits that end not quite together."""

_ASK_S = 0.5
"""Between two looks of a process at whether the roll is called."""

_LISTEN_S = 0.05

_JOIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who was to blame. Ranks of the run.

    Attributes:
        gone: processes that do not answer.
        late: ranks that are there and did not come; looked for only if nobody is gone.
    """

    gone: tuple[int, ...] = ()
    late: tuple[int, ...] = ()


@dataclass(slots=True)
class _Heard:
    """What the thread tells its process. One writer, the thread."""

    verdict: Verdict | None = None


class Roll:
    """One process's place in roll calls.

    Attributes:
        store: where the ranks of this run, and no others, meet.
        rank: of this process in the run.
    """

    def __init__(self, store: Store, *, rank: int) -> None:
        """Start to answer roll calls.

        Args:
            store: as of the class.
            rank: as of the class.
        """
        self.store = store
        self.rank = rank
        self._heard = _Heard()
        stop = threading.Event()
        # A connection of its own: one that waits for a key keeps everybody else on it waiting.
        own: Store = store.clone()  # type: ignore[attr-defined]  # the stub lacks it
        thread = threading.Thread(
            target=_answer, args=(own, rank, stop, self._heard), name="roll", daemon=True
        )
        thread.start()
        weakref.finalize(self, _end, stop, thread)  # at the end of the program too

    def call(self, operation: str, ranks: Collection[int]) -> Verdict | None:
        """Say that this rank waits in an operation that failed, and return who is to blame.

        Args:
            operation: the same text on all ranks that take part in it, and of no other one.
            ranks: that take part, of the run.

        Returns:
            The verdict; None if the store is gone, and with it the process that holds it.
        """
        if self._heard.verdict is not None:
            return self._heard.verdict
        try:
            self.store.set(f"present/{self.rank}", "1")
            self.store.set(f"waits/{operation}/{self.rank}", "1")
            self.store.set("called", "1")
            mine = self._listen(operation, ranks)
            text = json.dumps([mine.gone, mine.late])
            verdict = _verdict(self.store.compare_set("lost", "", text))
            self.store.set(f"heard/{self.rank}", "1")
            if self.rank == 0:  # the store goes with this process: let the others hear
                self._await_hearers(set(ranks) - set(verdict.gone) - {self.rank})
        except (RuntimeError, ValueError):
            return self._heard.verdict
        return verdict

    def _listen(self, operation: str, ranks: Collection[int]) -> Verdict:
        """Wait until everybody answered and waits in the operation, or the grace has passed."""
        end_s = time.monotonic() + GRACE_S
        silent, late = set(ranks), set(ranks)
        while True:
            silent = {rank for rank in silent if not self.store.check([f"present/{rank}"])}
            late = {rank for rank in late if not self.store.check([f"waits/{operation}/{rank}"])}
            if not (silent or late) or time.monotonic() > end_s or self.store.check(["lost"]):
                break
            time.sleep(_LISTEN_S)
        if silent:
            return Verdict(gone=tuple(sorted(silent)))
        return Verdict(late=tuple(sorted(late)))

    def _await_hearers(self, left: set[int]) -> None:
        end_s = time.monotonic() + GRACE_S
        while left and time.monotonic() < end_s:
            left = {rank for rank in left if not self.store.check([f"heard/{rank}"])}
            time.sleep(_LISTEN_S)


def _verdict(text: bytes) -> Verdict:
    gone, late = json.loads(text)
    return Verdict(tuple(gone), tuple(late))


def _answer(store: Store, rank: int, stop: threading.Event, heard: _Heard) -> None:
    """Answer the one roll call of a run, and keep its verdict."""
    has_answered = False
    try:
        while not stop.wait(_ASK_S):
            if not has_answered and store.check(["called"]):
                store.set(f"present/{rank}", "1")
                has_answered = True
            if has_answered and store.check(["lost"]):
                heard.verdict = _verdict(store.get("lost"))
                store.set(f"heard/{rank}", "1")
                return
    except RuntimeError:  # the store is gone: with a run that ended, or the operation tells
        return


def _end(stop: threading.Event, thread: threading.Thread) -> None:
    stop.set()
    if thread is not threading.current_thread():
        thread.join(_JOIN_S)
