"""Chrome's trace event format, as its document has it and as Perfetto reads it: what a file must keep."""

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Event = dict[str, Any]

_US = 2e-3  # two nanoseconds: what rounding to floats of microseconds may take


def read_events(path: Path) -> list[Event]:
    """Return the events of a file, checked."""
    whole = json.loads(path.read_text(encoding="utf-8"))
    assert whole["displayTimeUnit"] == "ms"
    events: list[Event] = whole["traceEvents"]
    check_events(events)
    return events


def check_events(events: list[Event]) -> None:
    """See that events have what their phase asks for, that spans nest on each track, and that flows hold."""
    for event in events:
        assert {"ph", "name", "pid", "tid"} <= event.keys()
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert event["args"]["name"]
        elif event["ph"] == "X":
            assert event["ts"] == event["ts"]
            assert event["dur"] >= 0.0
        else:
            assert event["ph"] in "stf"
            assert event["cat"]
            assert event["id"]
            assert (event.get("bp") == "e") is (event["ph"] == "f")
    spans = [event for event in events if event["ph"] == "X"]
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in spans} <= named
    assert {e["pid"] for e in spans} <= {e["pid"] for e in events if e["name"] == "process_name"}
    check_nesting(spans)
    check_flows([event for event in events if event["ph"] in "stf"], spans)


def check_nesting(spans: list[Event]) -> None:
    """See that spans of a track lie inside or beside each other: Perfetto drops what overlaps."""
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in spans:
        tracks[event["pid"], event["tid"]].append(event)
    for events in tracks.values():
        around: list[float] = []  # ends
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            end = event["ts"] + event["dur"]
            while around and around[-1] <= event["ts"] + _US:
                around.pop()
            assert not around or end <= around[-1] + _US, event
            around.append(end)


def check_flows(points: list[Event], spans: list[Event]) -> None:
    """See that each flow begins and ends once, goes forward, and is bound to spans that are there."""
    flows: dict[tuple[str, str, str], list[Event]] = defaultdict(list)
    for event in points:
        flows[event["cat"], event["name"], event["id"]].append(event)
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in spans:
        tracks[event["pid"], event["tid"]].append(event)
    for flow in flows.values():
        assert [e["ph"] for e in flow] == ["s", *("t" * (len(flow) - 2)), "f"]
        times = [e["ts"] for e in flow]
        assert all(late >= early - _US for early, late in itertools.pairwise(times))
        for event in flow:
            there = tracks[event["pid"], event["tid"]]
            assert any(s["ts"] - _US <= event["ts"] <= s["ts"] + s["dur"] + _US for s in there)
