"""Sharded optimizers: the unsharded one's parameters, and the bytes that the formula says."""

import pytest
import torch
from torch import Tensor, nn

from collective import Group, GroupError, TensorError, alone
from collective.mesh import make_mesh
from collective.ring import own_chunk
from collective.sharding import MakeOptimizer, ShardedOptimizer
from tests.ranks import results, seeded

STEPS = 50

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
}


def model() -> nn.Sequential:
    """Return the same small model everywhere: 57 parameters, which no world size below divides."""
    with seeded(0):
        return nn.Sequential(
            nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 1)
        )


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return one rank's batch: rank + 2 samples."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return (
        torch.randn(rank + 2, 6, generator=generator),
        torch.randn(rank + 2, 1, generator=generator),
    )


def unsharded(ranks: int, make: MakeOptimizer) -> list[Tensor]:
    """Train one process on the joined batches."""
    net = model()
    optimizer = make(list(net.parameters()))
    for step in range(STEPS):
        parts = [batch(step, rank) for rank in range(ranks)]
        inputs, targets = (torch.cat(blocks) for blocks in zip(*parts, strict=True))
        optimizer.zero_grad()
        nn.functional.mse_loss(net(inputs), targets).backward()
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_parameters_are_those_of_the_unsharded_optimizer(ranks, stage):
    """50 steps of every optimizer: equal to 1e-6, and the same bits on all ranks."""

    def work(group: Group) -> dict[str, list[Tensor]]:
        found = {}
        for name, make in OPTIMIZERS.items():
            net = model()
            optimizer = ShardedOptimizer(net.named_parameters(), make, group, stage=stage)
            for step in range(STEPS):
                inputs, targets = batch(step, group.rank)
                optimizer.zero_grad()
                nn.functional.mse_loss(net(inputs), targets).backward()
                assert optimizer.step(len(inputs)) == sum(rank + 2 for rank in range(ranks))
            found[name] = [parameter.detach() for parameter in net.parameters()]
        return found

    found = results(ranks, work)

    for name, make in OPTIMIZERS.items():
        for parts in zip(*(rank[name] for rank in found), unsharded(ranks, make), strict=True):
            *by_rank, wanted = parts
            assert all(torch.equal(part, by_rank[0]) for part in by_rank)
            torch.testing.assert_close(by_rank[0], wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("stage", [1, 2])
def test_copies_of_a_shared_optimizer_equal_the_unsharded_one(stage):
    """Four ranks, two of which share an optimizer: half of the state each, the same bits on all."""

    def work(group: Group) -> tuple[list[Tensor], int]:
        mesh = make_mesh(group, pipeline=1, sharding=2)
        net = model()
        optimizer = ShardedOptimizer(
            net.named_parameters(),
            OPTIMIZERS["adam"],
            mesh.sharding,
            stage=stage,
            replicas=mesh.replicas,
        )
        for step in range(STEPS):
            inputs, targets = batch(step, group.rank)
            optimizer.zero_grad()
            nn.functional.mse_loss(net(inputs), targets).backward()
            assert optimizer.step(len(inputs)) == sum(rank + 2 for rank in range(4))
        parameters = [parameter.detach() for parameter in net.parameters()]
        return parameters, optimizer.held_bytes()["state"]

    found = results(4, work)

    count = sum(parameter.numel() for parameter in model().parameters())
    assert sum(state for _, state in found) == 2 * (2 * 4 * count)
    for parts in zip(*(net for net, _ in found), unsharded(4, OPTIMIZERS["adam"]), strict=True):
        *by_rank, wanted = parts
        assert all(torch.equal(part, by_rank[0]) for part in by_rank)
        torch.testing.assert_close(by_rank[0], wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_rank_holds_the_bytes_of_the_formula(ranks):
    """Adam: 2 numbers of state a parameter of the own chunk; gradients by stage."""
    count = sum(parameter.numel() for parameter in model().parameters())

    def work(group: Group) -> tuple[int, dict[int, dict[str, int]]]:
        held = {}
        for stage in (1, 2):
            net = model()
            optimizer = ShardedOptimizer(
                net.named_parameters(), OPTIMIZERS["adam"], group, stage=stage
            )
            inputs, targets = batch(0, group.rank)
            nn.functional.mse_loss(net(inputs), targets).backward()
            optimizer.step()
            held[stage] = optimizer.held_bytes()
        own = own_chunk(count, group)
        return own.stop - own.start, held

    found = results(ranks, work)

    assert sum(own for own, _ in found) == count
    assert max(own for own, _ in found) <= -(-count // ranks)
    for own, held in found:
        whole, state = 4 * count, 2 * 4 * own
        assert held[1] == {"parameters": whole, "gradients": whole + 4 * own, "state": state}
        assert held[2] == {"parameters": whole, "gradients": 4 * own, "state": state}


def test_a_rank_without_a_batch_takes_part_and_ends_with_the_others():
    """Weight 0 counts nothing; when all have it nothing is stepped."""

    def work(group: Group) -> tuple[float, float, Tensor, Tensor]:
        net = model()
        optimizer = ShardedOptimizer(net.named_parameters(), OPTIMIZERS["sgd"], group)
        inputs, targets = batch(0, 0)
        if group.rank == 0:
            nn.functional.mse_loss(net(inputs), targets).backward()
        first = optimizer.step(len(inputs) if group.rank == 0 else 0.0)
        after = next(net.parameters()).detach().clone()
        second = optimizer.step(0.0)
        return first, second, after, next(net.parameters()).detach()

    net = model()
    optimizer = OPTIMIZERS["sgd"](list(net.parameters()))
    inputs, targets = batch(0, 0)
    nn.functional.mse_loss(net(inputs), targets).backward()
    optimizer.step()
    for first, second, after, last in results(2, work):
        assert (first, second) == (2.0, 0.0)
        torch.testing.assert_close(after, next(net.parameters()).detach(), atol=1e-7, rtol=1e-6)
        assert torch.equal(after, last)


def test_what_cannot_be_sharded_is_refused():
    """Stage 3, other dtypes, and optimizers that look at whole tensors."""
    make = OPTIMIZERS["sgd"]
    with pytest.raises(GroupError, match="stage must be 1 or 2, got 3; 3 is torch's fully_shard"):
        ShardedOptimizer(model().named_parameters(), make, alone(), stage=3)
    with pytest.raises(TensorError, match=r"0\.weight: sharded parameters are float32 on cpu"):
        ShardedOptimizer(model().double().named_parameters(), make, alone())
    with pytest.raises(GroupError, match="LBFGS looks at whole tensors"):
        ShardedOptimizer(model().named_parameters(), torch.optim.LBFGS, alone())
