"""What ``kernel.optim`` promises: the reference's numbers, torch's, the same ones twice."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pserver.table.optimizer import RULES, make_optimizer
from tests.reference_optim import Rule

Step = tuple[np.ndarray, np.ndarray]
"""Row ids and their gradients."""

FORMS = (
    "sgd:lr=0.1",
    "sgd:lr=0.1,clip=0.5,weight_decay=0.1,weight_low=-0.4,weight_high=0.6",
    "sgd:lr=0.1,weight_decay=0.1,decay=gradient,weight_high=0.5",
    "momentum:lr=0.02,momentum=0.8",
    "nesterov:lr=0.02,momentum=0.8",
    "adagrad:lr=0.1",
    "adagrad:lr=0.1,initial=0.5,eps=0.01",
    "adagrad:lr=0.1,state=row",
    "adagrad:lr=0.1,state=row,initial=0.5,eps=0.01",
    "adagrad:lr=0.1,accumulate=after,initial=3",
    "adagrad:lr=0.1,accumulate=after,initial=0.2,state=row",
    "adagrad_decay:lr=0.1,decay_step=7,decay_rate=0.5",
    "adagrad_decay:lr=0.1,decay_step=1,decay_rate=0.9,initial=1",
    "adam:lr=0.01",
    "adam:lr=0.01,beta1=0.5,beta2=0.9,eps=0.1",
    "adam:lr=0.01,beta1=0,beta2=0",
    "adam:lr=0.01,step=table",
    "adam:lr=0.01,weight_decay=0.1,decay=gradient,clip=1",
    "adamw:lr=0.01,weight_decay=0.1",
    "amsgrad:lr=0.01,beta2=0.9",
    "amsgrad:lr=0.01,beta2=0.9,step=table",
    "lamb:lr=0.01,weight_decay=0.1",
    "lamb:lr=0.01,step=table",
    "shared_adam:lr=0.01",
    "rmsprop:lr=0.01",
    "rmsprop:lr=0.01,rho=0.9,eps=0.1,eps_at=inside,momentum=0.5",
    "rmsprop:lr=0.1,rho=0.9,eps=1,variant=v2",
    "rmsprop:lr=0.1,rho=0.9,variant=v2,eps_at=inside",
    "adadelta:lr=0.5,eps=0.001",
    "ftrl:lr=0.1",
    "ftrl:lr=0.1,l1=0.5,l2=0.1,beta=0.5,initial=0.1",
    "ftrl:lr=0.1,l1=0.5,lr_power=-0.3,initial=0.1",
    "ftrl:lr=1,l1=1,weight_decay=0.5,decay=gradient",
    "group_adagrad:lr=0.1,l2=0.5",
    "group_adagrad:lr=0.1,l2=3,beta=0,initial=0.1",
    "sum",
    "sum:lr=0.5,weight_decay=0.1",
    "summary:decay=0.9",
    "summary:lr=0.5,decay=0.99,clip=1",
)


def test_the_forms_are_of_every_rule() -> None:
    """No rule is without a form here."""
    assert {text.partition(":")[0] for text in FORMS} >= set(RULES)


class Rows:
    """A slab of rows under one rule, and the same rows in the reference's arithmetic."""

    def __init__(self, text: str, *, count: int, dim: int, seed: int = 0) -> None:
        self.rule, self.slow = make_optimizer(text, dim=dim), Rule(text.split(",schedule")[0], dim)
        self.dim, self.stride = dim, dim + self.rule.state_dim
        assert self.rule.state_dim == self.slow.state_dim
        weights = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
        self.slab = np.empty((count, self.stride), np.float32)
        self.slab[:, :dim] = weights
        self.slab[:, dim:] = self.slow.first_state
        self.expected = self.slab.astype(np.float64)
        self.version = self.slow_version = 0

    def step(self, row_ids: np.ndarray, grads: np.ndarray) -> None:
        flat = np.ascontiguousarray(grads, np.float32).reshape(-1)
        flat.flags.writeable = False
        self.rule.apply(self.slab.reshape(-1), row_ids, flat, version=self.version)
        self.version += 1

    def slow_step(self, row_ids: np.ndarray, grads: np.ndarray) -> None:
        for row_id, grad in zip(row_ids, grads, strict=True):
            self.slow.step(self.expected[row_id], grad, version=self.slow_version)
        self.slow_version += 1


def random_steps(seed: int, *, steps: int, count: int, dim: int) -> list[Step]:
    """Return pairs of distinct row ids in any order and their gradients."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, count + 1, steps)
    return [
        (rng.permutation(count)[:size], rng.normal(size=(size, dim)).astype(np.float32))
        for size in sizes
    ]


@pytest.mark.parametrize("text", FORMS)
@pytest.mark.parametrize("dim", [1, 5])
def test_weights_and_state_equal_the_reference_when_1000_steps_are_random(
    text: str, dim: int
) -> None:
    """After 1,000 random steps every float of every row is what float64 arithmetic gives."""
    rows = Rows(text, count=3, dim=dim)

    for row_ids, grads in random_steps(1, steps=1000, count=3, dim=dim):
        rows.step(row_ids, grads)
        rows.slow_step(row_ids, grads)

    np.testing.assert_allclose(rows.slab, rows.expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("text", FORMS)
def test_one_step_equals_the_reference_when_many_rows_are_wide(text: str) -> None:
    """Rows of several cache lines, more than are prefetched, move as the reference's do."""
    rows = Rows(text, count=100, dim=37)
    ((row_ids, grads),) = random_steps(2, steps=1, count=100, dim=37)

    rows.step(row_ids, grads)
    rows.slow_step(row_ids, grads)

    np.testing.assert_allclose(rows.slab, rows.expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("text", FORMS)
def test_two_runs_are_equal_to_the_bit_when_the_steps_are_the_same(text: str) -> None:
    """The same steps in the same order give the same bits."""
    first, second = Rows(text, count=8, dim=5), Rows(text, count=8, dim=5)

    for row_ids, grads in random_steps(3, steps=100, count=8, dim=5):
        first.step(row_ids, grads)
        second.step(row_ids, grads)

    assert first.slab.tobytes() == second.slab.tobytes()


@pytest.mark.parametrize("text", FORMS)
def test_the_order_of_rows_changes_nothing_when_they_are_distinct(text: str) -> None:
    """A row's new value depends on its own gradient alone."""
    first, second = Rows(text, count=8, dim=5), Rows(text, count=8, dim=5)
    row_ids = np.array([5, 0, 3, 7])
    grads = np.random.default_rng(4).normal(size=(4, 5)).astype(np.float32)
    untouched = [1, 2, 4, 6]

    first.step(row_ids, grads)
    second.step(row_ids[::-1].copy(), grads[::-1])

    assert first.slab.tobytes() == second.slab.tobytes()
    assert np.array_equal(first.slab[untouched], first.expected[untouched])
    assert np.all(first.slab[row_ids, :5] != first.expected[row_ids, :5])


QUADRATIC = {
    "sgd:lr=0.1": 200,
    "momentum:lr=0.05": 400,
    "nesterov:lr=0.05": 400,
    "adagrad:lr=0.5": 400,
    "adagrad:lr=0.5,state=row": 400,
    "adagrad:lr=0.2,accumulate=after,initial=3": 400,
    "adagrad:lr=0.2,accumulate=after,initial=3,state=row": 400,
    "adagrad_decay:lr=0.2,decay_step=50": 400,
    "adam:lr=0.05": 800,
    "adamw:lr=0.05,weight_decay=0": 800,
    "amsgrad:lr=0.05": 800,
    "lamb:lr=0.05,schedule=cosine,steps=800": 800,
    "shared_adam:lr=0.3,schedule=cosine,steps=2000": 2000,
    "rmsprop:lr=0.05,schedule=cosine,steps=800": 800,
    "rmsprop:lr=0.01,momentum=0.9,schedule=cosine,steps=800": 800,
    "adadelta:lr=1,eps=0.001": 800,
    "ftrl:lr=0.5": 400,
    "group_adagrad:lr=0.5": 400,
}
"""Rule to steps; those whose steps do not get smaller by themselves have a schedule that ends at 0."""


@pytest.mark.parametrize(("text", "steps"), QUADRATIC.items())
def test_weights_reach_the_minimum_when_the_loss_is_a_quadratic(text: str, steps: int) -> None:
    """Following the gradient of (w - target)^2 / 2 ends at the target."""
    rows = Rows(text, count=4, dim=3)
    target = np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32)

    for _ in range(steps):
        rows.step(np.arange(4), rows.slab[:, :3] - target)

    np.testing.assert_allclose(rows.slab[:, :3], target, atol=2e-3)


TORCH: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd:lr=0.1": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd:lr=0.1,weight_decay=0.1,decay=gradient": lambda p: torch.optim.SGD(
        p, lr=0.1, weight_decay=0.1
    ),
    "momentum:lr=0.1": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov:lr=0.1,momentum=0.5": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.5, nesterov=True
    ),
    "adagrad:lr=0.1": lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-8),
    "adagrad:lr=0.1,eps=0.01,initial=0.5": lambda p: torch.optim.Adagrad(
        p, lr=0.1, eps=0.01, initial_accumulator_value=0.5
    ),
    "adam:lr=0.01": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam:lr=0.01,step=table": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam:lr=0.01,beta1=0.5,beta2=0.9,eps=0.001": lambda p: torch.optim.Adam(
        p, lr=0.01, betas=(0.5, 0.9), eps=0.001
    ),
    "adam:lr=0.01,weight_decay=0.1,decay=gradient": lambda p: torch.optim.Adam(
        p, lr=0.01, weight_decay=0.1
    ),
    "adamw:lr=0.01": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw:lr=0.01,weight_decay=0.5": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.5),
    "amsgrad:lr=0.01,beta2=0.9": lambda p: torch.optim.Adam(
        p, lr=0.01, betas=(0.9, 0.9), amsgrad=True
    ),
    "rmsprop:lr=0.01": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "rmsprop:lr=0.01,rho=0.9,eps=0.001,momentum=0.5": lambda p: torch.optim.RMSprop(
        p, lr=0.01, alpha=0.9, eps=0.001, momentum=0.5
    ),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adadelta:lr=0.5,rho=0.5,eps=0.001": lambda p: torch.optim.Adadelta(
        p, lr=0.5, rho=0.5, eps=0.001
    ),
}


@pytest.mark.parametrize("text", TORCH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_weights_equal_torch_when_every_row_is_in_every_step(text: str, dtype: torch.dtype) -> None:
    """100 dense steps give what torch's optimizer of that name gives, in float32 and float64."""
    rows = Rows(text, count=6, dim=4)
    weights = torch.nn.Parameter(torch.tensor(rows.slab[:, :4]).to(dtype))
    optimizer = TORCH[text]([weights])
    rng = np.random.default_rng(6)

    for _ in range(100):
        grads = rng.normal(size=(6, 4)).astype(np.float32)
        weights.grad = torch.tensor(grads).to(dtype)
        optimizer.step()
        rows.step(np.arange(6), grads)

    # In float32, torch's AdamW multiplies by 1 - lr * decay, which loses bits that we keep.
    near = 1e-6 if dtype is torch.float64 or "adamw" not in text else 3e-6
    np.testing.assert_allclose(rows.slab[:, :4], weights.detach().numpy(), rtol=near, atol=near)


@pytest.mark.parametrize("step", ["row", "table"])
@pytest.mark.parametrize("count", [0, 17_000, 18_014, 18_015, 18_016, 10**6, 2**24])
def test_adam_is_right_when_the_step_count_is_beyond_its_table(count: int, step: str) -> None:
    """Wherever the count of the row or of the table stands, the corrections are those of the formula."""
    rows = Rows(f"adam:lr=0.1,step={step}", count=3, dim=2)
    rows.slab[:, 2:6] = np.random.default_rng(7).uniform(0.1, 1.0, (3, 4))
    if step == "row":
        rows.slab[:, 6] = count
    rows.version = rows.slow_version = count
    rows.expected = rows.slab.astype(np.float64)
    grads = np.random.default_rng(8).normal(size=(3, 2)).astype(np.float32)

    rows.step(np.arange(3), grads)
    rows.slow_step(np.arange(3), grads)

    np.testing.assert_allclose(rows.slab[:, :6], rows.expected[:, :6], rtol=1e-6, atol=1e-7)
    if step == "row":
        assert rows.slab[0, 6] == min(count + 1, 2**24)


def test_adam_counts_by_row_when_rows_come_at_different_times() -> None:
    """A row's first gradient is corrected as step 1, however many steps others have made."""
    rows = Rows("adam:lr=0.1", count=2, dim=1)
    start = rows.slab[1, 0]
    for _ in range(50):
        rows.step(np.array([0]), np.ones((1, 1)))

    rows.step(np.array([1]), np.full((1, 1), 5.0))

    assert rows.slab[:, -1].tolist() == [50, 1]
    np.testing.assert_allclose(start - rows.slab[1, 0], 0.1, rtol=1e-5)


@pytest.mark.parametrize("text", FORMS)
@given(
    grads=st.lists(st.floats(-(2.0**50), 2.0**50, width=32), min_size=3, max_size=3, unique_by=abs)
)
def test_rows_stay_finite_when_gradients_are_extreme(text: str, grads: list[float]) -> None:
    """Zero, subnormal and very large gradients leave no NaN and no infinity in a row."""
    rows = Rows(text, count=1, dim=3)

    for values in (grads, grads[::-1], [0.0, -0.0, 1e-45], grads):
        rows.step(np.array([0]), np.array([values]))

    assert np.isfinite(rows.slab).all()


def test_rows_that_were_away_decay_as_often_as_others_when_they_come_back() -> None:
    """A row touched at push 1 and 1001 has decayed 200 times, to the floor; one at 11, twice."""
    rows = Rows("adagrad_decay:lr=0.1,decay_step=5,initial=0.25", count=2, dim=1)
    for version, row_id in ((0, 0), (0, 1), (10, 1), (1000, 0)):
        rows.version = version
        rows.step(np.array([row_id]), np.ones((1, 1)))

    np.testing.assert_allclose(rows.slab[1, 1:], [2, 1.25 * 0.81 + 1], rtol=1e-6)
    np.testing.assert_allclose(rows.slab[0, 1:], [200, 0.25 + 1], rtol=1e-6)


def test_nothing_decays_when_the_count_went_back() -> None:
    """Rows that came from a table with more pushes behind it keep their accumulators."""
    rows = Rows("adagrad_decay:lr=0.1,decay_step=1,initial=0.25", count=1, dim=1)
    rows.version = 100
    rows.step(np.array([0]), np.full((1, 1), 3.0))
    rows.version = 3
    rows.step(np.array([0]), np.full((1, 1), 3.0))

    assert rows.slab[0, 1:].tolist() == [4.0, 18.25]


def test_ftrl_sets_weights_to_0_when_their_gradients_are_small() -> None:
    """Under l1 a weight is exactly 0 until its gradients add up to more."""
    rows = Rows("ftrl:lr=0.1,l1=1", count=1, dim=2)
    rows.slab[:] = 0.0

    rows.step(np.array([0]), np.array([[0.5, -2.0]]))

    assert rows.slab[0, 0] == 0.0
    assert rows.slab[0, 1] > 0.0


def test_ftrl_keeps_its_weights_when_the_rate_falls_to_0() -> None:
    """A gradient keeps the rate at which it came: no later rate moves what it did."""
    rows = Rows("ftrl:lr=0.1,schedule=polynomial,steps=5", count=1, dim=2)
    for _ in range(6):
        rows.step(np.array([0]), np.array([[0.5, -2.0]]))
    before = rows.slab[0, :2].copy()

    for _ in range(20):
        rows.step(np.array([0]), np.array([[0.5, -2.0]]))

    np.testing.assert_allclose(rows.slab[0, :2], before, rtol=1e-4)


def test_a_whole_row_is_0_when_group_lasso_is_strong() -> None:
    """group_adagrad drops rows, not single weights."""
    rows = Rows("group_adagrad:lr=0.1,l2=1000", count=1, dim=3)

    rows.step(np.array([0]), np.array([[1.0, 2.0, 3.0]]))

    assert rows.slab[0, :3].tolist() == [0, 0, 0]
