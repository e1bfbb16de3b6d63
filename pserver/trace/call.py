"""The hooks of a call: on its way through a client's queue and over the wire, and in the server that answers it.

Rooms before and after: ``client.sendqueue`` and ``client.connection`` on one side, ``server.app`` and
``server.waiting`` on the other; embedded mode has both and no wire.

What always holds: a call of a traced batch carries ``traceparent`` (W3C Trace Context, version 00) in its metadata, and its
reply says in trailing metadata by the server's clock when it came and when it was answered. Others carry nothing.
"""

import re
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

from typing_extensions import override

from pserver.trace.batches import Open
from pserver.trace.recorder import ACTIVE, NOTHING, Place, Recorder, here, within

TRACE_KEY = "traceparent"
"""Metadata of a traced call: ``00-TRACE-SPAN-01``, 32 and 16 hexadecimal digits."""

CLOCK_KEY = "pserver-clock"
"""Trailing metadata of its reply: ``PROCESS CAME ANSWERED``, hexadecimal and two times in nanoseconds."""

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_CLOCK = re.compile(r"([0-9a-f]{1,16}) (\d{1,19}) (\d{1,19})")
_ANSWERS, _OWNER = "answers", "owner"

Metadata = tuple[tuple[str, str], ...]
T = TypeVar("T")


class Ended(Protocol):
    """What is asked of a call that came to its end; gRPC's are such."""

    def trailing_metadata(self) -> Sequence[tuple[Any, Any]] | None:
        """Return what the server said at the end."""
        ...

    def code(self) -> Any:
        """Return how it ended."""
        ...


class Call(Protocol):
    """A call on its way."""

    def add_done_callback(self, work: Callable[[Any], None]) -> object:
        """Have something done when it ends."""
        ...


class Served(Protocol):
    """What a server knows of a call that it answers; gRPC's context is such."""

    def invocation_metadata(self) -> Sequence[tuple[Any, Any]] | None:
        """Return what the client said."""
        ...

    def set_trailing_metadata(self, metadata: Any) -> None:
        """Say something at the end."""
        ...


# --- in a client ----------------------------------------------------------------------------------


class Sending:
    """A request of a traced batch, from the moment at which it is put into a queue.

    Attributes:
        place: where its parts belong.
    """

    __slots__ = ("_begin_ns", "_has_left", "_method", "_recorder", "_up", "place")

    def __init__(self, recorder: Recorder, up: Place, method: str, endpoint: str) -> None:
        """Begin; the batch lives at least as long."""
        self._recorder, self._method = recorder, method
        own = recorder.new_id()
        self._up = Place(up.trace, recorder.root_of(up), f"to {endpoint}", own)
        self.place = self._up._replace(parent=own)
        self._has_left = False
        recorder.hold(up.trace)
        self._begin_ns = recorder.now()

    def leave(self) -> AbstractContextManager[None]:
        """Let what is done inside belong to this request: it leaves, for the first time or once more."""
        if not self._has_left:
            self._has_left = True
            recorder = self._recorder
            recorder.record(
                "queue", self._begin_ns, recorder.now(), self.place, own_id=recorder.new_id()
            )
        return within(self.place)

    def end(self, error: BaseException | None) -> None:
        """Record it: it was answered, or given up."""
        facts = None if error is None else {"error": type(error).__name__}
        self._recorder.record(
            self._method,
            self._begin_ns,
            self._recorder.now(),
            self._up,
            own_id=self.place.parent,
            facts=facts,
        )
        self._recorder.release(self.place.trace)


def sending(method: str, endpoint: str) -> Sending | None:
    """Return what follows a request that is put now; None: it is not traced."""
    if (recorder := ACTIVE.recorder) is None:
        return None
    place = here()
    return None if place is None else Sending(recorder, place, method, endpoint)


def leaving(request: Sending | None) -> AbstractContextManager[None]:
    """Return ``Sending.leave``, or nothing."""
    return NOTHING if request is None else request.leave()


class Wire:
    """One try of a request, as far as gRPC has it; this one is of a request that is not traced.

    Attributes:
        metadata: that it carries.
    """

    metadata: Metadata = ()

    def follow(self, call: Call) -> None:
        """Record the call when it ends."""


class _TracedWire(Wire):
    def __init__(self, recorder: Recorder, place: Place, endpoint: str) -> None:
        self._recorder, self._place, self._endpoint = recorder, place, endpoint
        self._own = recorder.new_id()
        self.metadata = ((TRACE_KEY, f"00-{place.trace:032x}-{self._own:016x}-01"),)
        self._begin_ns = recorder.now()

    @override
    def follow(self, call: Call) -> None:
        call.add_done_callback(self._end)

    def _end(self, call: Ended) -> None:
        end_ns = self._recorder.now()
        for key, value in call.trailing_metadata() or ():
            if key == CLOCK_KEY and (told := _CLOCK.fullmatch(str(value))):
                times = (self._begin_ns, int(told[2]), int(told[3]), end_ns)
                self._recorder.clocks.add(int(told[1], 16), self._endpoint, times)
        code = call.code().name
        self._recorder.record(
            "wire",
            self._begin_ns,
            end_ns,
            self._place,
            own_id=self._own,
            facts=None if code == "OK" else {"code": code},
        )


_UNTRACED = Wire()


def wire(place: Place | None, endpoint: str) -> Wire:
    """Return what follows a try that begins now, of a request at a place."""
    if place is None or (recorder := ACTIVE.recorder) is None:
        return _UNTRACED
    return _TracedWire(recorder, place, endpoint)


# --- in a server ----------------------------------------------------------------------------------


def answering(
    call: Callable[[str, bytes], Coroutine[Any, Any, bytes]],
) -> Callable[[str, bytes, Served], Coroutine[Any, Any, bytes]]:
    """Return what answers requests of traced batches with a span around, and others as they are.

    Args:
        call: answers a method's message.
    """
    recorder = ACTIVE.recorder
    if recorder is None:
        return lambda method, message, _: call(method, message)

    async def answer(method: str, message: bytes, context: Served) -> bytes:
        came_ns = recorder.now()
        place = _told(context.invocation_metadata() or ())
        if place is None:
            return await call(method, message)
        try:
            with within(place), _answer(recorder, place, method, who=""):
                return await call(method, message)
        finally:
            told = f"{recorder.process:x} {came_ns} {recorder.now()}"
            context.set_trailing_metadata(((CLOCK_KEY, told),))

    return answer


def answered_here(method: str, endpoint: str) -> AbstractContextManager[None]:
    """Record that a shard of this process answers the request of this moment."""
    recorder, place = ACTIVE.recorder, here()
    if recorder is None or place is None:
        return NOTHING
    return _answer(recorder, place, method, who=f"{endpoint} ")


def _answer(recorder: Recorder, place: Place, method: str, *, who: str) -> Open:
    own = recorder.new_id()
    shown = Place(place.trace, place.parent, f"{who}{_ANSWERS}", own)
    return Open(recorder, "answer", shown, {"method": method}, inside=shown._replace(parent=own))


def _told(metadata: Sequence[tuple[Any, Any]]) -> Place | None:
    """Return the place that a client says; None if it says none, or one that is not to be recorded."""
    for key, value in metadata:
        if key == TRACE_KEY and (told := _TRACEPARENT.fullmatch(str(value))):
            is_sampled = int(told[3], 16) & 1
            return Place(int(told[1], 16), int(told[2], 16)) if is_sampled else None
    return None


class _Turns(Generic[T]):
    """Work of a traced request that is done in a turn, or in several where it has to wait for others."""

    def __init__(self, recorder: Recorder, place: Place, work: Callable[[], T]) -> None:
        self._recorder, self._place, self._work = recorder, place, work
        self._since_ns, self._waits = recorder.now(), "wait"

    def __call__(self) -> T:
        recorder, place = self._recorder, self._place
        recorder.record(
            self._waits, self._since_ns, recorder.now(), place, own_id=recorder.new_id()
        )
        turn = Place(place.trace, place.parent, place.track.replace(_ANSWERS, _OWNER))
        try:
            with Open(recorder, "turn", turn, None):
                return self._work()
        finally:
            self._since_ns, self._waits = recorder.now(), "hold"


def turns(work: Callable[[], T]) -> Callable[[], T]:
    """Return work that records when its turn on the tables came, and how long it took."""
    if (recorder := ACTIVE.recorder) is None:
        return work
    place = here()
    return work if place is None else _Turns(recorder, place, work)
