"""FTRL end to end against dmlc/difacto: a loss curve of logistic regression on real rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pserver

ROWS = Path(__file__).parents[3] / "../shared/data/rcv1_100_libsvm/rcv1_100.libsvm"

LOSSES = [69.314718, 69.314718, 67.151912, 61.414778, 56.244989, 53.2187, 51.248737, 49.846688]
LOSSES += [48.650164, 47.698351, 46.924038, 46.388223, 45.970721, 45.499307, 45.102245, 44.798413]
LOSSES += [44.565211, 44.386417, 44.240657, 44.109764]
"""Sum of log losses before each of 20 updates; tests/cpp/sgd_learner_test.cc of difacto."""

RULE = "ftrl:lr=1,l1=1,beta=1,weight_decay=1,decay=gradient"
"""Difacto adds l2 * w to the gradient, which is our decay; our l2 is that of the paper."""


def read() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return labels (-1 or 1), and row, key and value of each entry."""
    labels, rows, keys, values = [], [], [], []
    for row, line in enumerate(ROWS.read_text().splitlines()):
        label, *entries = line.split()
        labels.append(1.0 if float(label) > 0 else -1.0)
        for entry in entries:
            key, _, value = entry.partition(":")
            rows.append(row)
            keys.append(int(key))
            values.append(float(value))
    return np.array(labels), np.array(rows), np.array(keys, np.uint64), np.array(values)


def curve(client: pserver.Client, before: Callable[[int], object] = lambda _: None) -> list[float]:
    """Return the losses of 20 updates; ``before`` is called with the number of each."""
    labels, rows, occurrences, values = read()
    keys, inverse = np.unique(occurrences, return_inverse=True)
    losses = []
    client.create_table(pserver.TableSpec(name="w", dim=1, optimizer=RULE, initializer="zeros"))
    for number in range(len(LOSSES)):
        before(number)
        weights = client.pull("w", keys)[:, 0].astype(np.float64)
        scores = np.bincount(rows, weights[inverse] * values, labels.size)
        losses.append(float(np.logaddexp(0.0, -labels * scores).sum()))
        slopes = -labels / (1.0 + np.exp(labels * scores))
        grads = np.bincount(inverse, slopes[rows] * values, keys.size)
        client.push("w", keys, grads[:, None].astype(np.float32))
    return losses


# Without the compiler, integers that wrap around in a shard's thread would warn.
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.skipif(not ROWS.exists(), reason="the data lies outside the repository")
@pytest.mark.parametrize("num_shards", [1, 2, 3])
def test_twenty_losses_are_those_of_difacto_when_ftrl_runs_on_shards(num_shards: int) -> None:
    """difacto-ftrl-20: one batch of all rows, pulled and pushed 20 times: 20 losses to 5e-5."""
    with pserver.embedded(num_shards) as client:
        losses = curve(client)

    np.testing.assert_allclose(losses, LOSSES, rtol=0, atol=5e-5)
