"""Recomputed layers: the same gradients to the bit, and the bytes that are not kept."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from collective import GroupError
from collective.recompute import recompute_layers
from tests.ranks import seeded

BLOCKS, WIDTH, INNER, SAMPLES = 4, 16, 64, 32


def model() -> nn.Sequential:
    """Return blocks whose inner values are four times as wide as what goes from one to the next."""
    with seeded(3):
        return nn.Sequential(
            *(
                nn.Sequential(
                    nn.Linear(WIDTH, INNER), nn.ReLU(), nn.Dropout(0.5), nn.Linear(INNER, WIDTH)
                )
                for _ in range(BLOCKS)
            )
        )


def train_once(net: nn.Module) -> tuple[dict[str, Tensor], int]:
    """Return gradients by name, and the bytes that forward kept for backward, parameters apart."""
    own = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage().data_ptr()
        if storage not in own:
            kept[storage] = tensor  # alive, so that no other one gets its place
        return tensor

    inputs = torch.linspace(-1.0, 1.0, SAMPLES * WIDTH).view(SAMPLES, WIDTH)
    with seeded(4), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = net(inputs).square().sum()
    num_bytes = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    loss.backward()
    return {n: p.grad for n, p in net.named_parameters() if p.grad is not None}, num_bytes


@pytest.mark.parametrize("layers", [["0"], ["1", "3"], ["0", "1", "2", "3"]])
def test_gradients_stay_and_inner_values_are_not_kept(layers: Sequence[str]) -> None:
    """A block keeps ReLU's output, dropout's mask and its output, each (samples, inner); recomputed none.

    Its inputs, which the blocks before and after share, are kept by the one that recomputes.
    """
    usual, usual_bytes = train_once(model())
    net = model()
    recompute_layers(net, layers)
    again, again_bytes = train_once(net)

    assert again.keys() == usual.keys()
    for name, grad in usual.items():
        assert torch.equal(again[name], grad), name
    inner = 4 * SAMPLES * INNER
    saved = len(layers) * 3 * inner
    inputs = 4 * SAMPLES * WIDTH
    assert saved <= usual_bytes - again_bytes <= saved + len(layers) * inputs


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        (["4"], "layer '4' is no module of the model"),
        ([""], "layer '' is no module of the model"),
        (["0", "0.1"], "layer '0.1' is recomputed already, by '0'"),
        (["1", "1"], "layer '1' is recomputed already, by '1'"),
    ],
)
def test_layers_that_cannot_be_recomputed_are_refused(layers: Sequence[str], text: str) -> None:
    """Unknown names, and layers within layers; nothing was changed."""
    net = model()
    with pytest.raises(GroupError, match=text):
        recompute_layers(net, layers)
    assert all("forward" not in vars(module) for module in net.modules())
