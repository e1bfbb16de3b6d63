"""What a journal costs: pushes through servers without one, and with each promise of fsync; and a restart.

One server process a promise, all alive in one run, and one client process; loopback; rows of dim 16 with
adagrad state; batches of the standard workload. The servers take turns, and ratios are medians of the
turns'. The journals lie in the folder for temporary files; a plain write of the same bytes with one sync at
its end is measured beside them. Each server has at most 2 GB of journal.
"""

import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import pserver
from bench.common import DIM, distinct_keys, process, wait_ready
from pserver.arrays import Keys

PROMISES = ("none", "off", "interval", "always")
_TURNS = 5
_CALLS = 40
_WINDOW = 4
_TABLE = "bench"
_NO_COUNTS = np.empty(0, np.uint32)


def run() -> dict[str, Any]:
    """Return keys a second of pushes by promise, their ratio to none, and seconds of a replay."""
    wanted = distinct_keys(20)
    turns: dict[str, list[dict[str, float]]] = {promise: [] for promise in PROMISES}
    with tempfile.TemporaryDirectory(prefix="pserver-bench-") as folder:
        with ExitStack() as stack:
            clients = {
                promise: stack.enter_context(_client(Path(folder), promise)) for promise in PROMISES
            }
            for client in clients.values():
                for keys in wanted:
                    client.pull(_TABLE, keys)
            for turn in range(_TURNS):
                for promise in PROMISES[turn % 4 :] + PROMISES[: turn % 4]:
                    turns[promise].append(_pushes(clients[promise], wanted))
        result: dict[str, Any] = {}
        for promise in PROMISES:
            for name in turns[promise][0]:
                result[f"{promise}_{name}"] = statistics.median(t[name] for t in turns[promise])
            ratios = [
                ours["keys_per_s"] / bare["keys_per_s"]
                for ours, bare in zip(turns[promise], turns["none"], strict=True)
            ]
            result[f"{promise}_ratio"] = statistics.median(ratios)
        journal_bytes = sum(path.stat().st_size for path in Path(folder, "off").iterdir())
        result["plain_write_bytes_per_s"] = _plain_write(Path(folder), journal_bytes)
        begin = time.perf_counter()
        with _client(Path(folder), "off"):
            seconds = time.perf_counter() - begin
        result["restart_s"], result["restart_bytes"] = seconds, float(journal_bytes)
    return result


@contextmanager
def _client(folder: Path, promise: str) -> Iterator[pserver.Client]:
    """Run a server and give a client of it."""
    flags = ["-m", "pserver", "serve", "--bind", "127.0.0.1:0", "--log-level", "warning"]
    if promise != "none":
        journal = str(folder / promise)
        flags += ["--journal", journal, "--fsync", promise, "--restore", "latest"]
    settings = pserver.ClientSettings(window=_WINDOW)
    with process(*flags) as child:
        endpoint = wait_ready(child)
        with pserver.connect(endpoint, settings=settings) as client:
            client.create_table(pserver.TableSpec(name=_TABLE, dim=DIM, optimizer="adagrad"))
            yield client


def _pushes(client: pserver.Client, wanted: list[Keys]) -> dict[str, float]:
    """Keep a window of pushes open, and return their rate and their latencies."""
    rng = np.random.default_rng(0)
    grads = [rng.standard_normal(keys.size * DIM).astype(np.float32) * 0.01 for keys in wanted]
    waiting: deque[tuple[float, pserver.PendingPush]] = deque()
    seconds: list[float] = []
    cpu_s = client.stats()[0].cpu_s
    begin = time.perf_counter()
    for i in range(_CALLS):
        at = i % len(wanted)
        push = client.start_push({_TABLE: (wanted[at], grads[at], _NO_COUNTS)})
        waiting.append((time.perf_counter(), push))
        while len(waiting) >= _WINDOW or (waiting and i == _CALLS - 1):
            sent, pending = waiting.popleft()
            pending.result()
            seconds.append(time.perf_counter() - sent)
    wall_s = time.perf_counter() - begin
    num_keys = sum(wanted[i % len(wanted)].size for i in range(_CALLS))
    return {
        "keys_per_s": num_keys / wall_s,
        "p50_ms": 1e3 * float(np.quantile(seconds, 0.5)),
        "p99_ms": 1e3 * float(np.quantile(seconds, 0.99)),
        "server_cpu_s_per_mkeys": 1e6 * (client.stats()[0].cpu_s - cpu_s) / num_keys,
    }


def _plain_write(folder: Path, size: int) -> float:
    """Return the bytes a second of one file that is written in blocks and synced once."""
    block = os.urandom(2 << 20)
    begin = time.perf_counter()
    with (folder / "plain").open("wb", buffering=0) as file:
        for _ in range(size // len(block)):
            file.write(block)
        os.fdatasync(file.fileno())
    return size / (time.perf_counter() - begin)
