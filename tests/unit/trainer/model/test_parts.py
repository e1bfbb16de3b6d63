"""What ``trainer.model.parts`` promises: exact sums and gradients, weights of their own seed."""

import pytest
import torch

from trainer.errors import TrainerError
from trainer.model.parts import Affine, DenseLinear, Mlp, linear_and_pairs, linear_weights


def slow_linear_and_pairs(rows: torch.Tensor) -> torch.Tensor:
    """The double loop over pairs of slots, in float64."""
    out = []
    for sample in rows.double():
        total = sample[:, 0].sum()
        for i in range(len(sample)):
            for j in range(i + 1, len(sample)):
                total = total + (sample[i, 1:] * sample[j, 1:]).sum()
        out.append(total)
    return torch.stack(out)


@pytest.mark.parametrize("shape", [(3, 5, 4), (2, 1, 3), (2, 6, 2), (1, 2, 9)])
def test_pairs_equal_the_double_loop(shape: tuple[int, ...]) -> None:
    """The identity gives the sum over all pairs, for one slot (no pairs) and one factor too."""
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(0))

    torch.testing.assert_close(
        linear_and_pairs(rows).double(), slow_linear_and_pairs(rows), rtol=1e-5, atol=1e-5
    )


def test_the_gradient_of_pairs_is_that_of_the_double_loop() -> None:
    """The written-out gradient equals autograd's through the slow loop, and finite differences."""
    rows = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1)).double()
    upstream = torch.tensor([1.0, -2.0, 0.0]).double()
    fast, slow = rows.clone().requires_grad_(), rows.clone().requires_grad_()

    linear_and_pairs(fast).backward(upstream)
    slow_linear_and_pairs(slow).backward(upstream)

    torch.testing.assert_close(fast.grad, slow.grad)
    assert torch.autograd.gradcheck(linear_and_pairs, rows.clone().requires_grad_())


def test_pairs_leave_the_rows_as_they_are() -> None:
    """Neither pass writes to the rows, which belong to the caller."""
    rows = torch.randn(3, 4, 5).requires_grad_()
    before = rows.detach().clone()

    linear_and_pairs(rows).sum().backward()

    assert torch.equal(rows.detach(), before)


def test_the_linear_weight_is_the_first_float() -> None:
    """Only the first float of each row counts as linear."""
    rows = torch.zeros(2, 3, 4)
    rows[:, :, 0] = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])
    rows[:, :, 1:] = 100.0

    assert linear_weights(rows).tolist() == [7.0, 56.0]


def test_the_network_equals_joining_its_inputs() -> None:
    """Factors and dense features multiplied apart give what one joined input gives."""
    mlp = Mlp(num_slots=3, num_dense=2, dim=4, hidden=(5, 3), seed=0)
    rows, dense = torch.randn(6, 3, 4), torch.randn(6, 2)

    hidden = torch.cat((rows[:, :, 1:].reshape(6, 9), dense), dim=1)
    for layer in (mlp.first, *mlp.layers):
        hidden = torch.relu(hidden @ layer.weight.T + layer.bias)
    expected = (hidden @ mlp.last.weight.T + mlp.last.bias).squeeze(1)

    torch.testing.assert_close(mlp(rows, dense), expected)


def test_glorot_weights_keep_their_bound() -> None:
    """Weights fill the range of Glorot's rule; without a generator they are 0."""
    weight = Affine(300, 100, generator=torch.Generator().manual_seed(0)).weight.detach()
    bound = (6 / 400) ** 0.5

    assert 0.99 * bound < float(weight.abs().max()) <= bound
    assert float(weight.std()) == pytest.approx(bound / 3**0.5, rel=0.02)
    assert not Affine(3, 2, generator=None).weight.any()
    assert DenseLinear(3)(torch.ones(2, 3)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("hidden", [(), (0,), (4, -1)])
def test_hidden_sizes_must_be_positive(hidden: tuple[int, ...]) -> None:
    """No layers, or one without units, is refused with what came."""
    with pytest.raises(TrainerError, match="hidden must be sizes of at least 1, got"):
        Mlp(num_slots=3, num_dense=2, dim=4, hidden=hidden, seed=0)
