"""What every benchmark shares: the workload, timing, processes, and how results are shown."""

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pserver
from pserver.arrays import Keys
from trainer.dataset import Batch, Generator

BATCH = 4096
DIM = 16
ROWS = 8_000_000
"""Rows in the table, where nothing else is said: 1 GiB with adagrad state, beyond every cache."""

REPEATS = 7

FILL_BLOCK = 50_000
"""Keys a request while a table is filled."""

_READY = re.compile(r"ready on (\S+)")


def batches(count: int, *, seed: int = 0) -> list[Batch]:
    """Return ``count`` batches of the standard workload."""
    return list(Generator(seed, batch_size=BATCH, rows=count * BATCH))


def distinct_keys(count: int, *, seed: int = 0) -> list[Keys]:
    """Return the distinct keys of ``count`` batches, about 27,600 each."""
    return [pserver.dedupe(batch.keys).keys for batch in batches(count, seed=seed)]


def fill_keys(rows: int, first: Sequence[Keys]) -> Iterator[Keys]:
    """Yield blocks of keys that bring a table to ``rows`` rows, the given ones included."""
    known = np.unique(np.concatenate(list(first)))
    rng = np.random.default_rng(1)
    fresh = rng.integers(0, 2**64, max(0, rows - known.size), dtype=np.uint64)
    keys = np.concatenate([known, fresh])
    for start in range(0, keys.size, FILL_BLOCK):
        yield keys[start : start + FILL_BLOCK]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of several repeats."""

    seconds: Sequence[float]

    @property
    def median(self) -> float:
        """Return the middle one."""
        return statistics.median(self.seconds)

    def rate(self, count: float) -> dict[str, float]:
        """Return the rates for ``count`` things a repeat: median, and the range."""
        return {
            "median": count / self.median,
            "min": count / max(self.seconds),
            "max": count / min(self.seconds),
        }


def measure(work: Callable[[int], object], *, repeats: int = REPEATS, inner: int = 1) -> Times:
    """Time ``work(i)``, after one run that does not count.

    Args:
        work: is told how often it ran before.
        repeats: measured runs.
        inner: calls within one measured run; the time is that of one call.
    """
    work(0)
    seconds = []
    for repeat in range(repeats):
        begin = time.perf_counter()
        for i in range(inner):
            work(repeat * inner + i)
        seconds.append((time.perf_counter() - begin) / inner)
    return Times(seconds)


def memory_bytes_per_s() -> float:
    """Return what one core copies from memory to memory, read plus written."""
    source = np.ones(1 << 25, np.float64)
    target = np.zeros_like(source)
    return 2.0 * source.nbytes / measure(lambda _: np.copyto(target, source), repeats=5).median


def touch_memory(num_bytes: int) -> None:
    """Touch and free memory once, so that a virtual machine's first touches are not measured."""
    block = np.empty(num_bytes, np.uint8)
    block[::4096] = 1


@contextmanager
def process(*arguments: str, stdin: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a Python process for as long as the block lasts; its errors are ours.

    Args:
        arguments: after ``python``.
        stdin: of the process, as for ``subprocess.Popen``; none: ours.
    """
    child = subprocess.Popen(
        [sys.executable, *arguments], stdin=stdin, stdout=subprocess.PIPE, text=True
    )
    try:
        yield child
    finally:
        child.terminate()
        child.wait(timeout=60)
        assert child.stdout is not None
        child.stdout.close()


def wait_ready(child: subprocess.Popen[str]) -> str:
    """Return the endpoint that a server process announces."""
    assert child.stdout is not None
    for line in child.stdout:
        found = _READY.search(line)
        if found:
            return found.group(1)
    raise RuntimeError(f"{child.args!r} ended before it was ready")


@contextmanager
def servers(count: int) -> Iterator[str]:
    """Run ``count`` pserver processes and give their endpoints."""
    with contextmanager(_servers)(count) as endpoints:
        yield ",".join(endpoints)


def _servers(count: int) -> Iterator[list[str]]:
    arguments = ["-m", "pserver", "serve", "--bind", "127.0.0.1:0", "--log-level", "warning"]

    def start(shard: int, endpoints: list[str]) -> Iterator[list[str]]:
        if shard == count:
            yield endpoints
            return
        with process(*arguments, "--shard", str(shard), "--shards", str(count)) as child:
            yield from start(shard + 1, [*endpoints, wait_ready(child)])

    yield from start(0, [])


def environment() -> dict[str, Any]:
    """Return what the numbers depend on."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return {
        "version": pserver.__version__,
        "commit": commit.stdout.strip() or "unknown",
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
    }


def show(name: str, result: dict[str, Any], *, as_json: bool) -> None:
    """Print a result: as text with one figure a line, or as one JSON object."""
    if as_json:
        print(json.dumps({"bench": name, **result, "environment": environment()}))
        return
    print(f"bench {name} on {environment()}")
    for path, value in _flatten(result):
        print(f"  {path:<44} {_text(path, value)}")


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(path: str, value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    if value >= 1e5:
        return f"{value / 1e6:,.2f} M"
    return f"{value:,.3f}"
