"""What averaging gradients while backward runs hides, over loopback and over a link that takes its time.

Rooms before and after: ``collective`` runs both functions in two ranks, ``links`` makes the link.

Over loopback a sum is work for the processor: where backward takes the cores, nothing can be hidden. Over a link
of bounded rate it is waiting, and that is what can. Two models over the link: one that computes on a core a
rank, and one whose layers only take time, as if another device computed, which other programs do not slow down.
"""

import time
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from bench.turns import measured
from collective import Group, Reducer, Summer, plan_buckets

LINK_RATE = "200mbit"
"""At which summing the 4 MiB below takes 0.18 s."""

_TURNS = 8
_WIDTH, _LAYERS = 512, 4
_SAMPLES, _FEW_SAMPLES = 2048, 8
_LAYER_S = 0.05
_FUSE_MB = 1.0


class _Elsewhere(nn.Linear):
    """A layer that another device computes: backward waits for it, and needs no processor."""

    @override
    def forward(self, values: Tensor) -> Tensor:
        outputs = super().forward(values)
        outputs.register_hook(lambda _: time.sleep(_LAYER_S))  # type: ignore[no-untyped-call]  # torch
        return outputs


def over_loopback(group: Group) -> dict[str, Any]:
    """Return a step that averages while it computes, over one that computes, and over both in turn."""
    seconds = _measure(group, nn.Linear, _SAMPLES)
    return {
        "overlap_step_over_compute": seconds["step"] / seconds["compute"],
        "overlap_step_over_compute_then_sum": seconds["step"]
        / (seconds["compute"] + seconds["sum"]),
    }


def over_link(group: Group) -> dict[str, Any]:
    """Return the same over a slow link, and which part of the sum costs no time. Every rank calls it."""
    found: dict[str, Any] = {}
    for name, layer, samples in (
        ("core", nn.Linear, _SAMPLES),
        ("device", _Elsewhere, _FEW_SAMPLES),
    ):
        seconds = _measure(group, layer, samples)
        both = seconds["compute"] + seconds["sum"]
        found |= {
            f"overlap_link_{LINK_RATE}_{name}_seconds": seconds,
            f"overlap_link_{name}_step_over_compute_then_sum": seconds["step"] / both,
            f"overlap_link_{name}_hidden_share": (both - seconds["step"]) / seconds["sum"],
        }
    return found


def _measure(group: Group, layer: type[nn.Linear], samples: int) -> dict[str, float]:
    """Return seconds of a step that computes, of the sum of its gradients, and of both at once."""
    net = nn.Sequential(*(layer(_WIDTH, _WIDTH) for _ in range(_LAYERS)), nn.Linear(_WIDTH, 1))
    inputs = torch.randn(samples, _WIDTH)
    summer = Summer(group, "ring")
    buckets = plan_buckets(net.named_parameters(), fuse_mb=_FUSE_MB)
    flats = [torch.zeros(bucket.count) for bucket in buckets]
    reducer = Reducer(summer, buckets)  # outside of its steps it leaves gradients alone

    def compute() -> None:
        net.zero_grad()
        net(inputs).square().mean().backward()

    def add_up() -> None:
        for flat in flats:
            summer.sum(flat, what="bench")

    def step() -> None:
        reducer.begin(1.0)
        compute()
        reducer.wait()

    costs = measured(group, {"compute": compute, "sum": add_up, "step": step}, _TURNS)
    reducer.close()
    return {name: cost.seconds for name, cost in costs.items()}
