"""The traces of several processes as one, on one clock.

Rooms before and after: ``files`` wrote the files, each with times of its own clock and what its calls say of others';
``pserver trace merge`` writes the result, ``show`` reads it.

The first file with calls is the reference; every other process is reached from it over calls, the best known first. Where one
offset suits all calls between two processes it is the middle of what they leave; else their clocks drift, and the middles
of each ten seconds are joined by lines. The error is at most half of what was left.
"""

import heapq
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pserver.errors import ConfigError
from pserver.trace.chrome import FORMAT, Event, flows

Shift = Callable[[float], float]
"""From microseconds of one clock to those of another."""


@dataclass(frozen=True, slots=True)
class Traced:
    """The trace of one process, as its file has it.

    Attributes:
        path: of the file.
        about: the process.
        events: without flows.
    """

    path: str
    about: dict[str, Any]
    events: list[Event]


@dataclass(frozen=True, slots=True)
class _Edge:
    """What calls from one process to another say: their clock minus ours, in microseconds.

    Attributes:
        at: times by our clock, rising.
        offset: at each.
        error: at most.
    """

    at: tuple[float, ...]
    offset: tuple[float, ...]
    error: float

    def there(self, ours: float) -> float:
        """Return their time for one of ours."""
        return ours + float(np.interp(ours, self.at, self.offset))

    def here(self, theirs: float) -> float:
        """Return our time for one of theirs."""
        about = theirs - self.offset[0]
        return theirs - float(np.interp(about, self.at, self.offset))


def read_trace(path: Path) -> tuple[dict[str, Any], list[Event]]:
    """Return what a file says of itself, and its events.

    Raises:
        ConfigError: there is none, it is no trace of ours, or of a newer format.
    """
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        about, events = whole["pserver"], whole["traceEvents"]
        found = int(about["format"])
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: is no trace of a pserver or trainer; give what --trace wrote"
        ) from error
    if found > FORMAT:
        raise ConfigError(f"{path}: has format {found}, this release knows up to {FORMAT}")
    return about, events


def _traced(path: Path) -> Traced:
    about, events = read_trace(path)
    if len(about["processes"]) != 1:
        raise ConfigError(f"{path}: is merged already; give the files of single processes")
    shown = [event for event in events if event["ph"] in ("X", "M")]
    return Traced(str(path), about["processes"][0], shown)


def merge(paths: Sequence[Path]) -> tuple[dict[str, Any], list[Event]]:
    """Return what the files say together: about the processes, and all events on one clock.

    Raises:
        ConfigError: a file is no trace, the same process comes twice, or nothing is known of a process's clock.
    """
    traces = [_traced(path) for path in paths]
    of = {trace.about["process"]: trace for trace in traces}
    if len(of) < len(traces):
        twice = [t.path for t in traces if of[t.about["process"]] is not t]
        raise ConfigError(f"{twice[0]}: the same process as in another file; give each once")
    first = next((trace for trace in traces if trace.about["clocks"]), traces[0])
    shifts = _shifts(first, of)
    missing = [trace.path for trace in traces if trace.about["process"] not in shifts]
    if missing:
        raise ConfigError(
            f"{missing[0]}: nothing is known of its clock, since it answered no call of a trace that was "
            "given, and none of its calls; give the file of a trainer that used the same servers"
        )
    processes, events = [], []
    for pid, trace in enumerate(traces, 1):
        shift, error = shifts[trace.about["process"]]
        offset = shift(0.0)
        processes.append({**trace.about, "offset_us": offset, "offset_error_us": error})
        events += [_moved(event, pid, shift) for event in trace.events]
    return {"format": FORMAT, "processes": processes}, [*events, *flows(events)]


def _moved(event: Event, pid: int, shift: Shift) -> Event:
    """Return an event of another process number, on the common clock."""
    if event["ph"] == "M":
        return {**event, "pid": pid}
    begin = shift(event["ts"])
    return {**event, "pid": pid, "ts": begin, "dur": shift(event["ts"] + event["dur"]) - begin}


def _shifts(first: Traced, of: dict[str, Traced]) -> dict[str, tuple[Shift, float]]:
    """Return the way from each process's clock to the first one's and its error, over the best known calls."""
    edges: dict[str, list[tuple[str, Shift, float]]] = {process: [] for process in of}
    for process, trace in of.items():
        for clock in trace.about["clocks"]:
            other = clock["process"]
            if other in of:
                edge = _edge(clock["windows"])
                edges[process].append((other, edge.here, edge.error))
                edges[other].append((process, edge.there, edge.error))
    found: dict[str, tuple[Shift, float]] = {}
    start = first.about["process"]
    reached: list[tuple[float, int, str, Shift]] = [(0.0, 0, start, _same)]
    number = 0  # so that functions are never compared
    while reached:
        error, _, process, shift = heapq.heappop(reached)
        if process in found:
            continue
        found[process] = (shift, error)
        for other, back, more in edges[process]:
            number += 1
            heapq.heappush(reached, (error + more, number, other, _chained(back, shift)))
    return found


def _same(at: float) -> float:
    return at


def _chained(inner: Shift, outer: Shift) -> Shift:
    return lambda at: outer(inner(at))


def _edge(windows: Sequence[Sequence[float]]) -> _Edge:
    """Return what windows of time, low and high say together.

    >>> _edge([[5e6, 90.0, 104.0], [15e6, 98.0, 110.0]])
    _Edge(at=(0.0,), offset=(101.0,), error=3.0)
    >>> _edge([[5e6, 90.0, 94.0], [15e6, 98.0, 100.0]])
    _Edge(at=(5000000.0, 15000000.0), offset=(92.0, 99.0), error=2.0)
    """
    low, high = max(w[1] for w in windows), min(w[2] for w in windows)
    if low <= high:
        return _Edge((0.0,), ((low + high) / 2,), (high - low) / 2)
    error = max(abs(w[2] - w[1]) for w in windows) / 2
    return _Edge(tuple(w[0] for w in windows), tuple((w[1] + w[2]) / 2 for w in windows), error)
