"""What each built-in model and ``make_model`` promise: shapes, seeds, formulas, refusals."""

from typing import Any

import pytest
import torch
from torch import nn

from trainer.errors import TrainerError
from trainer.model import MODELS, ModelEntry, make_model

NAMES = list(MODELS)


def inputs(entry: ModelEntry, *, samples: int = 8, num_dense: int = 3) -> tuple[torch.Tensor, ...]:
    """Return rows of 5 slots and dense features."""
    generator = torch.Generator().manual_seed(7)
    rows = torch.randn(samples, 5, entry.default_dim, generator=generator)
    return rows, torch.randn(samples, num_dense, generator=generator)


def made(name: str, **changes: Any) -> nn.Module:
    """Return a model of 5 slots and 3 dense features."""
    return make_model(name, **{"num_slots": 5, "num_dense": 3, "seed": 1} | changes)


def randomize(model: nn.Module) -> None:
    """Give every weight a value, so that no part is silent because it begins at 0."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("samples", [0, 1, 8])
@pytest.mark.parametrize("num_dense", [0, 3])
def test_a_model_returns_one_logit_a_sample(name: str, samples: int, num_dense: int) -> None:
    """Logits are (B,), with gradients for all rows, for empty batches and no dense features too."""
    rows, dense = inputs(MODELS[name], samples=samples, num_dense=num_dense)
    rows.requires_grad_()

    logits = made(name, num_dense=num_dense)(rows, dense)
    logits.sum().backward()

    assert logits.shape == (samples,)
    assert rows.grad is not None
    assert rows.grad.shape == rows.shape


@pytest.mark.parametrize("name", NAMES)
def test_samples_do_not_see_each_other(name: str) -> None:
    """A sample's logit is the same alone as in a batch."""
    rows, dense = inputs(MODELS[name])
    model = made(name)
    randomize(model)

    alone = torch.cat([model(rows[i : i + 1], dense[i : i + 1]) for i in range(8)])

    torch.testing.assert_close(model(rows, dense), alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_and_every_float_of_a_row_counts(name: str) -> None:
    """No part of a row and no dense weight is without effect on the loss."""
    rows, dense = inputs(MODELS[name])
    rows.requires_grad_()
    model = made(name)
    randomize(model)

    model(rows, dense).square().sum().backward()

    assert rows.grad is not None
    assert rows.grad.abs().sum((0, 1)).min() > 0
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_the_same_weights_and_leaves_the_global_generator(name: str) -> None:
    """Weights depend on the seed alone, and torch's global generator does not move."""
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = made(name).state_dict()
    assert torch.equal(torch.get_rng_state(), before)

    torch.manual_seed(12)
    second = made(name).state_dict()

    assert list(first) == list(second)
    assert all(torch.equal(first[key], second[key]) for key in first)
    if MODELS[name].has_hidden:
        other = made(name, seed=2).state_dict()
        assert not torch.equal(first["mlp.first.weight"], other["mlp.first.weight"])


def test_models_are_sums_of_their_parts() -> None:
    """lr + pairs is fm, lr + mlp is wide_deep, fm + mlp is deepfm, as the formulas say."""
    rows, dense = inputs(MODELS["deepfm"])
    lr, fm = made("lr"), made("fm")
    wide_deep, deepfm = made("wide_deep"), made("deepfm")
    linear = lr(rows[:, :, :1], dense)
    pairs = torch.stack(
        [sum(row[i, 1:] @ row[j, 1:] for i in range(5) for j in range(i)) for row in rows]
    )

    torch.testing.assert_close(fm(rows, dense), linear + pairs, rtol=1e-4, atol=1e-4)
    network = wide_deep(rows, dense) - linear
    assert network.abs().min() > 0
    torch.testing.assert_close(deepfm(rows, dense), linear + pairs + network, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_learns(name: str) -> None:
    """Following its gradients, a model comes to predict labels that its own kind can produce."""
    rows, dense = inputs(MODELS[name], samples=64)
    rows = 0.3 * rows
    target = made(name, seed=3)
    randomize(target)
    labels = (target(rows, dense) > target(rows, dense).median()).float()
    model, weights = made(name), rows.clone().requires_grad_()
    optimizer = torch.optim.Adam([weights, *model.parameters()], lr=0.02)
    losses = []

    for _ in range(150):
        loss = nn.functional.binary_cross_entropy_with_logits(model(weights, dense), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    assert losses[-1] < min(0.2, losses[0] / 4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", ["slots", "dim", "rank", "dense", "samples"])
def test_inputs_of_another_shape_are_refused(name: str, wrong: str) -> None:
    """The error names the model, what must hold and what came."""
    rows, dense = inputs(MODELS[name])
    changed = {
        "slots": (rows[:, :4], dense),
        "dim": (torch.cat((rows, rows), dim=2), dense),
        "rank": (rows.flatten(1), dense),
        "dense": (rows, dense[:, :2]),
        "samples": (rows, dense[:7]),
    }

    with pytest.raises(TrainerError, match=rf"model {name}: (rows|dense) must be \(.*, got \("):
        made(name)(*changed[wrong])


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("deepfn", {}, "one of lr, fm, wide_deep, deepfm, got 'deepfn'; did you mean 'deepfm'"),
        ("wide-deep", {}, "did you mean 'wide_deep'"),
        ("", {}, "did you mean"),
        ("fm", {"dim": 1}, "model fm: dim must be at least 2, got 1"),
        ("deepfm", {"dim": 0}, "model deepfm: dim must be at least 2, got 0"),
        ("lr", {"dim": 0}, "model lr: dim must be at least 1 and at most 1, got 0"),
        ("lr", {"dim": 16}, "model lr: dim must be at least 1 and at most 1, got 16"),
        ("fm", {"hidden": (8,)}, r"model fm: has no hidden layers, got hidden \(8,\)"),
        ("fm", {"num_slots": 0}, "num_slots must be at least 1 .*, got num_slots 0"),
        ("fm", {"num_dense": -1}, "num_dense at least 0, got .* num_dense -1"),
    ],
)
def test_what_no_model_can_do_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    """An unknown name gets the nearest one; an argument without use is refused, not dropped."""
    with pytest.raises(TrainerError, match=message):
        made(name, **changes)


def test_sizes_of_hidden_layers_are_used() -> None:
    """The default is 128 and 64; others are taken in order."""
    default, given = made("deepfm"), made("deepfm", hidden=[7, 5, 3])

    assert [tuple(w.shape) for k, w in default.state_dict().items() if k.endswith("weight")] == [
        (1, 3),
        (128, 78),
        (64, 128),
        (1, 64),
    ]
    assert [tuple(w.shape) for k, w in given.state_dict().items() if k.endswith("weight")] == [
        (1, 3),
        (7, 78),
        (5, 7),
        (3, 5),
        (1, 3),
    ]


def test_every_entry_can_be_made_as_it_stands() -> None:
    """Each name in the registry is its key, and its default dim is within its limits."""
    for name, entry in MODELS.items():
        assert entry.name == name
        assert entry.min_dim <= entry.default_dim <= (entry.max_dim or entry.default_dim)
        assert entry.formula
        assert isinstance(make_model(name, num_slots=1, num_dense=0), nn.Module)
