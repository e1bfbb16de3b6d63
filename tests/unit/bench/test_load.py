"""What ``bench.load`` promises: figures over all clients, honest times, and errors that are counted."""

import argparse
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pserver
from bench import load
from bench.load import TABLE


def parsed(*words: str) -> argparse.Namespace:
    """Return what a command line gives."""
    parser = pserver.CommandParser(prog="bench")
    load.add_command(parser.add_subparsers(dest="name"))
    return parser.parse_args(["load", "--ps", "a:1,b:2", *words])


def of_client(**changes: Any) -> dict[str, Any]:
    """Return the figures of one client."""
    return {
        "seconds": 2.0,
        "times_ms": [1.0, 2.0, 3.0],
        "keys": 3000,
        "bytes": 216_000,
        "errors": 0,
        "first_error": None,
        "retries": 0,
        "cpu_begin_s": 10.0,
        "cpu_end_s": 11.0,
        **changes,
    }


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the load run on shards of this process."""

    def connect(given: argparse.Namespace) -> pserver.Client:
        client = pserver.embedded(2)
        client.create_table(pserver.TableSpec(name=TABLE, dim=given.dim, optimizer="sgd"))
        return client

    monkeypatch.setattr(load, "_connect", connect)
    monkeypatch.setattr(load, "_WARM_S", 0.01)
    monkeypatch.setattr(load, "_BATCHES", 3)


# --- figures ------------------------------------------------------------------------------------


def test_figures_are_over_all_clients() -> None:
    """Calls, keys and bytes add up; the longest client gives the time, the widest span the CPU."""
    results = [
        of_client(),
        of_client(times_ms=[10.0], keys=1000, bytes=72_000, seconds=4.0, cpu_begin_s=9.0),
        of_client(retries=2, errors=3, first_error="late", cpu_end_s=13.0),
    ]

    told = load._together(parsed("--clients", "3"), results, num_shards=2)

    assert (told["clients"], told["shards"], told["calls"]) == (3, 2, 7)
    assert (told["loop"], told["verb"]) == ("closed", "both")
    assert told["keys_per_s"] == 7000 / 4.0
    assert told["mb_per_s"] == pytest.approx(504_000 / 4.0 / 1e6)
    assert (told["p50_ms"], told["max_ms"]) == (2.0, 10.0)
    assert told["p90_ms"] == pytest.approx(np.percentile([1, 2, 3, 10, 1, 2, 3], 90))
    assert told["p50_ms"] <= told["p90_ms"] <= told["p99_ms"] <= told["max_ms"]
    assert told["server_cpu_s_per_mkeys"] == pytest.approx((13.0 - 9.0) / 0.007)
    assert (told["errors"], told["first_error"], told["retries"]) == (3, "late", 2)
    assert told["seconds"] == 4.0


def test_no_calls_give_no_times() -> None:
    """When every call failed there are no calls, no quantiles and no NaN in the JSON."""
    results = [of_client(times_ms=[], keys=0, bytes=0, errors=5, first_error="gone")]

    told = load._together(parsed(), results, num_shards=1)

    assert (told["calls"], told["p50_ms"], told["max_ms"]) == (0, None, None)
    assert told["keys_per_s"] == 0.0
    json.dumps(told, allow_nan=False)


class Done:
    """A call that is done."""

    is_done = True

    def result(self) -> None:
        """Return at once."""


def test_tally_counts_what_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call counts its keys, its bytes both ways' larger part, and its time in milliseconds."""
    monkeypatch.setattr("bench.load.time.perf_counter", lambda: 10.5)
    tally = load._Tally(dim=4)

    tally.finish(10.0, 100, Done())
    tally.finish(10.25, 50, Done())

    assert tally.times_ms == [500.0, 250.0]
    assert (tally.keys, tally.bytes) == (150, 150 * (8 + 16))
    assert (tally.errors, tally.first_error) == (0, None)


def test_tally_counts_failures_and_keeps_the_first() -> None:
    """A failed call is an error, not a time; the first message is kept."""
    tally = load._Tally(dim=4)

    tally.finish(0.0, 100, load._Failed(pserver.DeadlineError("late")))
    tally.finish(0.0, 100, load._Failed(pserver.UnavailableError("gone")))

    assert (tally.errors, tally.first_error) == (2, "late")
    assert (tally.times_ms, tally.keys, tally.bytes) == ([], 0, 0)


# --- loops --------------------------------------------------------------------------------------


class Clock:
    """Time that passes only when somebody sleeps or calls."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        """Return the time."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds


class Slow:
    """A call that takes its time when it is waited for."""

    is_done = False

    def __init__(self, clock: Clock, seconds: float, done: Callable[[], None]) -> None:
        self._clock, self._seconds, self._done = clock, seconds, done

    def result(self) -> None:
        """Wait."""
        self._clock.sleep(self._seconds)
        self._done()


def test_closed_loop_keeps_its_window_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most ``window`` calls are open, all of them are waited for, and time ends the load."""
    clock = Clock()
    monkeypatch.setattr(load, "time", clock)
    open_calls, most = [0], [0]

    def done() -> None:
        open_calls[0] -= 1

    def start(_: int) -> tuple[int, Any]:
        open_calls[0] += 1
        most[0] = max(most[0], open_calls[0])
        return 10, Slow(clock, 0.1, done)

    tally = load._Tally(dim=1)
    load._closed(parsed("--window", "3"), start, tally, seconds=2.0)

    assert (most[0], open_calls[0]) == (3, 0)
    assert 20 <= len(tally.times_ms) <= 24
    assert tally.keys == 10 * len(tally.times_ms)


def test_open_loop_counts_from_when_a_call_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stalls makes later calls late, and their times show it."""
    clock = Clock()
    monkeypatch.setattr(load, "time", clock)
    started: list[float] = []

    def start(i: int) -> tuple[int, Any]:
        if i == 2:
            clock.sleep(1.0)  # the send queue is full for a second
        started.append(clock.now_s)
        return 1, Done()

    tally = load._Tally(dim=1)
    load._open(parsed("--rate", "10", "--clients", "1"), start, tally, seconds=1.0)

    assert len(started) == 10
    assert started[:2] == pytest.approx([0.0, 0.1])
    assert tally.times_ms[2] == pytest.approx(1000.0, abs=2.0)
    assert tally.times_ms[3] == pytest.approx(900.0, abs=2.0)
    assert tally.times_ms[9] == pytest.approx(300.0, abs=2.0)


@pytest.mark.parametrize("loop", ["closed", "open"])
@pytest.mark.parametrize("verb", ["pull", "push", "both"])
def test_client_loads_real_shards(embedded: None, loop: str, verb: str) -> None:
    """A client pulls, pushes or does both in turn, and its figures fit each other."""
    given = parsed(
        *("--loop", loop, "--verb", verb, "--seconds", "0.1", "--batch", "16", "--dim", "2"),
        *("--rate", "200", "--clients", "2", "--client", "1"),
    )

    told = load._client(given)

    assert told["errors"] == 0, told["first_error"]
    assert len(told["times_ms"]) > 0
    assert told["bytes"] == told["keys"] * (8 + 4 * 2)
    assert told["seconds"] >= 0.05
    assert told["cpu_end_s"] >= told["cpu_begin_s"]
    assert math.isfinite(sum(told["times_ms"]))


def test_pushes_that_fail_are_counted(embedded: None) -> None:
    """A push that is refused before it leaves is a failed call, and the load goes on."""
    with load._connect(parsed("--dim", "2")) as client:
        keys = np.arange(3, dtype=np.uint64)

        pending = load._push(client, keys, np.ones(5, np.float32))

    assert pending.is_done
    with pytest.raises(pserver.ShapeError, match="3 keys of dim 2 need 6 grads"):
        pending.result()


# --- clients as processes -----------------------------------------------------------------------


def test_client_is_told_all_that_was_given() -> None:
    """The command line of a client says everything that the load's own said, and its number."""
    words = [
        *("--clients", "2", "--seconds", "1.5", "--batch", "8", "--zipf", "1.2", "--dim", "3"),
        *("--window", "5", "--rate", "7", "--timeout", "9", "--seed", "11"),
        *("--loop", "open", "--verb", "push", "--optimizer", "adam:lr=0.5"),
    ]
    given = parsed(*words)

    dash_m, module, *rest = load.client_arguments(given, 1)

    assert (dash_m, module) == ("-m", "bench")
    parser = pserver.CommandParser(prog="bench")
    load.add_command(parser.add_subparsers(dest="name"))
    assert vars(parser.parse_args(rest)) == {**vars(given), "client": 1}


TALKATIVE = f"""
import json
figures = {of_client()!r}
figures["times_ms"] = [0.25] * 50_000
print(json.dumps(figures))
"""


@pytest.mark.timeout(60)
def test_clients_with_much_to_tell_do_not_block(
    embedded: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures larger than a pipe's buffer are read while the clients still run."""
    monkeypatch.setattr(load, "client_arguments", lambda *_: ["-S", "-c", TALKATIVE])

    status = load.run_command(parsed("--clients", "2", "--json"))

    told = json.loads(capsys.readouterr().out)
    assert status == 0
    assert (told["calls"], told["clients"], told["shards"]) == (100_000, 2, 2)


def test_client_that_fails_fails_the_load(
    embedded: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A client process that dies is one line, exit 1; what it said stands above."""
    monkeypatch.setattr(
        load, "client_arguments", lambda *_: ["-S", "-c", "raise SystemExit('no room')"]
    )

    status = load.run_command(parsed("--clients", "1", "--json"))

    captured = capfd.readouterr()
    assert (status, captured.out) == (1, "")
    assert "no room" in captured.err
    assert "bench load: a load client failed; its error is above" in captured.err


# --- what cannot work ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["clients", "seconds", "batch", "zipf", "dim", "window", "rate", "timeout"]
)
@pytest.mark.parametrize("value", ["0", "-1"])
def test_numbers_must_be_over_0(name: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A number that makes no load is named, exit 2."""
    assert load.run_command(parsed(f"--{name}={value}")) == 2
    assert f"bench load: --{name} must be over 0, got {value}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--ps", "nowhere"], "must be HOST:PORT"),
        (["--window", "2000"], "--window: input should be less than or equal to 1024"),
    ],
)
def test_settings_that_cannot_work_exit_2(
    words: list[str], fact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the client's settings refuse is one line, exit 2."""
    assert load.run_command(parsed(*words)) == 2
    assert fact in capsys.readouterr().err
