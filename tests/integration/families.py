"""Tables of each optimizer family, and steps of training that depend on what was pulled.

What always holds: the gradient of a step is a function of the round, the trainer and the pulled weights, so
one lost or doubled push changes all that comes after.
"""

from collections.abc import Callable

import numpy as np

import pserver
from pserver.arrays import Floats, Keys

KEYS = 400
BATCH = 40
OPTIMIZERS = ("sgd:lr=0.1", "adagrad", "adam", "ftrl", "rmsprop", "momentum")
SPECS = [
    pserver.TableSpec(name=text.split(":")[0], dim=4, optimizer=text, capacity_max=10_000)
    for text in OPTIMIZERS
] + [
    pserver.TableSpec(name="half", dim=4, row_dtype="bfloat16", capacity_max=10_000),
]
DENSE = pserver.DenseSpec(name="dense", length=32, optimizer="adam")
NONE = np.empty(0, np.uint32)


def make(client: pserver.Client) -> None:
    """Make all tables."""
    for spec in SPECS:
        client.create_table(spec)
    client.create_dense(DENSE)
    client.init_dense(DENSE.name, np.zeros(DENSE.length, np.float32))


def batch_of(round_number: int, trainer: int) -> Keys:
    """Return the keys of a trainer's batch."""
    rng = np.random.default_rng([round_number, trainer])
    return np.unique(rng.integers(0, KEYS, BATCH)).astype(np.uint64)


def train(
    client: pserver.Client, group: pserver.Group, *, trainer: int, goes_on: Callable[[int], bool]
) -> int:
    """Train round after round, and return the last one."""
    number = 1
    while goes_on(number):
        keys = batch_of(number, trainer)
        rows = group.start_pull({s.name: keys for s in SPECS}, round_number=number).result()
        gradients = {
            spec.name: (keys, gradient_of(weights, number, trainer), NONE)
            for spec, weights in zip(SPECS, rows, strict=True)
        }
        dense = {DENSE.name: np.full(DENSE.length, 0.01 * (number % 5) - trainer, np.float32)}
        step = pserver.Step(dense, {}, number, keys.size, is_everywhere=True)
        group.start_push(gradients, step).result()
        number += 1
    return number - 1


def gradient_of(weights: Floats, number: int, trainer: int) -> Floats:
    """Return gradients that depend on the weights, the round and the trainer."""
    scale = np.float32(0.5 + 0.01 * (number % 7) + trainer)
    made: Floats = (weights.reshape(-1) * scale + np.float32(0.1) * scale).astype(np.float32)
    return made


def rows_of(client: pserver.Client) -> dict[str, list[object]]:
    """Return all that the servers hold of each row, weights and state, and the dense table's weights.

    None stands for a key without a row.
    """
    found: dict[str, list[object]] = {}
    for spec in SPECS:
        rows = [client.inspect(spec.name, key) for key in range(KEYS)]
        found[spec.name] = [
            (row.weights.tobytes(), {n: v.tobytes() for n, v in row.state.items()})
            if row.has_row
            else None
            for row in rows
        ]
    found[DENSE.name] = [client.pull_dense(DENSE.name).values.tobytes()]
    return found
