"""What ``kernel.initializer`` promises; rules as text are tested in ``table``."""

import numpy as np
import pytest

from pserver.kernel import initializer as kernel
from pserver.table.initializer import make_initializer
from tests.reference import EDGE_KEYS, first_weights

TEXTS = (
    "zeros",
    "constant:value=-0.25",
    "uniform:low=-2,high=3",
    "normal:mean=1,std=2",
    "truncated_normal:mean=1,std=2",
)


def draw(
    text: str,
    keys: np.ndarray,
    *,
    dim: int,
    table: str = "ads",
    seed: int = 7,
    where: np.ndarray | None = None,
) -> np.ndarray:
    """Return (V, dim) first weights of ``keys[where]``."""
    rule = make_initializer(text, table=table, seed=seed)
    where = np.arange(keys.size) if where is None else where
    out = np.empty(where.size * dim, np.float32)
    state = np.zeros(1)
    kernel.first_weights(
        rule.seed,
        rule.kind,
        rule.options,
        keys,
        where,
        np.arange(where.size),
        dim,
        0,
        dim,
        dim,
        0,
        state,
        out,
    )
    return out.reshape(-1, dim)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dim", [1, 5])
def test_weights_equal_the_reference_when_drawn_for_edge_keys(text: str, dim: int) -> None:
    """Each weight is what Python's own integers and math give for (seed, table, key)."""
    keys = np.array(EDGE_KEYS, np.uint64)

    weights = draw(text, keys, dim=dim)

    expected = [first_weights(text, name="ads", seed=7, key=key, dim=dim) for key in EDGE_KEYS]
    np.testing.assert_allclose(weights, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("text", TEXTS)
def test_weights_are_the_same_when_keys_come_in_another_order_or_batch(text: str) -> None:
    """Order, batches and company change no bit of a key's first weights."""
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**64, 300, np.uint64)
    order = rng.permutation(300)
    whole = draw(text, keys, dim=8)

    singly = np.concatenate([draw(text, keys[i : i + 1], dim=8) for i in range(300)])

    assert np.array_equal(draw(text, keys[order], dim=8), whole[order])
    assert np.array_equal(draw(text, keys, dim=8, where=order[:50]), whole[order[:50]])
    assert np.array_equal(singly, whole)


@pytest.mark.parametrize("text", TEXTS[2:])
def test_weights_differ_when_seed_table_key_or_position_differs(text: str) -> None:
    """Another seed, another table, another key and another position give other weights."""
    keys = np.arange(100, dtype=np.uint64)

    drawn = [
        draw(text, keys, dim=4),
        draw(text, keys, dim=4, seed=8),
        draw(text, keys, dim=4, table="ad"),
    ]

    assert np.unique(np.concatenate(drawn)).size == 3 * 100 * 4


@pytest.mark.parametrize("text", TEXTS[2:])
def test_no_two_rows_are_equal_when_10000_keys_are_new(text: str) -> None:
    """Neighbouring keys begin with different rows, all of them."""
    weights = draw(text, np.arange(10_000, dtype=np.uint64), dim=8)

    assert np.unique(weights, axis=0).shape == (10_000, 8)


SHAPES = {  # mean, standard deviation, least and greatest
    "uniform:low=-2,high=3": (0.5, 5 / 12**0.5, -2.0, 3.0),
    "normal:mean=1,std=2": (1.0, 2.0, -np.inf, np.inf),
    "truncated_normal:mean=1,std=2": (1.0, 2 * 0.8796256610342398, -3.0, 5.0),
}


@pytest.mark.parametrize("text", SHAPES)
def test_the_distribution_is_as_stated_when_many_are_drawn(text: str) -> None:
    """Mean, standard deviation and range of 200,000 weights are those of the rule."""
    mean, deviation, least, greatest = SHAPES[text]

    weights = draw(text, np.arange(50_000, dtype=np.uint64), dim=4).astype(np.float64)

    assert abs(weights.mean() - mean) < 5 * deviation / 200_000**0.5
    assert abs(weights.std() / deviation - 1) < 0.01
    assert least <= weights.min() < weights.max() <= greatest
    assert np.abs(weights.mean(axis=0) - mean).max() < 5 * deviation / 50_000**0.5
    assert np.abs(np.corrcoef(weights.T) - np.eye(4)).max() < 0.02


def test_a_normal_has_its_tails_when_many_are_drawn() -> None:
    """The share beyond one, two and three deviations is the normal distribution's."""
    drawn = np.abs(draw("normal:mean=0,std=1", np.arange(50_000, dtype=np.uint64), dim=4))

    shares = [(drawn > bound).mean() for bound in (1, 2, 3)]

    np.testing.assert_allclose(shares, [0.3173, 0.0455, 0.0027], rtol=0.1)


def test_state_stands_behind_the_weights_when_rows_have_some() -> None:
    """A row is written at its own place: weights, then the first state, nothing outside."""
    rule = make_initializer("constant:value=2", table="t", seed=0)
    out = np.full(4 * 5, -1, np.float32)
    keys, where = np.array([10, 11, 12], np.uint64), np.array([0, 2])

    kernel.first_weights(
        rule.seed,
        rule.kind,
        rule.options,
        keys,
        where,
        np.array([3, 1]),
        5,
        0,
        2,
        2,
        3,
        np.array([0.5]),
        out,
    )

    row = [2, 2, 0.5, 0.5, 0.5]
    assert out.reshape(4, 5).tolist() == [[-1] * 5, row, [-1] * 5, row]
