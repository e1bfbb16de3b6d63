"""The seam: what a step hands over leaves once, as one push; clipping sees all of it."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

import pserver
from trainer.embedding import EmbeddingBag
from trainer.modes import AsyncMode, Gradients, StepGradients
from trainer.modes.dense import DenseOnServers

IN_ORDER = pserver.ClientSettings(window=1)
ALONE = pserver.GroupSettings()


@pytest.fixture
def client() -> Iterator[pserver.Client]:
    """Two shards, one request at a time."""
    with pserver.embedded(2, settings=IN_ORDER) as made:
        yield made


def gradients(keys: list[int], grads: list[float], counts: list[int]) -> Gradients:
    """Return a push of a table of dim 1."""
    return (
        np.array(keys, np.uint64),
        np.array(grads, np.float32),
        np.array(counts, np.uint32),
    )


def test_gradients_of_a_key_are_summed_when_a_table_is_pushed_twice_in_a_step() -> None:
    """Two modules may share a table: keys 7 and 9, then 9 and 8, give 7, 9 (summed), 8."""
    step = StepGradients()

    step.add("t", gradients([7, 9], [1.0, 2.0], [1, 2]))
    step.add("t", gradients([9, 8], [4.0, 8.0], [3, 4]))

    keys, grads, counts = step.sparse["t"]
    assert keys.tolist() == [7, 9, 8]
    assert grads.tolist() == [1.0, 6.0, 8.0]
    assert isinstance(counts, np.ndarray)
    assert counts.tolist() == [1, 5, 4]


def test_counts_are_left_out_when_one_of_two_pushes_has_none() -> None:
    """Half the occurrences of a step would be a wrong number, so there are none then."""
    step = StepGradients()

    step.add("t", gradients([7], [1.0], [1]))
    step.add("t", gradients([7], [2.0], []))

    assert step.sparse["t"][1].tolist() == [3.0]
    counts = step.sparse["t"][2]
    assert isinstance(counts, np.ndarray)
    assert counts.size == 0


def test_clicks_are_summed_when_one_of_two_pushes_has_them() -> None:
    """Of the other one its occurrences are its shows, and it has no clicks."""
    step = StepGradients()
    keys, grads, counts = gradients([7, 9], [1.0, 2.0], [1, 2])
    assert isinstance(counts, np.ndarray)
    clicks = np.array([1, 1], np.float32)

    step.add("t", (keys, grads, pserver.Occurrences(counts=counts, clicks=clicks)))
    step.add("t", gradients([9], [4.0], [3]))

    said = step.sparse["t"][2]
    assert isinstance(said, pserver.Occurrences)
    assert said.counts.tolist() == [1, 5]
    assert said.clicks.tolist() == [1, 1]


def test_nothing_leaves_before_the_step_ends(client: pserver.Client) -> None:
    """Backward hands over; ``end_step`` sends both tables in one push."""
    mode = AsyncMode(client, ALONE)
    bags = [EmbeddingBag(mode, name, dim=1, optimizer="sgd:lr=1") for name in "ab"]
    out = bags[0](np.array([[1]])) + bags[1](np.array([[2]]))
    out.sum().backward()
    client.flush()
    before = sum(shard.pushes_applied for shard in client.stats())

    mode.end_step(samples=1)
    mode.flush()

    assert before == 0
    versions = {t.table: t.version for shard in client.stats() for t in shard.tables if t.version}
    assert versions == {"a": 1, "b": 1}


def test_a9_clip_by_global_norm_sees_sparse_and_dense(client: pserver.Client) -> None:
    """Dense gradients 3 and 0, a row's 0 and 4, norm 1: the steps are 0.6 and 0.8, not 1 and 1."""
    mode = AsyncMode(client, ALONE, clip_norm=1.0)
    bag = EmbeddingBag(mode, "t", dim=2, optimizer="sgd:lr=1", initializer="zeros")
    weight = nn.Parameter(torch.zeros(2))
    dense = DenseOnServers(mode, [weight], table="dense", optimizer="sgd:lr=1")

    dense.zero_grad()
    loss = bag(np.array([[5]])) @ torch.tensor([0.0, 4.0]) + weight @ torch.tensor([3.0, 0.0])
    loss.sum().backward()
    norm = mode.clip([weight])
    dense.step()
    mode.end_step(samples=1)
    mode.flush()

    assert norm == pytest.approx(5.0)
    np.testing.assert_allclose(client.peek("t", [5]), [[0.0, -0.8]], rtol=1e-6)
    np.testing.assert_allclose(client.pull_dense("dense").values, [-0.6, 0.0], rtol=1e-6)


def test_a_small_gradient_is_not_cut(client: pserver.Client) -> None:
    """A norm of 0.5 under a limit of 1 leaves gradients as they are."""
    mode = AsyncMode(client, ALONE, clip_norm=1.0)
    bag = EmbeddingBag(mode, "t", dim=1, optimizer="sgd:lr=1", initializer="zeros")
    (0.5 * bag(np.array([[5]]))).sum().backward()

    assert mode.clip([]) == pytest.approx(0.5)
    mode.end_step(samples=1)
    mode.flush()

    assert client.peek("t", [5]).tolist() == [[-0.5]]


def test_parameters_are_those_of_the_servers_when_a_second_trainer_comes(
    client: pserver.Client,
) -> None:
    """The first values win; whoever comes later computes with them."""
    first, second = nn.Linear(2, 1), nn.Linear(2, 1)
    mode = AsyncMode(client, ALONE)
    DenseOnServers(mode, first.parameters(), table="d", optimizer="sgd:lr=1")
    DenseOnServers(mode, second.parameters(), table="d", optimizer="sgd:lr=1")

    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_dense_parameters_follow_torch(client: pserver.Client) -> None:
    """Ten steps of adam on the servers are ten steps of torch's adam."""
    torch.manual_seed(0)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    mode = AsyncMode(client, ALONE)
    dense = DenseOnServers(mode, ours.parameters(), table="d", optimizer="adam:lr=0.1")
    adam = torch.optim.Adam(theirs.parameters(), lr=0.1)
    data = torch.randn(10, 4, 3)

    for block in data:
        dense.zero_grad()
        ours(block).square().sum().backward()
        dense.step()
        mode.end_step(samples=4)
        adam.zero_grad()
        theirs(block).square().sum().backward()
        adam.step()
    dense.zero_grad()

    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-6)
