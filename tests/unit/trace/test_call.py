"""What ``trace.call`` promises: one call's spans on both sides, and metadata only where a batch is traced."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import pytest

from pserver.errors import UnavailableError
from pserver.server.waiting import NotYet
from pserver.trace import span, traced
from pserver.trace.call import CLOCK_KEY, TRACE_KEY, answering, leaving, sending, turns, wire
from pserver.trace.recorder import Place, Recorder, Span, here, within


class Call:
    """What gRPC has of a call, on either side."""

    def __init__(self, metadata: Sequence[tuple[str, str]] = ()) -> None:
        self.told = list(metadata)
        self.trailing: list[tuple[str, str]] = []
        self.work: list[Callable[[Any], None]] = []

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        return self.told

    def set_trailing_metadata(self, metadata: Sequence[tuple[str, str]]) -> None:
        self.trailing += metadata

    def trailing_metadata(self) -> Sequence[tuple[str, str]]:
        return self.trailing

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    def add_done_callback(self, work: Callable[[Any], None]) -> None:
        self.work.append(work)


def spans_of(recorder: Recorder) -> dict[str, Span]:
    """Return the spans by name, of which each comes once."""
    spans = recorder.spans()
    assert len({span.name for span in spans}) == len(spans)
    return {span.name: span for span in spans}


async def _pull(method: str, message: bytes) -> bytes:
    def work() -> bytes:
        with span("kernel"):
            return method.encode() + message

    return turns(work)()


def test_a_call_has_its_spans_on_both_sides_when_its_batch_is_traced(recorder: Recorder) -> None:
    """Queue, wire, answer, wait, turn and kernel are parts of each other, and the clocks are compared."""
    with traced(4):
        request = sending("Pull", "here:1")
    assert request is not None
    recorder.hold(request.place.trace)
    with leaving(request):
        line = wire(here(), "here:1")
    call = Call([("authorization", "x"), *line.metadata])
    line.follow(call)

    reply = asyncio.run(answering(_pull)("Pull", b"!", call))
    call.work[0](call)
    request.end(None)

    assert reply == b"Pull!"
    spans = spans_of(recorder)
    assert sorted(spans) == ["Pull", "answer", "kernel", "queue", "turn", "wait", "wire"]
    for part, around in (
        ("queue", "Pull"),
        ("wire", "Pull"),
        ("answer", "wire"),
        ("wait", "answer"),
        ("turn", "answer"),
        ("kernel", "turn"),
    ):
        assert spans[part].parent == spans[around].id, part
        assert spans[around].begin_ns <= spans[part].begin_ns, part
        assert spans[part].end_ns <= spans[around].end_ns, part
    assert len({one.trace for one in spans.values()}) == 1
    assert [spans[name].track for name in ("wire", "answer", "turn", "kernel")] == [
        "to here:1",
        "answers",
        "owner",
        "owner",
    ]
    ((process, endpoint, windows),) = recorder.clocks.known()
    assert (process, endpoint) == (recorder.process, "here:1")
    assert windows[0].low_ns <= 0 <= windows[0].high_ns


def test_a_call_carries_nothing_when_its_batch_is_not_traced(recorder: Recorder) -> None:
    """Outside of a batch a request has no metadata, no spans, and its reply says nothing."""
    assert sending("Pull", "here:1") is None
    line, call = wire(here(), "here:1"), Call()
    line.follow(call)

    assert asyncio.run(answering(_pull)("Pull", b"", call)) == b"Pull"

    assert (line.metadata, call.work, call.trailing, recorder.spans()) == ((), [], [], [])


@pytest.mark.parametrize(
    "told",
    [
        "",
        "00-1-2-01",
        f"00-{'g' * 32}-{'1' * 16}-01",
        f"01-{'1' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'1' * 16}-00",
    ],
    ids=["empty", "short", "no-hex", "another-version", "not-sampled"],
)
def test_a_call_is_answered_when_its_trace_is_none_of_ours(recorder: Recorder, told: str) -> None:
    """Whatever stands in ``traceparent``, the request is answered; what is not understood is not traced."""
    call = Call([(TRACE_KEY, told)])

    assert asyncio.run(answering(_pull)("Pull", b"", call)) == b"Pull"

    assert (call.trailing, recorder.spans()) == ([], [])


@pytest.mark.parametrize("told", ["", "x 1 2", "1 2", "1 -2 3", "1 2 3 4", "1" * 17 + " 1 1"])
def test_a_reply_is_taken_when_its_times_are_none_of_ours(recorder: Recorder, told: str) -> None:
    """A server's times that are not understood are passed over."""
    call = Call()
    call.trailing = [(CLOCK_KEY, told)]

    line = wire(Place(1, 2), "here:1")
    line.follow(call)
    call.work[0](call)

    assert recorder.clocks.known() == []
    assert [one.name for one in recorder.spans()] == ["wire"]


def test_a_request_that_is_tried_again_waits_in_the_queue_once(recorder: Recorder) -> None:
    """A second try is another ``wire`` of the same request, which ends with what came of the last one."""
    with traced(1):
        request = sending("Push", "here:1")
    assert request is not None
    for _ in range(2):
        with leaving(request):
            line, call = wire(here(), "here:1"), Call()
            line.follow(call)
            call.work[0](call)
    request.end(UnavailableError("gone"))

    names = [one.name for one in recorder.spans()]
    assert names == ["queue", "wire", "wire", "Push", "batch"]
    push = recorder.spans()[3]
    assert push.facts == {"error": "UnavailableError"}
    assert {one.parent for one in recorder.spans()[:3]} == {push.id}


def test_work_that_has_to_wait_is_held_between_its_turns(recorder: Recorder) -> None:
    """Work that is begun again has a wait and a turn, then a hold and a turn."""
    waits = iter([NotYet(0, "for others")])

    def work() -> None:
        for wait in waits:
            raise wait

    with within(Place(1, 2, "answers", 2)):
        again = turns(work)
    with pytest.raises(NotYet):
        again()
    again()

    spans = recorder.spans()
    assert [one.name for one in spans] == ["wait", "turn", "hold", "turn"]
    ends = [(one.begin_ns, one.end_ns) for one in spans]
    assert all(early[1] <= late[0] for early, late in itertools.pairwise(ends))
