"""Does a step of async hide its pulls and pushes behind the dense part?

The MLP of ``train`` on one core, one server process, and a link as far as makes a pull and a push, one after the
other, cost as much as a step of the dense part alone. If nothing overlapped, a step would take twice
as long as the dense part; if all did, as long. All three take turns in one run.
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
from bench.link import Link, Links
from bench.train import DenseAlone, Dnn, make_adam, make_model
from trainer.dataset import Batch
from trainer.loop import train
from trainer.modes import make_mode
from trainer.strategy import Strategy

_TURNS, _STEPS, _WARM_STEPS = 5, 6, 2
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
        Links([target], Link()) as links,
        pserver.connect(links.endpoints[0]) as client,
    ):
        client.create_table(pserver.TableSpec(name=_PLAIN_TABLE, dim=DIM, optimizer="adagrad"))
        _async_s(client, data, steps=_BATCHES)  # makes the rows, and compiles
        _pull_and_push_s(client, data, steps=_BATCHES)
        dense_s = dense.seconds(_STEPS)
        near_s = _pull_and_push_s(client, data, steps=_STEPS)
        links.shape = Link(round_trip_s=max(0.0, dense_s - near_s) / 2.0)
        for _ in range(_TURNS):
            dense_s = dense.seconds(_STEPS)
            turns.append(
                {
                    "dense_alone_ms": 1e3 * dense_s,
                    "pull_and_push_ms": 1e3 * _pull_and_push_s(client, data, steps=_STEPS),
                    "async_ms": 1e3 * _async_s(client, data, steps=_STEPS),
                }
            )
    for turn in turns:
        turn["pull_and_push_of_dense"] = turn["pull_and_push_ms"] / turn["dense_alone_ms"]
        turn["async_of_dense"] = turn["async_ms"] / turn["dense_alone_ms"]
    result = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    result["async_of_dense_min"] = min(turn["async_of_dense"] for turn in turns)
    result["async_of_dense_max"] = max(turn["async_of_dense"] for turn in turns)
    result["link_round_trip_ms"] = 1e3 * links.shape.round_trip_s
    return result


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


def _async_s(client: pserver.Client, data: list[Batch], *, steps: int) -> float:
    """Return the seconds of a step of async training, after the warm-up."""
    mode = make_mode(client, Strategy(mode="async"), trainer_id=0, trainers=1)
    model = make_model(mode, _TABLE, Dnn())
    begin_s = end_s = 0.0

    def on_step(report: Any) -> None:
        nonlocal begin_s, end_s
        end_s = time.perf_counter()
        if report.step == _WARM_STEPS:
            begin_s = end_s

    source: Iterator[Batch] = itertools.islice(itertools.cycle(data), steps + _WARM_STEPS)
    train(model, source, optimizer=make_adam(model.dense), mode=mode, on_step=on_step)
    return (end_s - begin_s) / steps
