"""Trainers in geo mode under a test's hand: one table of zeros, steps whose result is known by hand."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import pserver
from trainer.modes import make_mode
from trainer.modes.geo import GeoMode
from trainer.strategy import Strategy

WAIT_S = 30.0
"""The longest that a test waits for what must come."""


def spec(optimizer: str = "sgd:lr=1", dim: int = 1) -> pserver.TableSpec:
    """Return a table of zeros."""
    return pserver.TableSpec(name="t", dim=dim, optimizer=optimizer, initializer="zeros")


def trainer(
    client: pserver.Client,
    number: int = 0,
    *,
    trainers: int = 1,
    optimizer: str = "sgd:lr=1",
    **knobs: object,
) -> GeoMode:
    """Return a trainer in geo mode with the table."""
    strategy = Strategy.make({"mode": "geo", **knobs}, origins={})
    mode = make_mode(client, strategy, trainer_id=number, trainers=trainers)
    assert isinstance(mode, GeoMode)
    mode.create_table(spec(optimizer))
    return mode


def both(pair: list[pserver.Client], **knobs: Any) -> list[GeoMode]:
    """Return two trainers of one group."""
    return [trainer(client, number, trainers=2, **knobs) for number, client in enumerate(pair)]


def step(mode: GeoMode, keys: list[int], grads: list[float]) -> list[float]:
    """Pull rows, push a gradient of each, end the step; return the weights that were pulled."""
    array = np.array(keys, np.uint64)
    (weights,) = mode.start_pull({"t": array}).result()
    none = np.empty(0, np.uint32)
    mode.start_push({"t": (array, np.array(grads, np.float32), none)})
    mode.end_step(samples=1)
    return [float(weight) for weight in weights[:, 0]]


def local(mode: GeoMode, keys: list[int]) -> list[float]:
    """Return the rows as the trainer has them."""
    (weights,) = mode.start_pull({"t": np.array(keys, np.uint64)}).result()
    return [float(weight) for weight in weights[:, 0]]


def vector(mode: GeoMode) -> list[float]:
    """Return the dense table as the trainer has it."""
    values = mode.pull_dense("d")
    assert values is not None
    return [float(value) for value in values]


def together(*works: Callable[[], object]) -> None:
    """Run functions in threads of their own, and raise what the first of them raised."""
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
