"""What ``trainer.EmbeddingBag`` takes: keys of any integer kind, offsets that fit; the rest named."""

import re

import numpy as np
import pytest
import torch

import pserver
from tests.unit.trainer.models import bag, counts
from trainer.embedding import EmbeddingBag, KeysLike

WEIGHTS = {1: 1.0, 2: 2.0, 3: 4.0, 2**64 - 1: 8.0, 2**63: 16.0}


@pytest.fixture
def module(client: pserver.Client) -> EmbeddingBag:
    """Return a module of five keys with weights that tell them apart."""
    module = bag(client, "ads", pooling="none")
    client.assign("ads", np.array(list(WEIGHTS), np.uint64), np.array([*WEIGHTS.values()])[:, None])
    return module


@pytest.mark.parametrize(
    "keys",
    [
        torch.tensor([3, 1, 2], dtype=torch.int64),
        torch.tensor([3, 1, 2], dtype=torch.int32),
        torch.tensor([3, 1, 2], dtype=torch.int16),
        torch.tensor([3, 1, 2], dtype=torch.uint8),
        torch.tensor([3, 1, 2], dtype=torch.uint64),
        torch.tensor([3.0, 1.0, 2.0]),
        torch.tensor([3.0, 1.0, 2.0], requires_grad=True),
        torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64),
        torch.tensor([[3, 0], [1, 0], [2, 0]])[:, 0],
        torch.tensor([2, 1, 3]).flip(0),
        torch.tensor([[3, 1, 2]]).T[:, 0],
        np.array([3, 1, 2], np.int8),
        np.array([3, 1, 2], np.uint64),
        np.array([3, 1, 2], ">i4"),
        np.array([3, 1, 2], np.float16),
        np.array([2, 1, 3])[::-1],
        np.array([[3, 1, 2]], order="F")[0],
    ],
)
def test_g1_keys_of_any_kind_are_taken_by_value(module: EmbeddingBag, keys: KeysLike) -> None:
    """Integers of each width, whole floats, strided and reversed memory mean the same keys (G1)."""
    assert module(keys).flatten().tolist() == [4.0, 1.0, 2.0]


@pytest.mark.parametrize(
    "keys",
    [
        torch.tensor([-1, -(2**63)]),
        torch.tensor([2**64 - 1, 2**63], dtype=torch.uint64),
        np.array([-1, -(2**63)]),
        np.array([2**64 - 1, 2**63], np.uint64),
    ],
)
def test_signed_and_unsigned_keys_are_one_space(module: EmbeddingBag, keys: KeysLike) -> None:
    """-1 is 2^64 - 1 and -2^63 is 2^63, as tensor and as array."""
    assert module(keys).flatten().tolist() == [8.0, 16.0]


@pytest.mark.parametrize(
    ("keys", "fact"),
    [
        (torch.tensor([1.0, 2.5]), "keys came as float32, .* value 1 is 2.5"),
        (torch.tensor([float("nan")]), "keys came as float32, .* value 0 is nan"),
        (np.array([1.0, 2.0**53]), "keys came as float64, .* value 1 is 9007199254740992.0"),
        (torch.tensor([True, False]), "keys must be integers, got bool .*True"),
        (np.array([False]), "keys must be integers, got bool .*False"),
        (torch.tensor([1.0], dtype=torch.bfloat16), "keys must be integers, got torch.bfloat16"),
        (torch.tensor([1 + 0j]), "keys must be integers, got complex64"),
        (np.array(["a"]), "keys must be integers, got <U1 .*'a'"),
    ],
)
def test_g1_keys_that_are_no_integers_are_refused(
    client: pserver.Client, module: EmbeddingBag, keys: KeysLike, fact: str
) -> None:
    """Fractions, NaN, floats too large to be exact, bool and text are named, with the table (G1)."""
    before = counts(client, "ads")

    with pytest.raises(pserver.ShapeError, match=f"embedding 'ads': {fact}"):
        module(keys)
    assert counts(client, "ads") == before


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8, torch.uint64])
def test_offsets_of_any_integer_kind_are_taken(client: pserver.Client, kind: torch.dtype) -> None:
    """Offsets may be of each integer width, as tensor, as array, and strided."""
    module = bag(client)
    client.assign("t", [1, 2, 3], [[1.0], [2.0], [4.0]])
    begins = torch.tensor([0, 2, 2]).to(kind)

    for given in (begins, begins.numpy(), torch.stack([begins, begins], 1)[:, 0]):
        assert module(np.array([1, 2, 3]), given).flatten().tolist() == [3.0, 0.0, 4.0]


@pytest.mark.parametrize(
    ("begins", "fact"),
    [
        ([1, 2], "must begin with 0, not fall, and not pass the 4 keys; bag 0 is from 1 to 2"),
        ([0, 3, 2], "bag 1 is from 3 to 2"),
        ([0, 2, -1], "bag 1 is from 2 to -1"),
        ([0, 2, 5], "not pass the 4 keys; bag 2 is from 5 to 4"),
        ([0, 5, 4], "bag 1 is from 5 to 4"),
        ([], "4 keys came with no bag to hold them"),
        ([[0, 2]], "offsets must be (bags,) integers, got (1, 2) int64"),
        ([0.0, 2.0], "offsets must be (bags,) integers, got (2,) float32"),
        ([False, True], "offsets must be (bags,) integers, got (2,) bool"),
    ],
)
def test_a17_offsets_that_do_not_fit_are_named(
    client: pserver.Client, begins: list[float], fact: str
) -> None:
    """Offsets that begin late, fall, go beyond the keys or are no integers name the bag (A17)."""
    module = bag(client, "ads")
    tensor = torch.tensor(begins) if begins else torch.empty(0, dtype=torch.int64)

    with pytest.raises(pserver.ShapeError) as caught:
        module(torch.tensor([1, 2, 3, 4]), tensor)

    assert str(caught.value).startswith("embedding 'ads': ")
    assert fact in str(caught.value)
    assert counts(client, "ads")["rows"] == 0


def test_offset_beyond_int64_is_refused(client: pserver.Client) -> None:
    """An unsigned offset of 2^64 - 1 is refused like any other that is too large."""
    module = bag(client)

    with pytest.raises(pserver.ShapeError, match="bag 0 is from 0 to"):
        module(np.array([1, 2]), np.array([0, 2**64 - 1], np.uint64))


@pytest.mark.parametrize(
    ("shape", "has_offsets", "fact"),
    [
        ((4,), False, "got (4,) without offsets"),
        ((2, 2), True, "got (2, 2) with offsets"),
        ((2, 2, 1), False, "got (2, 2, 1) without offsets"),
        ((), False, "got () without offsets"),
    ],
)
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_keys_whose_bags_are_unknown_are_refused(
    client: pserver.Client, shape: tuple[int, ...], has_offsets: bool, fact: str, pooling: str
) -> None:
    """Flat keys need offsets, rows of keys take none, and what came is told (A17)."""
    module = bag(client, "ads", pooling=pooling)

    with pytest.raises(pserver.ShapeError) as caught:
        module(torch.ones(shape, dtype=torch.int64), torch.tensor([0]) if has_offsets else None)

    assert str(caught.value) == (
        "embedding 'ads': keys must be (N,) with offsets (bags,), or (B, F) without, " + fact
    )
    assert counts(client, "ads")["rows"] == 0


def test_offsets_without_pooling_are_refused(module: EmbeddingBag) -> None:
    """Pooling "none" has no bags, so offsets are a mistake."""
    with pytest.raises(pserver.ShapeError, match="embedding 'ads': pooling none takes no offsets"):
        module(torch.tensor([1]), torch.tensor([0]))


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"pooling": "max"}, "pooling must be sum, mean or none, got 'max'"),
        ({"optimizer": "adagard"}, "unknown rule 'adagard'; did you mean 'adagrad'?"),
        ({"optimizer": "sgd:rl=1"}, "did you mean 'lr'?"),
        ({"initializer": "unifrom"}, "did you mean 'uniform'?"),
        ({"name": "a b"}, "table name must be"),
        ({"dim": 0}, "dim must be an integer in [1, 4096], got 0"),
    ],
)
def test_bad_settings_are_refused(
    client: pserver.Client, options: dict[str, str], fact: str
) -> None:
    """An unknown pooling, rule or option is refused with the nearest; no table is made."""
    with pytest.raises(pserver.ConfigError, match=re.escape(fact)):
        bag(client, **options)  # type: ignore[arg-type] # that is the point
    with pytest.raises(pserver.UnknownTableError, match="the servers have no tables"):
        client.spec("t")


def test_distinct_of_another_batch_is_refused() -> None:
    """Rows are not fetched for a batch with the distinct keys of another one."""
    with pserver.embedded(1) as client:
        bag = EmbeddingBag(client, "t", dim=2)
        other = bag.distinct(np.arange(3))

        with pytest.raises(pserver.ShapeError, match="distinct is of 3 keys, and 5 are fetched"):
            bag.fetch(np.arange(5), distinct=other)


@pytest.mark.parametrize(
    ("weights", "pooling", "fact"),
    [
        (np.ones(2, np.float32), "sum", r"weights must be \(3,\) float32, got \(2,\) float32"),
        (np.ones(3), "sum", r"weights must be \(3,\) float32, got \(3,\) float64"),
        (np.ones(3, np.float32), "mean", "pooling mean takes no weights, sum does"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    client: pserver.Client, weights: np.ndarray, pooling: str, fact: str
) -> None:
    """One float32 an occurrence, and sums only; nothing is pulled otherwise."""
    module = bag(client, pooling=pooling)

    with pytest.raises(pserver.ShapeError, match=fact):
        module(np.arange(3), np.array([0, 1]), weights)

    assert counts(client)["rows"] == 0
