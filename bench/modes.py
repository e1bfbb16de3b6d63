"""Every mode over links of several latencies and widths: samples a second and AUC side by side.

Two trainers and two servers, each a process, and one ``Link`` before each server. Every run trains the same
generated rows twice, on tables that begin anew, and scores the same held-out rows, so that a row of the
result shows what a link costs each mode, and a column what the mode costs the model. Trainers stay from
run to run: nobody pays for the start of a process or for compiling.
"""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from typing import IO, Any

import pserver
from bench.common import process, servers
from bench.link import Link, Links

TRAINERS, SERVERS = 2, 2

LINKS = {
    "near": Link(),
    "10 ms": Link(round_trip_s=0.010),
    "50 ms": Link(round_trip_s=0.050),
    "4 MB/s": Link(bytes_per_s=4e6),
    "1 MB/s": Link(bytes_per_s=1e6),
}

MODES: dict[str, dict[str, object]] = {
    "sync": {"mode": "sync"},
    "async": {"mode": "async"},
    "half_async 4": {"mode": "half_async", "max_merge_num": 4, "flush_interval_ms": 10_000},
    "geo 4": {"mode": "geo", "k_steps": 4},
    "geo 16": {"mode": "geo", "k_steps": 16},
    "geo 64": {"mode": "geo", "k_steps": 64},
}

STEPS = 40
"""Of each trainer in a pass. There are two: in the first one geo fetches most of its rows."""

_JOB: dict[str, object] = {
    "model": "fm",
    "optimizer": "adagrad:lr=0.1",
    "dim": 8,
    "scale": 0.002,
    "batch_size": 256,
    "rows": STEPS * TRAINERS * 256,
    "epochs": 2,
    "eval_last": 8192,
    "device": "cpu",
    "threads": 1,
    "trainers": TRAINERS,
}
"""Few ids, so that a short run learns them; 52 to 130 kB a step and trainer to and from each server."""

_TABLES = ("embedding", "dense")  # as trainer.job names them


def run() -> dict[str, Any]:
    """Return by link, then by mode: samples a second, against sync on the same link, and AUC."""
    result: dict[str, Any] = {}
    with (
        servers(SERVERS) as targets,
        Links(targets.split(","), Link()) as links,
        pserver.connect(targets) as client,
        _trainers() as trainers,
    ):
        ps = ",".join(links.endpoints)
        _one_run(trainers, client, ps, MODES["async"])  # compiles, and is not counted
        for link, shape in LINKS.items():
            links.shape = shape
            figures = {mode: _one_run(trainers, client, ps, knobs) for mode, knobs in MODES.items()}
            for of_mode in figures.values():
                of_mode["of_sync"] = of_mode["samples_per_s"] / figures["sync"]["samples_per_s"]
            result[link] = figures
    return result


def _one_run(
    trainers: list["subprocess.Popen[str]"],
    client: pserver.Client,
    ps: str,
    knobs: dict[str, object],
) -> dict[str, float]:
    """Train once on tables that begin anew."""
    for table in _TABLES:
        client.lifecycle.drop(table)
    for number, trainer in enumerate(trainers):
        settings = {**_JOB, **knobs, "ps": ps, "trainer_id": number}
        print(json.dumps(settings), file=_pipe(trainer.stdin), flush=True)
    told = [json.loads(_answer(trainer)) for trainer in trainers]
    seconds = max(one["seconds"] for one in told)
    return {
        "samples_per_s": sum(one["samples"] for one in told) / seconds,
        "auc": told[0]["auc"],
        "staleness_max": max(one["watch"].get("staleness_max", 0.0) for one in told),
    }


def _answer(trainer: "subprocess.Popen[str]") -> str:
    line = _pipe(trainer.stdout).readline()
    if not line:
        raise RuntimeError("a trainer failed; its error is above")
    return line


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None, "the process was started with it"
    return pipe


@contextlib.contextmanager
def _trainers() -> Iterator[list["subprocess.Popen[str]"]]:
    """Run the trainers' processes for as long as the block lasts."""
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(process("-m", "bench.modes_trainer", stdin=subprocess.PIPE))
            for _ in range(TRAINERS)
        ]
        yield started
        for trainer in started:
            _pipe(trainer.stdin).close()
