"""Load on servers that run: how many keys a second a cluster serves, and how long a call takes.

``python -m bench load --ps HOST:PORT,... --clients 4 --seconds 20``. Each client is a process. In
the closed loop it keeps ``--window`` calls open; in the open loop calls start at fixed times
whatever the answers do, and a call's time counts from when it should have started, so a server that
stalls cannot hide it. Keys are the standard workload's with another Zipf exponent if wanted.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from rich.progress import Progress, TimeElapsedColumn

import pserver
from pserver.arrays import Keys
from trainer.dataset import Generator

TABLE = "load"
_BATCHES = 32
_WARM_S = 1.0
_NO_COUNTS = np.empty(0, np.uint32)


_NUMBERS = (
    ("clients", int, 4, "client processes"),
    ("seconds", float, 20.0, "of measured load"),
    ("batch", int, 4096, "samples a call, of 26 slots each"),
    ("zipf", float, 1.05, "exponent of the ids"),
    ("dim", int, 16, "floats a row"),
    ("window", int, 4, "calls a client keeps open in the closed loop"),
    ("rate", float, 100.0, "calls a second of all clients in the open loop"),
    ("timeout", float, 10.0, "seconds a call may take"),
    ("seed", int, 0, "of the keys"),
)


def add_command(commands: Any) -> None:
    """Add ``load`` to the parser of ``python -m bench``."""
    command = commands.add_parser("load", help="load on servers that run")
    command.add_argument("--ps", required=True, metavar="HOST:PORT,...", help="shard 0 first")
    for name, kind, default, text in _NUMBERS:
        command.add_argument(
            f"--{name}", type=kind, default=default, help=f"{text} (default: {default})"
        )
    command.add_argument(
        "--loop", choices=("closed", "open"), default="closed", help="(default: closed)"
    )
    command.add_argument(
        "--verb", choices=("pull", "push", "both"), default="both", help="(default: both in turn)"
    )
    command.add_argument("--optimizer", default="adagrad:lr=0.05", help="of the table")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument("--client", type=int, help=argparse.SUPPRESS)


def run_command(given: argparse.Namespace) -> int:
    """Run the load, or be one of its clients."""
    for name in (name for name, *_ in _NUMBERS if name != "seed"):
        if not getattr(given, name) > 0:
            print(
                f"bench load: --{name} must be over 0, got {getattr(given, name)}", file=sys.stderr
            )
            return pserver.USAGE_EXIT
    try:
        if given.client is not None:
            print(json.dumps(_client(given)))
            return 0
        result = _load(given)
    except pserver.PserverError as error:
        print(f"bench load: {error}", file=sys.stderr)
        return pserver.USAGE_EXIT if isinstance(error, pserver.ConfigError) else 1
    if given.json:
        print(json.dumps({"bench": "load", **result}))
    else:
        for name, value in result.items():
            print(
                f"  {name:<28} {value:,.3f}"
                if isinstance(value, float)
                else f"  {name:<28} {value}"
            )
    return 0


def _connect(given: argparse.Namespace) -> pserver.Client:
    settings = pserver.ClientSettings.make(
        {"window": given.window, "timeout_s": given.timeout},
        origins={"window": "--window", "timeout_s": "--timeout"},
    )
    client = pserver.connect(given.ps, settings=settings)
    client.create_table(
        pserver.TableSpec(name=TABLE, dim=given.dim, optimizer=given.optimizer, seed=given.seed)
    )
    return client


def _load(given: argparse.Namespace) -> dict[str, Any]:
    """Start the clients, wait for them, and put their figures together."""
    with _connect(given) as client:
        with ThreadPoolExecutor(given.clients) as pool:  # what a client prints may fill its pipe
            runs = [pool.submit(_run_client, given, i) for i in range(given.clients)]
            _show_progress(given, runs)
        results = [run.result() for run in runs]
        return _together(given, results, num_shards=client.num_shards)


def client_arguments(given: argparse.Namespace, index: int) -> list[str]:
    """Return the words after ``python`` that make a process one of the clients."""
    names = ("ps", *(name for name, *_ in _NUMBERS), "loop", "verb", "optimizer")
    flags = [f"--{name}={getattr(given, name)}" for name in names]
    return ["-m", "bench", "load", *flags, f"--client={index}"]


def _run_client(given: argparse.Namespace, index: int) -> dict[str, Any]:
    """Run one client as a process and return its figures; its errors go where ours go."""
    done = subprocess.run(
        [sys.executable, *client_arguments(given, index)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise pserver.UnavailableError("a load client failed; its error is above")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _show_progress(given: argparse.Namespace, runs: Sequence["Future[Any]"]) -> None:
    """Show the time that passes, on a terminal, until the clients are done."""
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), disable=given.json) as bar:
        task = bar.add_task(f"{given.clients} clients", total=given.seconds)
        begin = time.perf_counter()
        while not all(run.done() for run in runs):
            bar.update(task, completed=min(given.seconds, time.perf_counter() - begin))
            time.sleep(0.1)


def _together(
    given: argparse.Namespace, results: list[dict[str, Any]], *, num_shards: int
) -> dict[str, Any]:
    """Return the figures over all clients."""
    times = np.array([ms for result in results for ms in result["times_ms"]])
    keys = sum(result["keys"] for result in results)
    seconds = max(result["seconds"] for result in results)
    # Every client reads the servers' clocks at its own begin and end; the widest span counts all.
    cpu_s = max(r["cpu_end_s"] for r in results) - min(r["cpu_begin_s"] for r in results)
    quantiles = {
        f"{name}_ms": float(np.percentile(times, q)) if times.size else None
        for name, q in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100))
    }
    return {
        "loop": given.loop,
        "verb": given.verb,
        "clients": given.clients,
        "shards": num_shards,
        "calls": int(times.size),
        "keys_per_s": keys / seconds,
        "mb_per_s": sum(result["bytes"] for result in results) / seconds / 1e6,
        **quantiles,
        "server_cpu_s_per_mkeys": cpu_s / max(keys / 1e6, 1e-9),
        "errors": sum(result["errors"] for result in results),
        "first_error": next((r["first_error"] for r in results if r["first_error"]), None),
        "retries": sum(result["retries"] for result in results),
        "seconds": seconds,
    }


class _Tally:
    """What one client counts."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self.times_ms: list[float] = []
        self.keys = 0
        self.bytes = 0
        self.errors = 0
        self.first_error: str | None = None

    def finish(self, begin_s: float, keys: int, pending: Any) -> None:
        """Wait for a call and count it."""
        try:
            pending.result()
        except pserver.PserverError as error:
            self.errors += 1
            self.first_error = self.first_error or str(error)
            return
        self.times_ms.append(round(1e3 * (time.perf_counter() - begin_s), 4))
        self.keys += keys
        self.bytes += keys * (8 + 4 * self._dim)


def _client(given: argparse.Namespace) -> dict[str, Any]:
    """Be one client and return its figures."""
    source = Generator(
        given.seed + 1000 * (given.client + 1),
        batch_size=given.batch,
        rows=_BATCHES * given.batch,
        alpha=given.zipf,
    )
    batches = [pserver.dedupe(batch.keys).keys for batch in source]
    rng = np.random.default_rng(given.seed)
    largest = max(keys.size for keys in batches)
    grads = 1e-3 * rng.standard_normal(largest * given.dim).astype(np.float32)
    with _connect(given) as client:

        def start(i: int) -> tuple[int, Any]:
            keys = batches[i % len(batches)]
            if given.verb == "push" or (given.verb == "both" and i % 2):
                block = grads[: keys.size * given.dim]
                return keys.size, _push(client, keys, block)
            return keys.size, client.start_pull({TABLE: keys})

        loop = _closed if given.loop == "closed" else _open
        loop(given, start, _Tally(given.dim), seconds=_WARM_S)
        tally = _Tally(given.dim)
        cpu_begin_s = sum(stats.cpu_s for stats in client.stats())
        begin = time.perf_counter()
        loop(given, start, tally, seconds=given.seconds)
        seconds = time.perf_counter() - begin
        return {
            "seconds": seconds,
            "times_ms": tally.times_ms,
            "keys": tally.keys,
            "bytes": tally.bytes,
            "errors": tally.errors,
            "first_error": tally.first_error,
            "retries": client.retries,
            "cpu_begin_s": cpu_begin_s,
            "cpu_end_s": sum(stats.cpu_s for stats in client.stats()),
        }


class _Failed:
    """A call that failed before it was on its way."""

    def __init__(self, error: pserver.PserverError) -> None:
        self._error = error

    is_done = True

    def result(self) -> None:
        """Raise what went wrong."""
        raise self._error


def _push(client: pserver.Client, keys: Keys, block: Any) -> Any:
    try:
        return client.start_push({TABLE: (keys, block, _NO_COUNTS)})
    except pserver.PserverError as error:  # of an earlier push, which is counted there too
        return _Failed(error)


def _closed(
    given: argparse.Namespace,
    start: Callable[[int], tuple[int, Any]],
    tally: _Tally,
    *,
    seconds: float,
) -> None:
    """Keep a window of calls open."""
    waiting: deque[tuple[float, int, Any]] = deque()
    until = time.perf_counter() + seconds
    i = 0
    while (now := time.perf_counter()) < until:
        waiting.append((now, *start(i)))
        i += 1
        if len(waiting) >= given.window:
            tally.finish(*waiting.popleft())
    while waiting:
        tally.finish(*waiting.popleft())


def _open(
    given: argparse.Namespace,
    start: Callable[[int], tuple[int, Any]],
    tally: _Tally,
    *,
    seconds: float,
) -> None:
    """Start calls at fixed times; the send queue's limit is what holds them back."""
    waiting: deque[tuple[float, int, Any]] = deque()
    every_s = given.clients / given.rate
    begin = time.perf_counter()
    for i in range(max(1, int(seconds / every_s))):
        due = begin + i * every_s
        while time.perf_counter() < due:
            if waiting and waiting[0][2].is_done:
                tally.finish(*waiting.popleft())
            else:
                time.sleep(min(0.001, max(0.0, due - time.perf_counter())))
        waiting.append((due, *start(i)))
    while waiting:
        tally.finish(*waiting.popleft())
