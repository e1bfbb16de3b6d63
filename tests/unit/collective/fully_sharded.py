"""One of two processes that train a fully sharded model; ``test_full_sharding`` starts them."""

import os
from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from collective import GroupError
from collective.full_sharding import FullOptions, shard_fully

RANKS = 2

STEPS = 50


def model() -> nn.Sequential:
    """Return the same small model everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return one rank's batch."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(3, 6, generator=generator), torch.randn(3, 1, generator=generator)


def train(net: nn.Module, ranks: list[int]) -> torch.optim.Adam:
    """Train on the joined batches of some ranks."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for step in range(STEPS):
        parts = [batch(step, rank) for rank in ranks]
        inputs, targets = (torch.cat(blocks) for blocks in zip(*parts, strict=True))
        optimizer.zero_grad()
        nn.functional.mse_loss(net(inputs), targets).backward()
        optimizer.step()
    return optimizer


def _held(tensors: Sequence[Tensor]) -> int:
    locals_ = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in locals_)


def check_copies(rank: int, alone: nn.Module) -> None:
    """Train two copies of degree 1: the same parameters, whole on each; other degrees are refused."""
    net = model()
    shard_fully(net, ["0"], options=FullOptions(degree=1))
    train(net, [rank])
    for parameter, wanted in zip(net.parameters(), alone.parameters(), strict=True):
        assert isinstance(parameter, DTensor)
        torch.testing.assert_close(parameter.to_local(), wanted, atol=1e-6, rtol=1e-5)
    half = model()
    shard_fully(half, ["0", "2"], options=FullOptions(compute_dtype=torch.bfloat16))
    train(half, [rank])
    for parameter, wanted in zip(half.parameters(), alone.parameters(), strict=True):
        assert isinstance(parameter, DTensor)
        assert parameter.dtype == torch.float32
        torch.testing.assert_close(parameter.full_tensor(), wanted, atol=0.05, rtol=0.05)
    with pytest.raises(GroupError, match="2 ranks do not divide into copies of degree 3"):
        shard_fully(model(), [], options=FullOptions(degree=3))


def main(words: Sequence[str]) -> int:
    """Train, and check this rank's parameters and bytes."""
    rank, meeting = int(words[0]), words[1]
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    net = model()
    shard_fully(net, ["0", "2"])
    optimizer = train(net, [rank])
    alone = model()
    train(alone, list(range(RANKS)))
    parameters = list(net.parameters())
    for parameter, wanted in zip(parameters, alone.parameters(), strict=True):
        assert isinstance(parameter, DTensor)
        torch.testing.assert_close(parameter.full_tensor(), wanted, atol=1e-6, rtol=1e-5)
    state = [
        values[name] for values in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")
    ]
    # torch splits each parameter by rows, rounded up on the first ranks.
    own = sum(
        4 * p[rank * -(-len(p) // RANKS) :][: -(-len(p) // RANKS)].numel()
        for p in alone.parameters()
    )
    held = [
        _held(parameters),
        _held([p.grad for p in parameters if p.grad is not None]),
        _held(state),
    ]
    assert held == [own, own, 2 * own], (held, own)
    check_copies(rank, alone)
    dist.barrier()
    dist.destroy_process_group()
    return 0
