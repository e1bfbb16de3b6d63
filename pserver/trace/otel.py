"""Spans to a collector, by OTLP over gRPC. Needs the extra ``otel``; nothing else loads this.

Rooms before and after: ``recorder`` hands on each span; ``files`` makes one of these and ends it. The collector's own gRPC
connection is opentelemetry's.

What always holds:
    * Whoever ends a span only puts it into a deque; a thread of its own makes and sends what the collector takes.
    * At most ``_WAITING_MAX`` spans wait. A collector that is slow or gone costs spans, which are counted and told once; it
      never holds up a batch.
    * Nothing is encrypted: a collector on this machine, or in a network of its own.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

import structlog
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from pserver._version import __version__
from pserver.trace.recorder import Recorder, Span, batch_of

log = structlog.get_logger(__name__)

_WAITING_MAX = 8192
_AT_ONCE = 512
_EVERY_S = 1.0
_TIMEOUT_S = 5.0  # for one export, tries included; the end of a process waits for no more than two

_KINDS = {"wire": SpanKind.CLIENT, "answer": SpanKind.SERVER}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Export:
    """Sends the spans of a recorder. Owner: its thread, but for ``put``."""

    def __init__(self, endpoint: str, recorder: Recorder, *, name: str) -> None:
        """Begin; the collector need not be there yet.

        Args:
            endpoint: HOST:PORT of the collector.
            recorder: whose spans come.
            name: of this process, such as ``trainer 0``.
        """
        logging.getLogger("opentelemetry").setLevel(
            logging.CRITICAL
        )  # it is told here, as an event
        self._endpoint = endpoint
        self._exporter = OTLPSpanExporter(endpoint=endpoint, insecure=True, timeout=_TIMEOUT_S)
        # time_ns of a trace is for people and collectors; durations are of a clock that only goes forward.
        self._epoch_ns = time.time_ns() - recorder.now()
        kind = name.split()[0]
        self._resource = Resource(
            {
                "service.name": "trainer" if kind == "trainer" else "pserver",
                "service.instance.id": f"{recorder.process:016x}",
                "service.version": __version__,
                "pserver.process": name,
            }
        )
        self._scope = InstrumentationScope("pserver", __version__)
        self._waiting: deque[Span] = deque(maxlen=_WAITING_MAX)
        self._num_put = self._num_sent = 0
        self._is_out = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel", daemon=True)
        self._thread.start()
        recorder.add_sink(self.put)

    def put(self, span: Span) -> None:
        """Take a span; any thread's."""
        self._num_put += 1
        self._waiting.append(span)

    def end(self) -> None:
        """Send what waits, once, and say how much did not arrive."""
        self._is_over.set()
        self._thread.join()
        self._exporter.shutdown()
        lost = self._num_put - self._num_sent
        if lost > 0:
            log.warning(
                "spans were not exported; is the collector there, and fast enough? --trace-every takes fewer",
                endpoint=self._endpoint,
                spans=lost,
            )

    def _run(self) -> None:
        while not self._is_over.wait(_EVERY_S):
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        """Send what waits now; what cannot be sent is lost."""
        while self._waiting:
            count = min(_AT_ONCE, len(self._waiting))
            spans = [self._waiting.popleft() for _ in range(count)]
            if not self._send(spans):
                return

    def _send(self, spans: Sequence[Span]) -> bool:
        done = self._exporter.export([self._made(span) for span in spans])
        is_out, self._is_out = self._is_out, done is not SpanExportResult.SUCCESS
        if not self._is_out:
            self._num_sent += len(spans)
        elif not is_out:
            log.warning(
                "the collector does not take spans; see that it is there and speaks OTLP over gRPC",
                endpoint=self._endpoint,
            )
        return not self._is_out

    def _made(self, span: Span) -> ReadableSpan:
        """Return a span as opentelemetry has it."""
        number, _ = batch_of(span.trace)
        facts = dict(span.facts or {})
        error = facts.get("error")
        parent = _context(span.trace, span.parent) if span.parent else None
        return ReadableSpan(
            span.name,
            context=_context(span.trace, span.id),
            parent=parent,
            resource=self._resource,
            attributes={"pserver.batch": number, "pserver.track": span.track, **facts},
            kind=_KINDS.get(span.name, SpanKind.INTERNAL),
            status=Status(StatusCode.ERROR, str(error)) if error else Status(),
            start_time=self._epoch_ns + span.begin_ns,
            end_time=self._epoch_ns + span.end_ns,
            instrumentation_scope=self._scope,
        )


def _context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=False, trace_flags=_SAMPLED)
