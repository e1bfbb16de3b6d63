"""What ``trainer.pooling`` promises: torch's results, exact order, and no harm from empty bags."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from trainer.pooling import Pooling, pool

# Row numbers, bag by bag; several empty ones in a row are as likely as long ones.
BAGS = st.lists(st.lists(st.integers(0, 6), max_size=5), max_size=8)
ROWS = 7
A15 = [[[1, 2], [], [3]], [[], [1]], [[1], []], [[], []]]


def laid_out(bags: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the row of each occurrence, and where each bag ends."""
    inverse = np.array([row for bag in bags for row in bag], np.int64)
    return inverse, np.cumsum([len(bag) for bag in bags], dtype=np.int64)


def pooled(bags: list[list[int]], rows: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Return what the room makes of bags of row numbers."""
    inverse, ends = laid_out(bags)
    return pool(rows, inverse, ends, pooling)


def torchs(bags: list[list[int]], rows: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Return what torch makes of them."""
    inverse, ends = laid_out(bags)
    begins = torch.from_numpy(np.append(0, ends)[: len(bags)])
    return functional.embedding_bag(torch.from_numpy(inverse), rows, begins, mode=pooling)


def some_rows(seed: int, dim: int, count: int = ROWS) -> torch.Tensor:
    """Return rows of normal floats that want a gradient."""
    return torch.from_numpy(
        np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    ).requires_grad_()


def backward(out: torch.Tensor, rows: torch.Tensor, seed: int) -> torch.Tensor:
    """Return the gradient of the rows for a random gradient of the output."""
    rng = np.random.default_rng(seed)
    (grad,) = torch.autograd.grad(
        out, rows, torch.from_numpy(rng.standard_normal(out.shape).astype(np.float32))
    )
    return grad


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@given(bags=BAGS, dim=st.integers(1, 9), seed=st.integers(0, 99))
def test_bags_equal_torchs_forward_and_backward(
    pooling: Pooling, bags: list[list[int]], dim: int, seed: int
) -> None:
    """Any ragged bags pool to what ``embedding_bag`` gives, and so do their gradients."""
    rows = some_rows(seed, dim)

    out, expected = pooled(bags, rows, pooling), torchs(bags, rows, pooling)

    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        backward(out, rows, seed), backward(expected, rows, seed), rtol=1e-6, atol=1e-6
    )


@given(bags=BAGS, dim=st.integers(1, 9), seed=st.integers(0, 99))
def test_none_equals_torchs_index(bags: list[list[int]], dim: int, seed: int) -> None:
    """Without pooling each occurrence gets its row, and a row the sum of their gradients."""
    rows = some_rows(seed, dim)
    inverse, _ = laid_out(bags)

    out, expected = pool(rows, inverse, None, "none"), rows[torch.from_numpy(inverse)]

    assert torch.equal(out, expected)
    torch.testing.assert_close(
        backward(out, rows, seed), backward(expected, rows, seed), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("bags", A15)
def test_a15_empty_bags_pool_to_zeros(bags: list[list[int]], pooling: Pooling) -> None:
    """An empty bag first, in the middle, last or alone gives zeros and finite gradients (A15)."""
    rows = some_rows(1, 3)

    out = pooled(bags, rows, pooling)
    grad = backward(out, rows, 2)

    assert [not bag.any() for bag in out.detach()] == [not bag for bag in bags]
    assert torch.isfinite(grad).all()
    assert set(torch.nonzero(grad.any(1)).flatten().tolist()) == {row for b in bags for row in b}


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_no_bags_and_no_rows_are_fine(pooling: Pooling) -> None:
    """A batch of no bags, and bags of no rows at all, have the right shape both ways."""
    rows = some_rows(1, 3)
    nothing = some_rows(1, 3, count=0)

    assert pooled([], rows, pooling).shape == (0, 3)
    assert not backward(pooled([], rows, pooling), rows, 1).any()
    assert torch.equal(pooled([[], []], nothing, pooling), torch.zeros(2, 3))
    assert backward(pooled([[], []], nothing, pooling), nothing, 1).shape == (0, 3)


def test_bags_of_one_are_their_rows_to_the_bit() -> None:
    """The sum and the mean of one row are that row, subnormals and infinities included."""
    rows = torch.tensor([[1e-42, 3.0], [1 / 3, -1e38], [float("inf"), 7.0]], requires_grad=True)
    bags = [[2], [0], [1], [0]]

    for pooling in ("sum", "mean"):
        out = pooled(bags, rows, pooling)
        (grad,) = torch.autograd.grad(out, rows, torch.full((4, 2), 1 / 3))

        assert torch.equal(out, rows[[2, 0, 1, 0]])
        third = torch.tensor(1 / 3)
        assert torch.equal(grad, torch.stack([third + third, third, third])[:, None].expand(3, 2))


@pytest.mark.parametrize("pooling", ["sum", "mean", "none"])
def test_results_are_the_same_to_the_bit_in_each_run(pooling: Pooling) -> None:
    """Two runs on floats whose sum depends on the order agree in every bit, forward and back."""
    rng = np.random.default_rng(3)
    inverse = rng.integers(0, 50, 5000)
    ends = np.sort(rng.integers(0, 5000, 400))
    ends[-1] = 5000
    rows = torch.from_numpy(
        (rng.standard_normal((50, 8)) * 10.0 ** rng.integers(-6, 7, (50, 8))).astype(np.float32)
    ).requires_grad_()

    runs = []
    for _ in range(2):
        out = pool(rows, inverse, ends, pooling)
        runs.append((out.detach(), backward(out, rows, 4)))

    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])


def test_gradients_are_added_in_the_order_of_occurrences() -> None:
    """The sum of a row's gradients is the float32 sum from the first occurrence to the last."""
    rng = np.random.default_rng(5)
    grads = (rng.standard_normal(300) * 10.0 ** rng.integers(-4, 5, 300)).astype(np.float32)
    rows = torch.zeros(1, 1, requires_grad=True)
    expected = np.float32(0.0)
    for grad in grads:
        expected += grad

    out = pool(rows, np.zeros(300, np.int64), None, "none")
    out.backward(torch.from_numpy(grads)[:, None])

    assert rows.grad is not None
    assert rows.grad.item() == expected


@pytest.mark.parametrize("pooling", ["sum", "mean", "none"])
def test_strided_gradients_and_rows_are_read_right(pooling: Pooling) -> None:
    """A transposed, a sliced or an expanded gradient, and transposed rows, are copied first."""
    inverse, ends = laid_out([[0, 1], [], [1, 1, 2], [2]])
    rows = some_rows(6, ROWS).T.contiguous().T  # column-major
    rows = rows.detach().requires_grad_()
    assert not rows.is_contiguous()
    plain = rows.detach().contiguous().requires_grad_()
    shape = pool(plain, inverse, ends, pooling).shape
    wide = torch.randn(shape[0], 2 * shape[1], generator=torch.Generator().manual_seed(0))

    for grad in (wide[:, ::2], wide[:, : shape[1]].T.contiguous().T, wide[:, :1].expand(shape)):
        assert not grad.is_contiguous()
        (strided,) = torch.autograd.grad(pool(rows, inverse, ends, pooling), rows, grad)
        (expected,) = torch.autograd.grad(
            pool(plain, inverse, ends, pooling), plain, grad.contiguous()
        )
        assert torch.equal(strided, expected)


@pytest.mark.parametrize("pooling", ["sum", "none"])
def test_second_derivative_is_refused(pooling: Pooling) -> None:
    """Differentiating the gradient again is an error, not a gradient that lacks a part."""
    rows = some_rows(7, 2)
    out = pooled([[0, 1], [2]], rows, pooling)
    (grad,) = torch.autograd.grad((out**2).sum(), rows, create_graph=True)

    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize(("bags", "shape"), [([], (0, 2)), ([[]], (1, 2)), ([[0], [1, 2]], (2, 2))])
def test_shapes_hold_on_a_device_that_is_no_cpu(bags: list[list[int]], shape: tuple[int]) -> None:
    """Elsewhere torch's own kernels pool the bags, as many of them as there are."""
    rows = torch.empty(ROWS, 2, device="meta")

    assert pooled(bags, rows, "sum").shape == shape
    assert pool(rows, laid_out(bags)[0], None, "none").shape == (sum(map(len, bags)), 2)


@pytest.mark.gpu
@pytest.mark.parametrize("pooling", ["sum", "mean", "none"])
@pytest.mark.parametrize("bags", [*A15, [], [[0, 1, 1], [6]]])
def test_gpu_gives_what_the_cpu_gives(bags: list[list[int]], pooling: Pooling) -> None:
    """On a GPU rows pool, and gradients come back, as on the CPU."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    rows = some_rows(8, 5)
    there = rows.detach().cuda().requires_grad_()

    out, other = pooled(bags, rows, pooling), pooled(bags, there, pooling)

    torch.testing.assert_close(other.cpu(), out)
    (expected,) = torch.autograd.grad(out.sum(), rows)
    (grad,) = torch.autograd.grad(other.sum(), there)
    torch.testing.assert_close(grad.cpu(), expected)


@given(bags=BAGS, dim=st.integers(1, 9), seed=st.integers(0, 99))
def test_weighted_bags_equal_torchs_forward_and_backward(
    bags: list[list[int]], dim: int, seed: int
) -> None:
    """Occurrences that count more or less pool to what ``embedding_bag`` gives for such weights."""
    rows = some_rows(seed, dim)
    inverse, ends = laid_out(bags)
    weights = np.random.default_rng(seed).standard_normal(inverse.size).astype(np.float32)

    out = pool(rows, inverse, ends, "sum", weights)

    expected = functional.embedding_bag(
        torch.from_numpy(inverse),
        rows,
        torch.from_numpy(np.append(0, ends)[: len(bags)]),
        mode="sum",
        per_sample_weights=torch.from_numpy(weights),
    )
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        backward(out, rows, seed), backward(expected, rows, seed), rtol=1e-5, atol=1e-6
    )
