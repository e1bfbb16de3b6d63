"""DistributedDataParallel with our ways to sum equals DistributedDataParallel without."""

import json
import socket
import sys
from collections.abc import Sequence
from typing import Literal

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from collective import connect
from collective.algorithm import Summer
from collective.hooks import DdpHook, ddp_hook
from tests.integration.forked import Piped
from tests.integration.servers import WAIT_S

pytestmark = pytest.mark.integration

STEPS = 50
WAYS: tuple[Literal["none", "torch", "ring", "hierarchical"], ...] = (
    "none",
    "torch",
    "ring",
    "hierarchical",
)


def train_all(words: Sequence[str]) -> int:
    """Train the same model once a way, and print its parameters."""
    rank, world_size, master = int(words[0]), int(words[1]), words[2]
    torch.set_num_threads(1)
    host, port = master.split(":")
    dist.init_process_group(
        "gloo", init_method=f"tcp://{host}:{port}", rank=rank, world_size=world_size
    )
    group = connect(rank=rank, world_size=world_size, master=f"{host}:{int(port) + 1}")
    found = {}
    for way in WAYS:
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)
        )
        model = DistributedDataParallel(net, bucket_cap_mb=0.01)
        state = None
        if way != "none":
            state = DdpHook(Summer(group, way, inter_nranks=2 if way == "hierarchical" else None))
            model.register_comm_hook(state, ddp_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(rank)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(16, 8, generator=generator)).square().mean().backward()
            optimizer.step()
        if state is not None:
            state.close()
        found[way] = torch.cat([p.detach().reshape(-1) for p in net.parameters()]).tolist()
    sys.stdout.write(json.dumps(found))
    dist.destroy_process_group()
    return 0


def two_ports() -> int:
    """Return a port so that it and the next one are free just now."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            try:
                two.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def test_each_hook_equals_no_hook_over_50_steps():
    """Four ranks train alike with torch's own reduction and with each of ours."""
    master = f"127.0.0.1:{two_ports()}"
    ranks = [Piped(train_all, str(rank), "4", master) for rank in range(4)]
    try:
        ended = [process.communicate(timeout=100) for process in ranks]
    finally:
        for process in ranks:
            process.end(WAIT_S)

    assert [process.returncode for process in ranks] == [0] * 4, [said for _, said in ended]
    found = [json.loads(printed) for printed, _ in ended]
    for rank in range(4):
        for way in WAYS[1:]:
            assert found[rank][way] == pytest.approx(found[rank]["none"], abs=1e-6)
            assert found[rank][way] == found[0][way]
