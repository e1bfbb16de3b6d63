"""``trainer.EmbeddingBag`` beside ``torch.nn.EmbeddingBag``: the same model, the same losses."""

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pserver
from tests.unit.trainer.models import IN_ORDER, bag

NUM_KEYS, DIM, STEPS = 40, 3, 50
KEYS = np.random.default_rng(1).integers(0, 2**64, NUM_KEYS, dtype=np.uint64)
"""What stands for torch's row numbers: keys from all of the key space."""

RULES: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd:lr=0.5": lambda weights: torch.optim.SGD(weights, lr=0.5),
    "adagrad:lr=0.1,eps=1e-10": lambda weights: torch.optim.Adagrad(weights, lr=0.1),
    "adam:lr=0.5": lambda weights: torch.optim.Adam(weights, lr=0.5),
}


def batches() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield row numbers, where bags begin, and labels, of 16 ragged bags each."""
    rng = np.random.default_rng(2)
    for _ in range(STEPS):
        lengths = rng.integers(0, 5, 16)
        numbers = rng.zipf(1.5, lengths.sum()) % NUM_KEYS
        begins = np.append(0, np.cumsum(lengths)[:-1])
        labels = (rng.random(16) < 0.4).astype(np.float32)
        yield torch.from_numpy(numbers), torch.from_numpy(begins), torch.from_numpy(labels)


def first_weights() -> Tensor:
    """Return what both sides begin with."""
    return torch.randn(NUM_KEYS, DIM, generator=torch.Generator().manual_seed(3))


def losses_of(
    look_up: Callable[[Tensor, Tensor], Tensor], step: Callable[[], object]
) -> list[float]:
    """Return the loss of each step of a model of one linear layer behind the bags."""
    dense = nn.Linear(DIM, 1)
    with torch.no_grad():
        dense.weight.fill_(0.5)
        dense.bias.fill_(-0.25)
    optimizer = torch.optim.SGD(dense.parameters(), lr=0.1)
    losses = []
    for numbers, begins, labels in batches():
        optimizer.zero_grad()
        logits = dense(look_up(numbers, begins)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
        loss.backward()
        optimizer.step()
        step()
        losses.append(loss.item())
    return losses


@cache
def torch_losses(rule: str, pooling: str, *, sparse: bool) -> tuple[list[float], np.ndarray]:
    """Return the losses and last weights of torch's own module."""
    module = nn.EmbeddingBag(NUM_KEYS, DIM, mode=pooling, sparse=sparse)
    module.weight = weight = nn.Parameter(first_weights())
    optimizer = RULES[rule]([weight])

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    with torch.sparse.check_sparse_tensor_invariants(True):  # or its Adagrad warns
        losses = losses_of(module, step)
    return losses, weight.detach().numpy()


@pytest.mark.parametrize("num_shards", [1, 2, 3])
@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("rule", ["sgd:lr=0.5", "adagrad:lr=0.1,eps=1e-10"])
def test_a12_losses_equal_torchs_for_fifty_steps(rule: str, pooling: str, num_shards: int) -> None:
    """Losses are those of torch's module, sparse or dense, on any number of shards (A12)."""
    expected, weights = torch_losses(rule, pooling, sparse=True)
    others, _ = torch_losses(rule, pooling, sparse=False)

    with pserver.embedded(num_shards, settings=IN_ORDER) as client:
        module = bag(client, dim=DIM, pooling=pooling, optimizer=rule)
        client.assign("t", KEYS, first_weights().numpy())
        losses = losses_of(lambda numbers, begins: module(KEYS[numbers.numpy()], begins), int)
        module.flush()
        last = client.peek("t", KEYS)

    assert losses == pytest.approx(expected, abs=1e-6)
    assert losses == pytest.approx(others, abs=1e-6)
    assert losses[-1] != losses[0]
    assert np.allclose(last, weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("rule", RULES)
def test_a3_repeated_keys_equal_torch(rule: str, num_shards: int) -> None:
    """Keys 7, 7, 7, 9 with gradients 1, 2, 3, 10 step as torch's summed gradients do (A3)."""
    grads = torch.tensor([[1.0], [2.0], [3.0], [10.0]])
    weight = nn.Parameter(torch.tensor([[1.0], [2.0]]))
    optimizer = RULES[rule]([weight])
    with pserver.embedded(num_shards, settings=IN_ORDER) as client:
        module = bag(client, pooling="none", optimizer=rule)
        client.assign("t", [7, 9], weight.detach().numpy())

        for _ in range(3):
            optimizer.zero_grad()
            weight[[0, 0, 0, 1]].backward(grads)
            optimizer.step()
            module(np.array([7, 7, 7, 9])).backward(grads)

        module.flush()
        assert np.allclose(client.peek("t", [7, 9]), weight.detach(), rtol=0.0, atol=1e-6)
