"""The trace of one process: made by its settings, written to a file while it goes on and when it ends.

Rooms before and after: ``cli`` of servers and the trainer's ``job`` run inside ``recording``; ``recorder`` has the spans,
``chrome`` makes events of them, ``otel`` sends them.

What always holds: a file that is there is whole, and has the last spans: it is written anew ``_QUIET_S`` after the last
one, at least every ``_EVERY_S``, and at the end. What cannot be written is told, and changes nothing of the run.
"""

import contextlib
import datetime
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from pserver.config_trace import TraceSettings
from pserver.errors import ConfigError
from pserver.trace.chrome import FORMAT, Event, events_of, flows
from pserver.trace.recorder import ACTIVE, Recorder
from pserver.transport import split_endpoint

log = structlog.get_logger(__name__)

_QUIET_S = 2.0
_EVERY_S = 60.0
_CHUNK = 256  # events that are made to text at once, a millisecond: other threads wait for no more


def numbered_file(file: str, number: int | str | None) -> str:
    """Return the file of one process of several, by its number or name.

    >>> numbered_file("out.json", 1), numbered_file("out.json", None)
    ('out-1.json', 'out.json')
    """
    path = Path(file)
    return file if number is None else str(path.with_name(f"{path.stem}-{number}{path.suffix}"))


def _export(endpoint: str, recorder: Recorder, name: str) -> Callable[[], None]:
    """Begin to send spans to a collector, and return what ends that."""
    split_endpoint(endpoint, where="--otel-endpoint")
    try:
        from pserver.trace.otel import Export
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--otel-endpoint needs the package {error.name}: pip install 'pserver[otel]'"
        ) from error
    return Export(endpoint, recorder, name=name).end


class TraceFile:
    """The file of one recorder. Owner: the thread that writes it."""

    def __init__(self, path: Path, recorder: Recorder, *, name: str) -> None:
        """See that it can be written.

        Args:
            path: of the file; what is there is replaced.
            recorder: whose spans are written.
            name: of this process, for people.

        Raises:
            ConfigError: the file cannot be written.
        """
        self._path, self._recorder, self._name = path, recorder, name
        self._began = datetime.datetime.now(datetime.UTC).isoformat()
        try:
            self._write()
        except OSError as error:
            raise ConfigError(f"--trace {path}: cannot be written: {error.strerror}") from error

    def write(self) -> None:
        """Write what is there now; a failure is told."""
        try:
            self._write()
        except OSError as error:
            log.warning(
                "trace not written; see that there is room, the run goes on",
                file=str(self._path),
                error=str(error),
            )

    def _write(self) -> None:
        spans = self._recorder.spans()
        events = events_of(spans, pid=os.getpid(), name=self._name)
        about = {"format": FORMAT, "processes": [self._about(len(spans))]}
        write_events(self._path, [*events, *flows(events)], about)

    def _about(self, kept: int) -> dict[str, object]:
        recorder = self._recorder
        return {
            "process": f"{recorder.process:016x}",
            "name": self._name,
            "host": platform.node(),
            "pid": os.getpid(),
            "began": self._began,
            "every": recorder.every,
            "gone": recorder.num_recorded - kept,
            "clocks": [
                {
                    "process": f"{process:016x}",
                    "endpoint": endpoint,
                    "windows": [[w.at_ns / 1e3, w.low_ns / 1e3, w.high_ns / 1e3] for w in windows],
                }
                for process, endpoint, windows in recorder.clocks.known()
            ],
        }


def write_events(path: Path, events: list[Event], about: dict[str, object]) -> None:
    """Write a trace file: whole, or not at all.

    Raises:
        OSError: the system refused.
    """
    begun = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with begun.open("w", encoding="utf-8") as out:
            out.write('{"displayTimeUnit":"ms","pserver":')
            json.dump(about, out)
            out.write(',"traceEvents":[\n')
            for start in range(0, len(events), _CHUNK):
                texts = [json.dumps(event) for event in events[start : start + _CHUNK]]
                out.write(",\n" * bool(start) + ",\n".join(texts))
            out.write("\n]}\n")
        begun.replace(path)
    finally:
        begun.unlink(missing_ok=True)


class _Writer:
    """A thread that writes a file again and again while there is something new."""

    def __init__(self, file: TraceFile, recorder: Recorder) -> None:
        self._file, self._recorder = file, recorder
        self._is_over = threading.Event()
        seen = recorder.num_recorded  # before the thread runs: a batch may come first
        self._thread = threading.Thread(target=self._run, args=(seen,), name="trace", daemon=True)
        self._thread.start()

    def _run(self, seen: int) -> None:
        written = seen
        written_s = time.monotonic()
        while not self._is_over.wait(_QUIET_S):
            before, seen = seen, self._recorder.num_recorded
            is_due = seen == before or time.monotonic() - written_s > _EVERY_S
            if seen != written and is_due:
                written, written_s = seen, time.monotonic()
                self._file.write()

    def end(self) -> None:
        """Write it for the last time."""
        self._is_over.set()
        self._thread.join()
        self._file.write()


@contextlib.contextmanager
def recording(
    settings: TraceSettings, *, name: str, number: int | None = None, every: int = 1
) -> Iterator[None]:
    """Record the spans of this process, if its settings ask for that.

    Args:
        settings: of the process.
        name: of it, for people.
        number: of it among several with these settings, in the name of its file; None: it is the only one.
        every: every so many batches of this process are traced.

    Raises:
        ConfigError: the file cannot be written, or what exports is not installed.
    """
    if settings.trace is None and settings.otel_endpoint is None:
        yield
        return
    if ACTIVE.recorder is not None:
        raise ConfigError("this process records a trace already; one process has one trace")
    recorder = Recorder(every=every)
    with contextlib.ExitStack() as stack:
        if settings.trace is not None:
            path = Path(numbered_file(settings.trace, number))
            stack.callback(_Writer(TraceFile(path, recorder, name=name), recorder).end)
        if settings.otel_endpoint is not None:
            stack.callback(_export(settings.otel_endpoint, recorder, name))
        ACTIVE.recorder = recorder
        try:
            yield
        finally:
            ACTIVE.recorder = None
