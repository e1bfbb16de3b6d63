"""What a client's results are worth: equal to torch, and the same whatever the shard count."""

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import pserver
from pserver.client import route

OPTIMIZERS = {
    "sgd:lr=0.5": lambda w: torch.optim.SGD([w], lr=0.5),
    "adagrad:lr=0.5,eps=1e-8": lambda w: torch.optim.Adagrad([w], lr=0.5, eps=1e-8),
    "adam:lr=0.5": lambda w: torch.optim.Adam([w], lr=0.5),
}
SHARD_COUNTS = [1, 2, 3]


@pytest.mark.parametrize("num_shards", SHARD_COUNTS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a3_repeats_are_summed_before_the_step(optimizer: str, num_shards: int) -> None:
    """Keys [7, 7, 7, 9] with gradients [1, 2, 3, 10] step once with [6, 10], as in torch (A3)."""
    first = np.array([[1.0], [2.0]], np.float32)
    weights = torch.tensor(first.copy(), requires_grad=True)
    step = OPTIMIZERS[optimizer](weights)
    with pserver.embedded(num_shards) as client:
        client.create_table(pserver.TableSpec(name="t", dim=1, optimizer=optimizer))
        client.assign("t", [7, 9], first)

        for scale in (1.0, -0.5, 0.25):
            client.push("t", [7, 7, 7, 9], scale * np.array([[1], [2], [3], [10]], np.float32))
            sparse = torch.sparse_coo_tensor(
                torch.tensor([[0, 0, 0, 1]]),
                scale * torch.tensor([[1.0], [2.0], [3.0], [10.0]]),
                (2, 1),
                check_invariants=True,
            )
            weights.grad = sparse.coalesce().to_dense()
            step.step()

        ours = client.pull("t", [7, 9])
    np.testing.assert_allclose(ours, weights.detach().numpy(), rtol=2e-6)


def train(num_shards: int, optimizer: str) -> NDArray[np.float32]:
    """Return the rows after a few seeded steps on a cluster of that size."""
    rng = np.random.default_rng(3)
    with pserver.embedded(num_shards) as client:
        client.create_table(pserver.TableSpec(name="t", dim=5, optimizer=optimizer, seed=11))
        for _ in range(10):
            keys = rng.zipf(1.3, 300).astype(np.uint64)
            client.pull("t", keys)
            client.push("t", keys, rng.standard_normal((300, 5)))
        return client.peek("t", np.arange(400))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_results_are_the_same_whatever_the_shard_count(optimizer: str) -> None:
    """One run gives the same weights to the bit through 1, 2 and 3 shards."""
    one, two, three = (train(n, optimizer) for n in SHARD_COUNTS)

    assert np.array_equal(one, two)
    assert np.array_equal(one, three)


def test_a19_first_weights_are_the_same_whatever_the_shard_count() -> None:
    """First weights depend on seed, table and key only, and no two of 10,000 are alike (A19)."""
    keys = np.arange(10_000)
    blocks = []
    for num_shards in (1, 2, 4):
        with pserver.embedded(num_shards) as client:
            spec = pserver.TableSpec(name="t", dim=4, initializer="normal:mean=0,std=1")
            client.create_table(spec)
            blocks.append(client.pull("t", keys[::-1])[::-1])

    for one, other in itertools.pairwise(blocks):
        assert np.array_equal(one, other)
    assert np.unique(blocks[0], axis=0).shape == (10_000, 4)
    assert abs(blocks[0].mean()) < 0.02
    assert abs(blocks[0].std() - 1.0) < 0.02


@pytest.mark.parametrize("part_bytes", [1 << 22, 1000, 200])
def test_each_version_rises_once_for_one_step(
    part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step over three tables on two shards raises each version by 1, whatever is cut (A18)."""
    monkeypatch.setattr(route, "PART_BYTES_MAX", part_bytes)
    keys = np.arange(60, dtype=np.uint64)
    none = np.empty(0, np.uint32)
    with pserver.embedded(2) as client:
        for name in "abc":
            client.create_table(pserver.TableSpec(name=name, dim=2))

        for step in range(1, 4):
            push = {name: (keys, np.ones(120, np.float32), none) for name in "abc"}
            assert client.start_push(push).result() == step
            versions = [table.version for stats in client.stats() for table in stats.tables]
            assert versions == [step] * 6
        num_messages = sum(stats.pushes_applied for stats in client.stats())
    assert (num_messages == 6) == (part_bytes == 1 << 22)


def test_parts_give_the_same_weights_as_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cutting pulls and pushes into parts changes no weight."""
    whole = train(2, "adam:lr=0.5")
    monkeypatch.setattr(route, "PART_BYTES_MAX", 500)

    assert np.array_equal(train(2, "adam:lr=0.5"), whole)
