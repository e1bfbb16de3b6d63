"""Pull and push through a real server, beside a bare echo of the same bytes and torch's RPC.

One server process, one client process, loopback; 8 M rows of dim 16 with adagrad state; batches
of the standard workload. Ours, the echo and torch's RPC take turns within one run, and the ratios
are medians of the turns'. The echo is called through gRPC's plain stubs and through those for asyncio,
and the faster of both counts, turn by turn.
"""

import asyncio
import json
import os
import socket
import statistics
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np
import uvloop

import pserver
from bench.common import DIM, ROWS, distinct_keys, fill_keys, process, servers, wait_ready
from bench.echo import METHOD
from pserver.arrays import Keys
from pserver.transport import client_options

WINDOWS = (1, 4)
_TURNS = 5
_CALLS = 150
_TABLE = "bench"
_NO_COUNTS = np.empty(0, np.uint32)
_OPEN: Mapping[str, str] = {}


def run(*, num_rows: int = ROWS, with_torch: bool = True) -> dict[str, Any]:
    """Return the figures of pull_1, pull_4, push_1 and push_4 (calls in flight)."""
    wanted = distinct_keys(20)
    turns: dict[str, list[dict[str, float]]] = {}
    with servers(1) as endpoint, process("-m", "bench.echo") as echo:
        echo_endpoint = wait_ready(echo)
        fill(endpoint, num_rows, wanted)
        for _ in range(_TURNS):
            for window in WINDOWS:
                for verb, figures in ours(endpoint, window, wanted).items():
                    ceiling = _echo(echo_endpoint, verb, window, wanted)
                    figures["echo_keys_per_s"] = ceiling
                    figures["echo_ratio"] = figures["keys_per_s"] / ceiling
                    turns.setdefault(f"{verb}_{window}", []).append(figures)
            if with_torch:
                for name, rate in _torch(num_rows).items():
                    turns[name][-1]["torch_rpc_keys_per_s"] = rate
                    turns[name][-1]["torch_rpc_ratio"] = turns[name][-1]["keys_per_s"] / rate
    return {
        name: {key: statistics.median(turn[key] for turn in each) for key in each[0]}
        for name, each in turns.items()
    }


def _client(endpoint: str, window: int, access: Mapping[str, str]) -> pserver.Client:
    settings = pserver.ClientSettings.make({"window": window, **access}, origins={})
    client = pserver.connect(endpoint, settings=settings)
    client.create_table(pserver.TableSpec(name=_TABLE, dim=DIM, optimizer="adagrad"))
    return client


def fill(
    endpoint: str, num_rows: int, wanted: list[Keys], access: Mapping[str, str] = _OPEN
) -> None:
    """Bring the table to ``num_rows`` rows."""
    with _client(endpoint, 4, access) as client:
        for keys in fill_keys(num_rows, wanted):
            client.start_pull({_TABLE: keys}).result()


def ours(
    endpoint: str, window: int, wanted: list[Keys], access: Mapping[str, str] = _OPEN
) -> dict[str, dict[str, float]]:
    """Return the figures of pull and push with ``window`` calls in flight."""
    rng = np.random.default_rng(0)
    grads = [rng.standard_normal(k.size * DIM).astype(np.float32) * 0.01 for k in wanted]
    with _client(endpoint, window, access) as client:

        def pull(i: int) -> Any:
            return client.start_pull({_TABLE: wanted[i % len(wanted)]})

        def push(i: int) -> Any:
            at = i % len(wanted)
            return client.start_push({_TABLE: (wanted[at], grads[at], _NO_COUNTS)})

        return {
            verb: _figures(client, start, window, wanted)
            for verb, start in (("pull", pull), ("push", push))
        }


def _figures(
    client: pserver.Client, start: Any, window: int, wanted: list[Keys]
) -> dict[str, float]:
    """Keep ``window`` calls open and time them."""
    waiting: deque[tuple[float, Any]] = deque()
    seconds: list[float] = []

    def finish() -> None:
        begin, pending = waiting.popleft()
        pending.result()
        seconds.append(time.perf_counter() - begin)

    begin_s = cpu_s = client_cpu_s = 0.0
    for i in range(-2 * window, _CALLS):
        if i == 0:
            while waiting:
                finish()
            seconds.clear()
            cpu_s = client.stats()[0].cpu_s
            client_cpu_s = time.process_time()
            begin_s = time.perf_counter()
        waiting.append((time.perf_counter(), start(i)))
        if len(waiting) >= window:
            finish()
    while waiting:
        finish()
    wall_s, client_cpu_s = time.perf_counter() - begin_s, time.process_time() - client_cpu_s
    mkeys = sum(wanted[i % len(wanted)].size for i in range(_CALLS)) / 1e6
    return {
        "keys_per_s": 1e6 * mkeys / wall_s,
        "p50_ms": 1e3 * float(np.quantile(seconds, 0.5)),
        "p99_ms": 1e3 * float(np.quantile(seconds, 0.99)),
        "server_cpu_s_per_mkeys": (client.stats()[0].cpu_s - cpu_s) / mkeys,
        "client_cpu_s_per_mkeys": client_cpu_s / mkeys,
    }


def _echo(endpoint: str, verb: str, window: int, wanted: list[Keys]) -> float:
    """Return the keys a second of a bare echo of a pull's or push's bytes."""
    small, large = 8, 8 + 4 * DIM
    messages = []
    for keys in wanted:
        reply_bytes = 4 * DIM * keys.size if verb == "pull" else 8
        request_bytes = (small if verb == "pull" else large) * keys.size
        messages.append(reply_bytes.to_bytes(4, "little") + os.urandom(request_bytes - 4))
    wall_s = min(
        _plain_echo(endpoint, window, messages),
        uvloop.run(_asyncio_echo(endpoint, window, messages)),
    )
    return sum(wanted[i % len(wanted)].size for i in range(_CALLS)) / wall_s


def _plain_echo(endpoint: str, window: int, messages: list[bytes]) -> float:
    """Return the seconds of ``_CALLS`` calls through gRPC's own threads."""
    with grpc.insecure_channel(endpoint, options=client_options()) as channel:
        call = channel.unary_unary(METHOD)

        def many(count: int) -> None:
            waiting: deque[grpc.Future] = deque()
            for i in range(count):
                waiting.append(call.future(messages[i % len(messages)]))
                if len(waiting) >= window:
                    waiting.popleft().result()
            while waiting:
                waiting.popleft().result()

        many(2 * window + len(messages))
        begin = time.perf_counter()
        many(_CALLS)
        return time.perf_counter() - begin


async def _asyncio_echo(endpoint: str, window: int, messages: list[bytes]) -> float:
    """Return the seconds of ``_CALLS`` calls through an event loop."""
    async with grpc.aio.insecure_channel(endpoint, options=client_options()) as channel:
        call = channel.unary_unary(METHOD)
        room = asyncio.Semaphore(window)

        async def one(i: int) -> None:
            await call(messages[i % len(messages)])
            room.release()

        async def many(count: int) -> None:
            tasks = []
            for i in range(count):
                await room.acquire()
                tasks.append(asyncio.create_task(one(i)))
            await asyncio.gather(*tasks)

        await many(2 * window + len(messages))
        begin = time.perf_counter()
        await many(_CALLS)
        return time.perf_counter() - begin


def _torch(num_rows: int) -> dict[str, float]:
    """Return the keys a second of the server on torch's RPC, by verb and window."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    rows, calls = str(num_rows), str(_CALLS // 2)
    with (
        process("-m", "bench.torch_rpc", "server", port, rows),
        process("-m", "bench.torch_rpc", "client", port, rows, calls) as client,
    ):
        assert client.stdout is not None
        figures: dict[str, float] = json.loads(client.stdout.readline())
    return figures
