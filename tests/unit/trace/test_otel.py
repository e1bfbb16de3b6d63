"""What ``trace.otel`` promises: the same spans at a collector, and a run that does not care if there is none."""

import queue
import sys
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
import structlog
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as wire_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service
from opentelemetry.proto.trace.v1 import trace_pb2
from typing_extensions import override

from pserver.config_trace import TraceSettings
from pserver.errors import ConfigError
from pserver.trace import numbered, otel, recording, span, traced
from pserver.trace.recorder import ACTIVE, Recorder

WAIT_S = 30.0


class Collector(service.TraceServiceServicer):
    """Takes what comes."""

    def __init__(self) -> None:
        self.came: queue.Queue[Any] = queue.Queue()

    @override
    def Export(self, request: Any, context: object) -> Any:
        del context
        self.came.put(request)
        return wire_pb2.ExportTraceServiceResponse()


@pytest.fixture
def collector() -> Iterator[tuple[str, Collector]]:
    """Return an OTLP receiver of this process, and where it listens."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    taking = Collector()
    service.add_TraceServiceServicer_to_server(taking, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", taking
    server.stop(None).wait(WAIT_S)


def one_batch() -> Recorder:
    """Do the work of a batch, and return its recorder."""
    for number, _ in numbered("a"):
        with traced(number, ends=True), span("step", step=1), span("push"):
            pass
    assert ACTIVE.recorder is not None
    return ACTIVE.recorder


def test_a_collector_gets_the_spans_that_were_recorded(collector: tuple[str, Collector]) -> None:
    """Ids, parents, times, facts and the process arrive as OpenTelemetry has them."""
    endpoint, taking = collector

    with recording(TraceSettings(otel_endpoint=endpoint), name="trainer 3"):
        recorder = one_batch()

    spans: dict[str, Any] = {}
    while set(spans) != {"read", "push", "step", "batch"}:
        (resource,) = taking.came.get(timeout=WAIT_S).resource_spans
        told = {one.key: one.value.string_value for one in resource.resource.attributes}
        assert (told["service.name"], told["pserver.process"]) == ("trainer", "trainer 3")
        for scope in resource.scope_spans:
            spans |= {one.name: one for one in scope.spans}
    ours = {one.name: one for one in recorder.spans()}
    for name, one in spans.items():
        assert one.trace_id == ours[name].trace.to_bytes(16, "big")
        assert one.span_id == ours[name].id.to_bytes(8, "big")
        parent = ours[name].parent
        assert one.parent_span_id == (parent.to_bytes(8, "big") if parent else b"")
        took = one.end_time_unix_nano - one.start_time_unix_nano
        assert took == ours[name].end_ns - ours[name].begin_ns
    facts = {one.key: one.value.int_value for one in spans["step"].attributes}
    assert (facts["step"], facts["pserver.batch"]) == (1, 1)


@pytest.mark.parametrize(
    ("name", "kind"), [("wire", "CLIENT"), ("answer", "SERVER"), ("x", "INTERNAL")]
)
def test_calls_are_of_the_kinds_that_collectors_draw(
    collector: tuple[str, Collector], name: str, kind: str
) -> None:
    """A call is a client's span on one side and a server's on the other; what failed has an error status."""
    endpoint, taking = collector

    with (
        recording(TraceSettings(otel_endpoint=endpoint), name="shard 0"),
        traced(1),
        pytest.raises(KeyError),
        span(name),
    ):
        raise KeyError

    (one,) = taking.came.get(timeout=WAIT_S).resource_spans[0].scope_spans[0].spans
    assert one.kind == trace_pb2.Span.SpanKind.Value(f"SPAN_KIND_{kind}")
    assert one.status.code == trace_pb2.Status.STATUS_CODE_ERROR
    assert one.status.message == "KeyError"


def test_a_run_goes_on_when_there_is_no_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans that nobody takes are counted and told once, with what to do; the work is done."""
    monkeypatch.setattr(otel, "_TIMEOUT_S", 0.2)

    with (
        structlog.testing.capture_logs() as logs,
        recording(TraceSettings(otel_endpoint="127.0.0.1:9"), name="shard 0"),
    ):
        one_batch()

    events = [one["event"] for one in logs]
    assert events == [
        "the collector does not take spans; see that it is there and speaks OTLP over gRPC",
        "spans were not exported; is the collector there, and fast enough? --trace-every takes fewer",
    ]
    assert logs[1]["spans"] == 4


def test_the_extra_is_named_when_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OpenTelemetry the setting is refused, and the error says what to install."""
    monkeypatch.delitem(sys.modules, "pserver.trace.otel")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)

    with (
        pytest.raises(ConfigError, match=r"--otel-endpoint needs .*pip install 'pserver\[otel\]'"),
        recording(TraceSettings(otel_endpoint="127.0.0.1:9"), name="shard 0"),
    ):
        raise AssertionError("not reached")


def test_an_endpoint_that_is_none_is_refused() -> None:
    """The collector is a HOST:PORT."""
    with (
        pytest.raises(ConfigError, match="--otel-endpoint: must be HOST:PORT"),
        recording(TraceSettings(otel_endpoint="collector"), name="shard 0"),
    ):
        raise AssertionError("not reached")
