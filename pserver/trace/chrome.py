"""Spans as events of Chrome's trace format, which Perfetto and chrome://tracing show, and back.

Rooms before and after: ``files`` writes one process's file with it; ``merge`` reads several, ``show`` one.

A file is one JSON object: ``traceEvents``, an ``X`` (complete) event a span with times in microseconds, ``M`` (metadata)
events that name processes and tracks, and the flows ``s``, ``t``, ``f`` that join spans; and ``pserver``, what the format has no place
for. On one track spans lie inside or beside each other; those that would overlap get tracks (lanes) of their own.

Source: "Trace Event Format", the Chromium project.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from pserver.trace.recorder import Span, batch_of

FORMAT = 1
"""Of the object ``pserver`` in a file."""

Event: TypeAlias = dict[str, Any]

_US = 1e-3  # of a nanosecond

_ORDER = ("batches", "trainer-read", "MainThread")  # of tracks; the others follow

_SHOWN = {"MainThread": "training thread", "trainer-read": "reading thread"}

_CALL = ("wire", "answer", "turn")
"""The spans that the flow of one call joins, each the parent of the next; it ends where the first one does."""

_BATCH = ("read", "dedupe", "fetch", "step")
"""The spans that the flow of one batch joins in a trainer."""


def events_of(spans: Sequence[Span], *, pid: int, name: str) -> list[Event]:
    """Return the events of one process's spans, without flows.

    Args:
        spans: in any order.
        pid: that events name.
        name: of the process, for people.
    """
    lanes = _lanes(spans)
    titles = sorted({_title(span, lanes) for span in spans}, key=_rank)
    tids = {title: tid for tid, title in enumerate(titles, 1)}
    found = [_named(pid, 0, "process_name", name)]
    found += [_named(pid, tid, "thread_name", title) for title, tid in tids.items()]
    for span in spans:
        number, process = batch_of(span.trace)
        args = {
            "batch": number,
            "of": f"{process:016x}",
            "id": f"{span.id:016x}",
            "parent": f"{span.parent:016x}",
            **(span.facts or {}),
        }
        found.append(
            {
                "ph": "X",
                "name": span.name,
                "cat": "pserver",
                "pid": pid,
                "tid": tids[_title(span, lanes)],
                "ts": span.begin_ns * _US,
                "dur": (span.end_ns - span.begin_ns) * _US,
                "args": args,
            }
        )
    return found


def _named(pid: int, tid: int, what: str, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _rank(title: str) -> tuple[int, str]:
    names = [_SHOWN.get(name, name) for name in _ORDER]
    return (names.index(title) if title in names else len(names), title)


def _title(span: Span, lanes: Mapping[int, int]) -> str:
    """Return the name of the track on which a span is shown."""
    lane = lanes.get(span.lane, 0)
    shown = _SHOWN.get(span.track, span.track)
    return f"{shown} {lane + 1}" if lane else shown


def _lanes(spans: Sequence[Span]) -> dict[int, int]:
    """Return on which lane of its track each group of spans is, the first that is free."""
    groups: dict[int, tuple[int, int, str]] = {}
    for span in spans:
        if span.lane:
            begin, end, _ = groups.get(span.lane, (span.begin_ns, span.end_ns, ""))
            groups[span.lane] = (min(begin, span.begin_ns), max(end, span.end_ns), span.track)
    free_at: dict[str, list[int]] = defaultdict(list)  # when each lane of a track is free
    lanes = {}
    for key, (begin, end, track) in sorted(groups.items(), key=lambda group: group[1]):
        ends = free_at[track]
        lane = next((lane for lane, at in enumerate(ends) if at <= begin), len(ends))
        ends[lane : lane + 1] = [end]
        lanes[key] = lane
    return lanes


def flows(events: Iterable[Event]) -> list[Event]:
    """Return the flows that join spans: of each call that both sides recorded, and of each batch in its trainer."""
    spans = [event for event in events if event["ph"] == "X"]
    parts: dict[str, dict[str, Event]] = defaultdict(dict)
    for event in spans:
        parts[event["args"]["parent"]].setdefault(event["name"], event)
    found: list[Event] = []
    for begin in spans:
        if begin["name"] == _CALL[0]:
            joined = [begin]
            for name in _CALL[1:]:
                part = parts[joined[-1]["args"]["id"]].get(name)
                if part is None:
                    break
                joined.append(part)
            if len(joined) > 1:
                found += _flow("call", begin["args"]["id"], joined, back=begin)
        elif begin["name"] == "batch":
            children = parts[begin["args"]["id"]]
            joined = [children[name] for name in _BATCH if name in children]
            if len(joined) > 1:
                found += _flow("batch", begin["args"]["id"], joined, back=None)
    return found


def _flow(name: str, key: str, joined: Sequence[Event], *, back: Event | None) -> list[Event]:
    """Return a flow through the beginnings of spans; ``back``: to the end of one."""
    points = [(event, event["ts"]) for event in joined]
    if back is not None:
        points.append((back, max(back["ts"], back["ts"] + back["dur"] - _US)))  # inside it
    phases = ["s", *("t" * (len(points) - 2)), "f"]
    return [
        {
            "ph": phase,
            "name": name,
            "cat": "flow",
            "id": key,
            "pid": event["pid"],
            "tid": event["tid"],
            "ts": at,
            **({"bp": "e"} if phase == "f" else {}),
        }
        for phase, (event, at) in zip(phases, points, strict=True)
    ]
