"""Does a step of async hide its pulls and pushes behind the dense part?

The MLP of ``train`` on one core, one server process, and a link as far as makes a pull and a push, one after the
other, cost as much as a step of the dense part alone, set anew after each turn. If nothing overlapped, a step would
take twice as long as the dense part; if all did, as long. On two cores the dense part has one; server, link and the
client's own thread share the other, each but the last in a process of its own.

What another program takes of the machine would be taken for a lack of overlap, or hide one. So each turn has async
between two times the dense part, and is held against their mean; the median of the turns counts, with the quartiles
beside it. ``machine_busy`` is what the dense part took by the clock for each second of CPU that its thread had: over
1.05, the cores were not ours, and the ratio by the clock says little. Two figures that other programs touch less
say where the time goes: ``async_cpu_of_dense``, the CPU that the training thread took for a step, is what overlap
cannot hide; ``async_wait_ms`` is what a step waited for rows, or for room in the send queues.
"""

import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import pserver
from bench.common import DIM, batches, servers
from bench.link_process import far_link
from bench.train import DenseAlone, Dnn, make_adam, make_model
from trainer.dataset import Batch
from trainer.loop import train
from trainer.modes import make_mode
from trainer.strategy import Strategy

_TURNS, _STEPS, _WARM_STEPS = 15, 4, 2
_TRIES = 7  # of the link's length
_BATCHES = 8
_TABLE, _PLAIN_TABLE = "overlap", "plain"
_NO_COUNTS = np.empty(0, np.uint32)


def run() -> dict[str, Any]:
    """Return milliseconds a step of the dense part, of pull and push, of both as async, and ratios."""
    torch.set_num_threads(1)
    data = batches(_BATCHES)
    dense = DenseAlone()
    turns: list[dict[str, float]] = []
    with (
        servers(1) as target,
        far_link(target) as link,
        pserver.connect(link.endpoint) as client,
    ):
        client.create_table(pserver.TableSpec(name=_PLAIN_TABLE, dim=DIM, optimizer="adagrad"))
        _async(client, data, steps=_BATCHES)  # makes the rows, and compiles
        _pull_and_push_s(client, data, steps=_BATCHES)
        gaps = [
            dense.cost(_STEPS)[0] - _pull_and_push_s(client, data, steps=_STEPS)
            for _ in range(_TRIES)
        ]
        round_trip_s = max(0.0, statistics.median(gaps)) / 2.0
        link.set_round_trip(round_trip_s)
        for _ in range(_TURNS):
            turns.append({"link_round_trip_ms": 1e3 * round_trip_s} | _turn(client, data, dense))
            # A machine that got slower or faster needs another link; half of the way, so that one turn's luck
            # does not make the next one's link.
            gap_s = (turns[-1]["dense_alone_ms"] - turns[-1]["pull_and_push_ms"]) / 1e3
            round_trip_s = max(0.0, round_trip_s + gap_s / 4.0)
            link.set_round_trip(round_trip_s)
    result = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    low, _, high = statistics.quantiles([turn["async_of_dense"] for turn in turns], n=4)
    return result | {"async_of_dense_low": low, "async_of_dense_high": high}


def _turn(client: pserver.Client, data: list[Batch], dense: DenseAlone) -> dict[str, float]:
    """Return the figures of one turn."""
    apart_s = _pull_and_push_s(client, data, steps=_STEPS)
    before_s, before_cpu_s = dense.cost(_STEPS)
    async_s, async_cpu_s, wait_s = _async(client, data, steps=_STEPS)
    after_s, after_cpu_s = dense.cost(_STEPS)
    dense_s, dense_cpu_s = (before_s + after_s) / 2.0, (before_cpu_s + after_cpu_s) / 2.0
    return {
        "dense_alone_ms": 1e3 * dense_s,
        "pull_and_push_ms": 1e3 * apart_s,
        "async_ms": 1e3 * async_s,
        "async_wait_ms": 1e3 * wait_s,
        "pull_and_push_of_dense": apart_s / dense_s,
        "async_of_dense": async_s / dense_s,
        "async_cpu_of_dense": async_cpu_s / dense_cpu_s,
        "machine_busy": dense_s / dense_cpu_s,
    }


def _pull_and_push_s(client: pserver.Client, data: list[Batch], *, steps: int) -> float:
    """Return the seconds of a pull, waited for, and then a push, waited for."""
    keys = [pserver.dedupe(batch.keys).keys for batch in data]
    grads = np.full(max(k.size for k in keys) * DIM, 1e-3, np.float32)
    begin = time.perf_counter()
    for wanted in itertools.islice(itertools.cycle(keys), steps):
        client.start_pull({_PLAIN_TABLE: wanted}).result()
        part = grads[: wanted.size * DIM]
        client.start_push({_PLAIN_TABLE: (wanted, part, _NO_COUNTS)}).result()
    return (time.perf_counter() - begin) / steps


def _async(client: pserver.Client, data: list[Batch], *, steps: int) -> tuple[float, float, float]:
    """Return of a step of async training, after the warm-up: seconds, CPU of its thread, seconds of waiting."""
    mode = make_mode(client, Strategy(mode="async"), trainer_id=0, trainers=1)
    model = make_model(mode, _TABLE, Dnn())
    marks: list[tuple[float, float, float]] = []

    def on_step(report: Any) -> None:
        if report.step in (_WARM_STEPS, _WARM_STEPS + steps):
            facts = mode.facts()
            waited_s = facts["pull_wait_s"] + facts["push_wait_s"]
            marks.append((time.perf_counter(), time.thread_time(), waited_s))

    source: Iterator[Batch] = itertools.islice(itertools.cycle(data), steps + _WARM_STEPS)
    train(model, source, optimizer=make_adam(model.dense), mode=mode, on_step=on_step)
    wall_s, cpu_s, wait_s = ((end - begin) / steps for begin, end in zip(*marks, strict=True))
    return wall_s, cpu_s, wait_s
