"""What ``metrics`` promises: each call counted once, and ten seconds to look back on."""

import time

import pytest
from prometheus_client import generate_latest

from pserver.metrics import RECENT_S, Metrics, Series, SpreadSeries


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    """Return a value of the page, None where it is not there."""
    return metrics.registry.get_sample_value(f"pserver_{name}", labels)


def count(metrics: Metrics, seconds: float, *, method: str = "Pull", code: str = "OK") -> None:
    metrics.count(method, code, seconds=seconds, received=100, sent=40)


def test_a_call_is_on_the_page_when_it_was_counted() -> None:
    """Seconds go by method and code, bytes by method."""
    metrics = Metrics()

    count(metrics, 0.25)
    count(metrics, 0.5)
    count(metrics, 3.0, code="NOT_FOUND")
    count(metrics, 0.1, method="Push")

    pulls = {"method": "Pull", "code": "OK"}
    assert sample(metrics, "request_seconds_count", **pulls) == 2
    assert sample(metrics, "request_seconds_sum", **pulls) == 0.75
    assert sample(metrics, "request_seconds_bucket", le="0.2", **pulls) == 0
    assert sample(metrics, "request_seconds_bucket", le="0.5", **pulls) == 2
    assert sample(metrics, "request_seconds_count", method="Pull", code="NOT_FOUND") == 1
    assert sample(metrics, "received_bytes_total", method="Pull") == 300
    assert sample(metrics, "sent_bytes_total", method="Pull") == 120
    assert sample(metrics, "sent_bytes_total", method="Push") == 40


def test_a_series_is_read_when_the_page_is_asked_for() -> None:
    """A gauge or a counter by its name, its values those of the moment."""
    rows = {"ads": 1.0}
    metrics = Metrics(
        [
            Series("rows", "Rows.", ("table",), lambda: [((k,), v) for k, v in rows.items()]),
            Series("pulled_keys_total", "Keys.", (), lambda: [((), 7.0)]),
        ]
    )
    assert sample(metrics, "rows", table="ads") == 1.0

    rows.update(ads=2.0, users=3.0)

    assert sample(metrics, "rows", table="ads") == 2.0
    assert sample(metrics, "rows", table="users") == 3.0
    assert sample(metrics, "pulled_keys_total") == 7.0
    text = generate_latest(metrics.registry).decode()
    assert "# TYPE pserver_rows gauge" in text
    assert "# TYPE pserver_pulled_keys_total counter" in text


def test_a_spread_is_a_histogram_when_the_page_is_asked_for() -> None:
    """Counts of whole numbers become cumulative buckets, a count and a sum; what is above them counts too."""
    counts = [3, 2, 0, 1]
    metrics = Metrics([SpreadSeries("staleness_versions", "Staleness.", lambda: counts)])

    def bucket(le: str) -> float | None:
        return sample(metrics, "staleness_versions_bucket", le=le)

    assert [bucket(le) for le in ("0.0", "1.0", "2.0", "4.0", "512.0", "+Inf")] == [
        3,
        5,
        5,
        6,
        6,
        6,
    ]
    assert sample(metrics, "staleness_versions_count") == 6
    assert sample(metrics, "staleness_versions_sum") == 2 + 3
    counts.extend([0] * 1019 + [7])  # 1023 came seven times

    assert [bucket(le) for le in ("512.0", "+Inf")] == [6, 13]
    counts.clear()

    assert [bucket(le) for le in ("0.0", "+Inf")] == [0, 0]


def test_two_shards_count_apart_when_they_live_in_one_process() -> None:
    """Each has a registry of its own."""
    first, second = Metrics(), Metrics()

    count(first, 1.0)

    assert sample(first, "received_bytes_total", method="Pull") == 100
    assert sample(second, "received_bytes_total", method="Pull") is None
    assert second.recent() == []


def test_the_percentiles_are_exact_when_calls_are_recent() -> None:
    """Of 1 to 100 ms in any order: the median, the 99th of 100, the most, and calls a second."""
    metrics = Metrics()
    for i in range(100):
        count(metrics, (i * 37 % 100 + 1) / 1000, code="OK" if i % 10 else "INTERNAL")

    (recent,) = metrics.recent()

    assert (recent.method, recent.calls, recent.errors) == ("Pull", 100, 10)
    assert (recent.p50_s, recent.p99_s, recent.max_s) == (0.051, 0.1, 0.1)
    assert recent.calls_per_s == 100 / RECENT_S


def test_a_single_call_is_every_percentile_when_it_is_the_only_one() -> None:
    """One call is median and maximum at once; methods come in alphabetical order."""
    metrics = Metrics()
    count(metrics, 2.0, method="Push")
    count(metrics, 1.0, method="Pull")

    pull, push = metrics.recent()

    assert (pull.p50_s, pull.p99_s, pull.max_s) == (1.0, 1.0, 1.0)
    assert (push.p50_s, push.p99_s, push.max_s) == (2.0, 2.0, 2.0)


def test_old_calls_stay_counted_when_they_leave_the_last_seconds() -> None:
    """Totals keep what rates and percentiles forget."""
    metrics = Metrics()
    for _ in range(3):
        count(metrics, 9.0)
    calls = metrics._methods["Pull"].recent
    calls.clear()
    long_ago = time.monotonic() - RECENT_S - 1.0
    calls.extend([(long_ago, 9.0), (long_ago, 9.0), (time.monotonic(), 0.5)])

    (recent,) = metrics.recent()
    assert (recent.calls, recent.max_s, recent.calls_per_s) == (3, 0.5, 1 / RECENT_S)

    calls.pop()
    (recent,) = metrics.recent()
    assert (recent.calls, recent.max_s, recent.calls_per_s) == (3, 0.0, 0.0)


def test_the_rate_is_of_what_is_kept_when_calls_come_faster() -> None:
    """A full memory reaches back less than ten seconds, and the rate is over that time."""
    metrics = Metrics()
    for _ in range(10):
        count(metrics, 0.001)
    calls = metrics._methods["Pull"].recent
    assert calls.maxlen is not None
    begun = time.monotonic() - 2.0
    calls.clear()
    calls.extend((begun, 0.001) for _ in range(calls.maxlen + 5))

    (recent,) = metrics.recent()

    assert recent.calls_per_s == pytest.approx(calls.maxlen / 2.0, rel=0.1)
