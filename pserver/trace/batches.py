"""The hooks of whoever works on a batch: its number, and what is done for it.

Rooms before and after: the trainer's loop numbers its batches and says which one it works on; server rooms say what
they do for a request. ``call`` has the hooks of what lies between.
"""

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TypeVar

from pserver.trace.recorder import ACTIVE, NOTHING, At, Facts, Place, Recorder, here, within

T = TypeVar("T")

_END = object()


class Open:
    """A span that goes on; what is done inside belongs to it."""

    __slots__ = ("_around", "_begin_ns", "_facts", "_inside", "_name", "_place", "_recorder")

    def __init__(
        self,
        recorder: Recorder,
        name: str,
        place: Place,
        facts: Facts | None,
        *,
        inside: Place | None = None,
    ) -> None:
        """Prepare it.

        Args:
            recorder: gets it when it ends.
            name: of it.
            place: where it belongs.
            facts: what else there is to say.
            inside: where its parts belong, ``parent`` being its own id; None: beside it, on its track.
        """
        self._recorder, self._name, self._facts = recorder, name, facts
        self._inside = inside or place._replace(parent=recorder.new_id())
        self._place = place
        self._around = At(self._inside)
        self._begin_ns = 0

    def __enter__(self) -> None:
        """Begin."""
        self._around.__enter__()
        self._begin_ns = self._recorder.now()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End, whatever happened."""
        end_ns = self._recorder.now()
        self._around.__exit__(kind, error, trace)
        facts = self._facts
        if kind is not None:
            facts = {**(facts or {}), "error": kind.__name__}
        self._recorder.record(
            self._name, self._begin_ns, end_ns, self._place, own_id=self._inside.parent, facts=facts
        )


def span(name: str, **facts: str | int) -> contextlib.AbstractContextManager[None]:
    """Record how long what is done inside takes, if it is done for a traced batch.

    Args:
        name: of the span, one of few: it is what is counted by.
        facts: shown with it.
    """
    if (recorder := ACTIVE.recorder) is None:
        return NOTHING
    place = here()
    return NOTHING if place is None else Open(recorder, name, place, facts or None)


def numbered(batches: Iterable[T]) -> Iterator[tuple[int, T]]:
    """Number batches from 1, and record how long each takes to come; its trace begins with that."""
    iterator = iter(batches)
    for number in itertools.count(1):
        begin_ns = time.perf_counter_ns()
        item = next(iterator, _END)
        if item is _END:
            return
        recorder = ACTIVE.recorder
        place = None if recorder is None else recorder.place_of(number)
        if recorder is not None and place is not None:
            since_ns = recorder.since(begin_ns)
            recorder.hold(place.trace, begin_ns=since_ns)
            recorder.record("read", since_ns, recorder.now(), place, own_id=recorder.new_id())
        yield number, item  # type: ignore[misc] # it is no _END


@contextlib.contextmanager
def _ending(recorder: Recorder, place: Place) -> Iterator[None]:
    with within(place):
        try:
            yield
        finally:
            recorder.release(place.trace)


def traced(number: int, *, ends: bool = False) -> contextlib.AbstractContextManager[None]:
    """Let what is done inside belong to a batch.

    Args:
        number: of the batch, as ``numbered`` counted.
        ends: whether nothing more is done for it afterwards, but what is on its way already.
    """
    recorder = ACTIVE.recorder
    place = None if recorder is None else recorder.place_of(number)
    if recorder is None or place is None:
        return NOTHING
    return _ending(recorder, place) if ends else within(place)
