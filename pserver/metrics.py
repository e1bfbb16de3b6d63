"""What a shard counts: Prometheus series, and the last ten seconds for ``pserver status``.

Rooms before and after: ``server.servicer`` counts each call; ``server.app`` serves the page.
Labels are method, code and table, never key, trainer or text. So a page has at most ``series_max`` series,
however many trainers there are and keys.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from typing_extensions import override

RECENT_S = 10.0
"""How far back the rates and percentiles of ``pserver status`` look."""

_RECENT_MAX = 8192  # calls of one method kept for percentiles: 10 s at 800 a second
_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 30.0)
_WHOLE = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def series_max(*, tables: int, methods: int, answers: int) -> int:
    """Return the most series that a shard's page has: a bound for whoever sizes a Prometheus.

    Args:
        tables: of the shard, up to 16 series each.
        methods: that were called: bytes there and back, and when each was first counted.
        answers: pairs of method and code that were seen, a histogram each.

    >>> series_max(tables=100, methods=25, answers=40)
    2480
    """
    histogram = len(_BUCKETS) + 4  # the bucket without end, count, sum, when it was first counted
    return 16 * tables + 4 * methods + histogram * answers + 60


@dataclass(frozen=True, slots=True)
class Recent:
    """The calls of one method over the last seconds. Seconds are of the server's own time."""

    method: str
    calls: int
    errors: int
    calls_per_s: float
    p50_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class Series:
    """A series read when the page is asked for: name without prefix, help, labels and values.

    A name that ends in ``_total`` is a counter, any other a gauge.
    """

    name: str
    text: str
    labels: tuple[str, ...]
    read: Callable[[], Iterable[tuple[tuple[str, ...], float]]]


@dataclass(frozen=True, slots=True)
class SpreadSeries:
    """A histogram of small whole numbers: name without prefix, help, and how often each number came."""

    name: str
    text: str
    read: Callable[[], Sequence[int]]

    def family(self, prefix: str) -> Metric:
        """Return it as it is now."""
        counts = self.read()
        behind = [0, *accumulate(counts)]  # numbers below each place
        buckets = [(str(float(le)), behind[min(le + 1, len(counts))]) for le in _WHOLE]
        family = HistogramMetricFamily(f"{prefix}_{self.name}", self.text)
        total = sum(number * count for number, count in enumerate(counts))
        family.add_metric([], [*buckets, ("+Inf", behind[-1])], total)
        return family


class _AtScrape(Collector):
    """Reads series at the moment of a scrape."""

    def __init__(self, series: "Iterable[AnySeries]", prefix: str) -> None:
        self._series = tuple(series)
        self._prefix = prefix

    @override
    def collect(self) -> Iterator[Metric]:
        for series in self._series:
            if isinstance(series, SpreadSeries):
                yield series.family(self._prefix)
                continue
            kind = CounterMetricFamily if series.name.endswith("_total") else GaugeMetricFamily
            family = kind(f"{self._prefix}_{series.name}", series.text, labels=series.labels)
            for labels, value in series.read():
                family.add_metric(labels, value)
            yield family


AnySeries: TypeAlias = Series | SpreadSeries


def registry_of(series: Iterable[AnySeries], *, prefix: str) -> CollectorRegistry:
    """Return a page's registry: of its own, so that several pages can live in one process."""
    registry = CollectorRegistry()
    registry.register(_AtScrape(series, prefix))
    return registry


class _Method:
    """Counters of one method; its series are looked up once, which costs more than to count."""

    def __init__(self, received: Counter, sent: Counter) -> None:
        self.received = received
        self.sent = sent
        self.seconds: dict[str, Histogram] = {}  # by code
        self.calls = 0
        self.errors = 0
        self.recent: deque[tuple[float, float]] = deque(maxlen=_RECENT_MAX)


class Metrics:
    """The counters of one shard. Owner: the event loop; the rest is read at scrape."""

    def __init__(self, series: Iterable[AnySeries] = ()) -> None:
        """Begin with the series that are read at a scrape."""
        self.registry = registry_of(series, prefix="pserver")
        self._seconds = Histogram(
            "pserver_request_seconds",
            "Time from a request's arrival to its answer.",
            ("method", "code"),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._received = Counter(
            "pserver_received_bytes_total", "Request bytes.", ("method",), registry=self.registry
        )
        self._sent = Counter(
            "pserver_sent_bytes_total", "Reply bytes.", ("method",), registry=self.registry
        )
        self._methods: dict[str, _Method] = {}

    def count(self, method: str, code: str, *, seconds: float, received: int, sent: int) -> None:
        """Count one call that was answered.

        Args:
            method: of the service.
            code: "OK" or the gRPC code of the error.
            seconds: from arrival to answer.
            received: bytes of the request.
            sent: bytes of the reply, 0 for an error.
        """
        entry = self._methods.get(method)
        if entry is None:
            entry = _Method(self._received.labels(method), self._sent.labels(method))
            self._methods[method] = entry
        if code not in entry.seconds:
            entry.seconds[code] = self._seconds.labels(method, code)
        entry.seconds[code].observe(seconds)
        entry.received.inc(received)
        entry.sent.inc(sent)
        entry.calls += 1
        entry.errors += code != "OK"
        entry.recent.append((time.monotonic(), seconds))

    def recent(self) -> list[Recent]:
        """Return each method's calls so far, and its rate and percentiles over RECENT_S."""
        return [self._recent_of(name, method) for name, method in sorted(self._methods.items())]

    @staticmethod
    def _recent_of(name: str, method: _Method) -> Recent:
        now = time.monotonic()
        calls = [(at, seconds) for at, seconds in method.recent if now - at <= RECENT_S]
        if not calls:
            return Recent(name, method.calls, method.errors, 0.0, 0.0, 0.0, 0.0)
        # A full deque reaches back less than RECENT_S.
        span = now - calls[0][0] if len(calls) == _RECENT_MAX else RECENT_S
        ordered = sorted(seconds for _, seconds in calls)
        return Recent(
            method=name,
            calls=method.calls,
            errors=method.errors,
            calls_per_s=len(calls) / max(span, 1e-3),
            p50_s=ordered[len(ordered) // 2],
            p99_s=ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
            max_s=ordered[-1],
        )
