"""What records the spans of this process, and where in a trace the work of this moment belongs.

Rooms before and after: ``batches`` and ``call`` begin and end spans; ``files`` makes a recorder, and takes what
it has to a file or to a collector.

What always holds:
    * Times are nanoseconds since the recorder began, of a clock that only goes forward. Each process has its own; what
      lies between two of them is known from ``Clocks``.
    * A span is recorded when it ends, by whatever thread ends it. The oldest go when there are too many.

Cost of a span: some µs where batches are traced. Elsewhere a look at ``ACTIVE``: the hooks that a request passes in queue and
servicer took 8,800 instructions together (callgrind, 2026-12-01), some 3 µs.
"""

import contextlib
import itertools
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import NamedTuple

from pserver.trace.clocks import Clocks

SPANS_MAX = 65_536
"""Spans that a process keeps, the last ones. A trainer has about 20 a batch with two shards, a shard 8: 3,000 batches, in
a file of 20 MB at the most."""

_LIVES_MAX = 1024  # batches that are on their way; more were read and never trained on

_NUMBER_BITS = 64
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1

Facts = Mapping[str, str | int | float]


class Place(NamedTuple):
    """Where in a trace the work of this moment belongs.

    Attributes:
        trace: id of the batch's trace, 128 bits: the batch's number, and the process that reads it.
        parent: id of the span around.
        track: the line on which spans are shown; empty: that of the thread.
        lane: id of the span beside which they are shown, where spans of one track overlap; 0: they do not.
    """

    trace: int
    parent: int
    track: str = ""
    lane: int = 0


class Span(NamedTuple):
    """What took how long. Times in nanoseconds since the recorder began; the rest as ``Place`` has it."""

    name: str
    begin_ns: int
    end_ns: int
    trace: int
    id: int
    parent: int
    track: str
    lane: int
    facts: Facts | None


@dataclass(slots=True)
class _Life:
    """A batch that is on its way: since when, and how many spans of it are still to end."""

    begin_ns: int
    num_open: int = 0


class Recorder:
    """The spans of this process. Thread-safe.

    Attributes:
        process: a number of this recorder that no other has.
        every: every so many batches of this process are traced.
        clocks: what is known of other processes' clocks.
    """

    def __init__(self, *, every: int = 1) -> None:
        """Begin without spans."""
        self.process = secrets.randbits(_NUMBER_BITS) | 1
        self.every = every
        self.clocks = Clocks()
        self._begin_ns = time.perf_counter_ns()
        self._ids = itertools.count(1)
        self._id_base = secrets.randbits(31) << 33 | 1 << 32  # spans of two processes differ
        self._spans: deque[Span] = deque(maxlen=SPANS_MAX)
        self._num_recorded = 0
        self._sinks: list[Callable[[Span], None]] = []
        self._lock = threading.Lock()
        self._lives: OrderedDict[int, _Life] = OrderedDict()

    def now(self) -> int:
        """Return the nanoseconds since the recorder began."""
        return time.perf_counter_ns() - self._begin_ns

    def since(self, at_ns: int) -> int:
        """Return a moment of ``time.perf_counter_ns`` as one of this recorder."""
        return at_ns - self._begin_ns

    def new_id(self) -> int:
        """Return the id of another span."""
        return self._id_base + 2 * next(self._ids)

    def root_of(self, place: Place) -> int:
        """Return the id of the span of a batch as a whole, if this process reads it; else of the span around."""
        number, process = batch_of(place.trace)
        return self._root(number) if process == self.process else place.parent

    def _root(self, number: int) -> int:
        return self._id_base + 2 * number + 1

    def place_of(self, number: int) -> Place | None:
        """Return the place of a batch; None if it is none of those that are traced."""
        if number % self.every:
            return None
        return Place(number << _NUMBER_BITS | self.process, self._root(number))

    def record(
        self,
        name: str,
        begin_ns: int,
        end_ns: int,
        place: Place,
        *,
        own_id: int,
        facts: Facts | None = None,
    ) -> None:
        """Keep a span that ended.

        Args:
            name: of it.
            begin_ns: of this recorder, as is ``end_ns``.
            end_ns: when it ended.
            place: where it belongs.
            own_id: its id.
            facts: what else there is to say.
        """
        track = place.track or threading.current_thread().name
        span = Span(
            name, begin_ns, end_ns, place.trace, own_id, place.parent, track, place.lane, facts
        )
        with self._lock:
            self._spans.append(span)
            self._num_recorded += 1
        for sink in self._sinks:
            sink(span)

    def add_sink(self, sink: Callable[[Span], None]) -> None:
        """Hand each span on from now on; the sink must be quick, and is called by any thread."""
        self._sinks.append(sink)

    def spans(self) -> list[Span]:
        """Return what is kept, in the order in which it ended."""
        with self._lock:
            return list(self._spans)

    @property
    def num_recorded(self) -> int:
        """Return how many spans there were, those that are gone included."""
        return self._num_recorded

    # --- the life of a batch ------------------------------------------------------------------

    def hold(self, trace: int, *, begin_ns: int | None = None) -> None:
        """Let a batch live until one more ``release``; it begins with the first one."""
        with self._lock:
            life = self._lives.get(trace)
            if life is None:
                life = self._lives[trace] = _Life(self.now() if begin_ns is None else begin_ns)
                if len(self._lives) > _LIVES_MAX:
                    self._lives.popitem(last=False)
            life.num_open += 1

    def release(self, trace: int) -> None:
        """Undo a ``hold``; with the last one the batch is over, and is recorded."""
        with self._lock:
            life = self._lives.get(trace)
            if life is None:
                return
            life.num_open -= 1
            if life.num_open:
                return
            del self._lives[trace]
        own = self._root(batch_of(trace)[0])
        place = Place(trace, 0, "batches", own)
        self.record("batch", life.begin_ns, self.now(), place, own_id=own)


def batch_of(trace: int) -> tuple[int, int]:
    """Return the number of a trace's batch, and the process that read it."""
    return trace >> _NUMBER_BITS, trace & _NUMBER_MASK


@dataclass(slots=True)
class _Active:
    """The recorder of this process; None: nothing is recorded."""

    recorder: Recorder | None = field(default=None)


ACTIVE = _Active()

_here: ContextVar[Place | None] = ContextVar("place", default=None)


def here() -> Place | None:
    """Return where the work of this moment belongs; None: to no traced batch."""
    return None if ACTIVE.recorder is None else _here.get()


class At:
    """What is done inside belongs to a place."""

    __slots__ = ("_place", "_token")

    def __init__(self, place: Place) -> None:
        """Take the place."""
        self._place = place

    def __enter__(self) -> None:
        """Be there."""
        self._token: Token[Place | None] = _here.set(self._place)

    def __exit__(self, *_: object) -> None:
        """Be where one was before."""
        _here.reset(self._token)


class _Nothing:
    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


NOTHING = _Nothing()
"""What a hook returns where there is nothing to record."""


def within(place: Place | None) -> contextlib.AbstractContextManager[None]:
    """Let what is done inside belong to a place that was kept; None: leave it as it is."""
    return NOTHING if place is None else At(place)
