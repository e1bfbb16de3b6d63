"""What ``trace.chrome`` promises: events that hold Chrome's trace format, whatever overlaps."""

from hypothesis import given
from hypothesis import strategies as st

from pserver.trace.chrome import Event, events_of, flows
from pserver.trace.recorder import Span
from tests.chrome_format import check_events

TIMES = st.tuples(st.integers(0, 500), st.integers(1, 300), st.sampled_from(["to a", "to b"]))


def call(key: int, begin: int, took: int, track: str) -> list[Span]:
    """Return a request and its wire, on a lane of their own."""
    inside = (begin + took // 4, begin + took - took // 4)
    return [
        Span("Pull", begin, begin + took, 5 << 64 | 1, key, 1, track, key, None),
        Span("wire", *inside, 5 << 64 | 1, key + 1, key, track, key, {"code": "OK"}),
    ]


@given(st.lists(TIMES, max_size=30))
def test_spans_nest_on_every_track_whatever_overlaps(times: list[tuple[int, int, str]]) -> None:
    """Calls that overlap get lanes of their own, so that spans of a track never cross."""
    spans = [
        one
        for key, (begin, took, track) in enumerate(times, 1)
        for one in call(10 * key, 1000 * begin, 1000 * took, track)
    ]

    events = events_of(spans, pid=3, name="trainer 0")

    check_events(events)
    assert sum(event["ph"] == "X" for event in events) == len(spans)


def test_a_span_is_shown_as_it_was_recorded() -> None:
    """Times are microseconds; batch, ids and facts are arguments; tracks have names for people."""
    spans = [Span("read", 1500, 4000, 7 << 64 | 0xAB, 4, 3, "trainer-read", 0, {"rows": 2})]

    *named, event = events_of(spans, pid=3, name="trainer 0")

    assert [one["args"]["name"] for one in named] == ["trainer 0", "reading thread"]
    assert event == {
        "ph": "X",
        "name": "read",
        "cat": "pserver",
        "pid": 3,
        "tid": 1,
        "ts": 1.5,
        "dur": 2.5,
        "args": {
            "batch": 7,
            "of": "00000000000000ab",
            "id": "0000000000000004",
            "parent": "0000000000000003",
            "rows": 2,
        },
    }


def test_flows_join_both_sides_of_a_call_and_the_parts_of_a_batch() -> None:
    """A call's flow goes over the wire to the turn and back; a batch's from reading to its step."""
    trace = 1 << 64 | 1
    spans = [
        Span("batch", 0, 100_000, trace, 1, 0, "batches", 1, None),
        Span("read", 0, 10_000, trace, 2, 1, "trainer-read", 0, None),
        Span("step", 50_000, 90_000, trace, 3, 1, "MainThread", 0, None),
        Span("wire", 20_000, 40_000, trace, 5, 4, "to a", 4, None),
        Span("answer", 25_000, 35_000, trace, 6, 5, "answers", 6, None),
        Span("turn", 27_000, 30_000, trace, 7, 6, "owner", 0, None),
        Span(
            "wire", 41_000, 42_000, trace, 9, 8, "to a", 8, None
        ),  # of which a server tells nothing
    ]
    events = events_of(spans, pid=1, name="both")

    found = flows(events)

    check_events([*events, *found])
    assert [(one["name"], one["ph"], round(one["ts"])) for one in found] == [
        ("batch", "s", 0),
        ("batch", "f", 50),
        ("call", "s", 20),
        ("call", "t", 25),
        ("call", "t", 27),
        ("call", "f", 40),
    ]


def test_no_flow_is_there_when_one_side_is_missing() -> None:
    """What a server alone recorded has no flows: nothing would begin them."""
    events: list[Event] = events_of(
        [Span("answer", 0, 5, 1, 6, 5, "answers", 6, None)], pid=1, name="shard 0"
    )

    assert flows(events) == []
