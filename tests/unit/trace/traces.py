"""Traces by hand: files of processes whose clocks are known."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Window = tuple[float, float, float]


def span(
    name: str, begin: float, end: float, *, own: int, parent: int = 0, tid: int = 1, batch: int = 1
) -> dict[str, Any]:
    """Return a span of a batch of process 1, in microseconds."""
    args = {"batch": batch, "of": f"{1:016x}", "id": f"{own:016x}", "parent": f"{parent:016x}"}
    event = {"ph": "X", "name": name, "cat": "pserver", "pid": 9, "tid": tid}
    return {**event, "ts": begin, "dur": end - begin, "args": args}


def write(
    path: Path,
    process: int,
    name: str,
    events: Sequence[dict[str, Any]],
    *,
    clocks: dict[int, Sequence[Window]] | None = None,
) -> Path:
    """Write the file of one process, and return it.

    Args:
        path: of the file.
        process: its number.
        name: of it.
        events: its spans.
        clocks: by process that answered, windows of time, low and high in microseconds.
    """
    named = [
        {"ph": "M", "name": what, "pid": 9, "tid": tid, "args": {"name": title}}
        for what, tid, title in (
            ("process_name", 0, name),
            ("thread_name", 1, "track"),
            ("thread_name", 2, "other"),
        )
    ]
    told = [
        {"process": f"{other:016x}", "endpoint": "here:1", "windows": windows}
        for other, windows in (clocks or {}).items()
    ]
    about = {"process": f"{process:016x}", "name": name, "gone": 0, "clocks": told}
    whole = {
        "displayTimeUnit": "ms",
        "pserver": {"format": 1, "processes": [about]},
        "traceEvents": [*named, *events],
    }
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path
