"""What ``trainer.EmbeddingBag`` promises: one pull, one push, and nothing changed in evaluation."""

import numpy as np
import pytest
import torch
from structlog.testing import CapturingLogger

import pserver
from tests.unit.trainer.models import bag, counts
from trainer import embedding
from trainer.embedding import EmbeddingBag


def offsets(*begins: int) -> torch.Tensor:
    """Return where bags begin."""
    return torch.tensor(begins, dtype=torch.int64)


# --- what is pushed -----------------------------------------------------------------------------


def test_each_distinct_key_is_pushed_once_with_its_sum(client: pserver.Client) -> None:
    """Keys 7, 7, 7, 9 with gradients 1, 2, 3, 10 move by 6 and 10, and are two keys to servers."""
    module = bag(client, pooling="none")

    module(np.array([7, 7, 7, 9])).backward(torch.tensor([[1.0], [2.0], [3.0], [10.0]]))
    module.flush()

    assert client.peek("t", [7, 9]).tolist() == [[-6.0], [-10.0]]
    assert counts(client)["keys_pushed"] == 2


def test_a14_zero_gradient_is_a_push(client: pserver.Client) -> None:
    """A key whose gradient is exactly 0 is pushed: adam's moments decay and move it (A14)."""
    lr, beta1, beta2 = 0.5, 0.5, 0.75
    module = bag(client, optimizer=f"adam:lr={lr},beta1={beta1},beta2={beta2},eps=1e-12")
    keys = np.array([[5]])

    module(keys).sum().backward()
    (module(keys) * 0.0).sum().backward()
    module.flush()

    first = -lr  # m / v = 1 after one gradient of 1
    m, v = beta1 * (1 - beta1), beta2 * (1 - beta2)
    second = first - lr * (m / (1 - beta1**2)) / np.sqrt(v / (1 - beta2**2))
    assert client.peek("t", [5]).item() == pytest.approx(second, rel=1e-6)
    assert counts(client)["keys_pushed"] == 2


def test_keys_in_no_bag_are_not_touched(client: pserver.Client) -> None:
    """Bags that are empty push nothing, and keys that did not come keep their weights (A15)."""
    module = bag(client, optimizer="sgd:lr=1")
    client.assign("t", [1, 2, 3, 4], [[1.0], [2.0], [3.0], [4.0]])
    before = counts(client)

    out = module(np.array([1, 3, 3]), offsets(0, 0, 2, 2))
    out.sum().backward()
    module.flush()

    assert out.flatten().tolist() == [0.0, 4.0, 0.0, 3.0]
    assert client.peek("t", [1, 2, 3, 4]).flatten().tolist() == [0.0, 2.0, 1.0, 4.0]
    assert counts(client)["rows"] == before["rows"]
    assert counts(client)["keys_pushed"] == before["keys_pushed"] + 2


def test_mean_of_a_bag_shares_the_gradient(client: pserver.Client) -> None:
    """Each of a bag's keys gets the gradient divided by the keys of the bag."""
    module = bag(client, pooling="mean")
    client.assign("t", [1, 2], [[8.0], [4.0]])

    out = module(np.array([[1, 2], [2, 2]]))
    out.backward(torch.tensor([[2.0], [6.0]]))
    module.flush()

    assert out.flatten().tolist() == [6.0, 4.0]
    assert client.peek("t", [1, 2]).flatten().tolist() == [7.0, -3.0]


def test_two_forwards_before_one_backward_push_twice(client: pserver.Client) -> None:
    """Each forward has its own rows and its own push; both gradients arrive."""
    module = bag(client)
    before = counts(client)

    first, second = module(np.array([[1]])), module(np.array([[1]]))
    (2 * first + 3 * second).sum().backward()
    module.flush()

    assert client.peek("t", [1]).item() == -5.0
    assert counts(client)["pushes"] == before["pushes"] + 2


def test_backward_twice_pushes_each_gradient_once(client: pserver.Client) -> None:
    """With ``retain_graph`` each backward pushes its own gradient, not the sum so far."""
    module = bag(client)
    loss = module(np.array([[1]])).sum()

    loss.backward(retain_graph=True)
    loss.backward()
    module.flush()

    assert client.peek("t", [1]).item() == -2.0
    assert counts(client)["pushes"] == 2


def test_forward_without_backward_pushes_nothing(client: pserver.Client) -> None:
    """A forward in training makes rows; only a backward changes them."""
    module = bag(client)

    module(np.array([[1, 2]]))
    module.flush()

    assert counts(client)["rows"] == 2
    assert counts(client)["version"] == counts(client)["pushes"] == 0


def test_k3_a_table_without_gradients_is_warned_of(
    client: pserver.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss that does not depend on the table is told of within some steps, once; one that does is not."""
    log = CapturingLogger()
    monkeypatch.setattr(embedding, "log", log)
    module = bag(client, pooling="none")
    for _ in range(20):
        module(np.array([7])).sum().backward()
    module.eval()
    for _ in range(20):
        module(np.array([7]))
    assert not log.calls

    module.train()
    for _ in range(20):
        module(np.array([7])).detach()

    (call,) = log.calls
    assert "a table gets no gradient" in call.args[0]
    assert call.kwargs["table"] == "t"


def test_two_modules_share_one_table(client: pserver.Client) -> None:
    """What one module pushes, the other one of the same table reads."""
    one, two = bag(client), bag(client, pooling="mean")

    (one(np.array([[1]])) + two(np.array([[1]]))).sum().backward()
    one.flush()

    assert one(np.array([[1]])).item() == two(np.array([[1, 1]])).item() == -2.0


def test_another_spec_of_the_same_table_is_refused(client: pserver.Client) -> None:
    """A second module with another dim is refused with both values; the table stays."""
    bag(client, dim=2)

    with pytest.raises(pserver.SpecMismatchError, match=r"dim"):
        bag(client, dim=4)
    assert bag(client, dim=2)(np.array([[1]])).shape == (1, 2)


def test_failed_push_is_raised_by_flush(client: pserver.Client) -> None:
    """A gradient that is not finite is refused by the servers; ``flush`` says so."""
    module = bag(client)

    (module(np.array([[1]])) * float("inf")).sum().backward()

    with pytest.raises(pserver.NotFiniteError, match="'t'"):
        module.flush()
    assert client.peek("t", [1]).item() == 0.0


def test_failed_push_is_raised_by_a_later_backward(client: pserver.Client) -> None:
    """A failure nobody waited for comes out of the next backward as it is."""
    module = bag(client)
    (module(np.array([[1]])) * float("nan")).sum().backward()
    client.peek("t", np.arange(9))  # both shards have answered what came before

    with pytest.raises(pserver.NotFiniteError):
        module(np.array([[1]])).sum().backward()


# --- evaluation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["eval", "no_grad", "inference_mode"])
def test_a7_evaluation_changes_nothing(client: pserver.Client, way: str) -> None:
    """Rows, bytes and version stay when half of 20,000 keys were never seen (C2, A7)."""
    module = bag(client, dim=4, initializer="uniform:low=-1,high=1", optimizer="adagrad")
    seen, unseen = np.arange(10_000), np.arange(10_000, 20_000)
    module(seen[:, None]).square().sum().backward()
    module.flush()
    before, trained = counts(client), client.peek("t", seen)

    module.train(way != "eval")
    contexts = {
        "eval": torch.enable_grad,
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
    }
    with contexts[way]():
        out = module(np.concatenate([seen, unseen])[:, None])
    client.flush()

    assert counts(client) == before
    assert not out.requires_grad
    assert torch.isfinite(out).all()
    assert np.array_equal(out[:10_000].numpy(), trained)
    assert np.array_equal(out[10_000:].numpy(), client.pull("t", unseen))  # its first weights


def test_training_goes_on_after_evaluation(client: pserver.Client) -> None:
    """``train()`` after ``eval()`` pulls and pushes again."""
    module = bag(client)
    module.eval()
    module(np.array([[1]]))
    module.train()

    module(np.array([[1]])).sum().backward()
    module.flush()

    assert client.peek("t", [1]).item() == -1.0


# --- fetching ahead -----------------------------------------------------------------------------


@pytest.mark.parametrize("has_distinct", [False, True])
def test_fetch_and_forward_equal_forward(client: pserver.Client, has_distinct: bool) -> None:
    """Rows asked for ahead of time give the same output and the same push."""
    module = bag(client, dim=2)
    client.assign("t", [4, 5, 6], [[1.0, 2.0], [4.0, 8.0], [16.0, 32.0]])
    keys, begins = np.array([4, 4, 5, 6, 4]), offsets(0, 2, 2, 4)
    expected = module(keys, begins)

    fetch = module.fetch(keys, distinct=module.distinct(keys) if has_distinct else None)
    out = module(fetch, begins)
    out.sum().backward()
    module.flush()

    assert fetch.shape == (5,)
    assert torch.equal(out, expected)
    assert out.tolist() == [[2.0, 4.0], [0.0, 0.0], [20.0, 40.0], [1.0, 2.0]]
    assert client.peek("t", [4, 5, 6]).tolist() == [[-2.0, -1.0], [3.0, 7.0], [15.0, 31.0]]


def test_rows_fetched_ahead_are_of_that_moment(client: pserver.Client) -> None:
    """A fetch sees the pushes before it and none after it."""
    module = bag(client)
    fetch = module.fetch(np.array([[1]]))
    module(np.array([[1]])).sum().backward()
    module.flush()

    assert module(fetch).item() == 0.0
    assert module(np.array([[1]])).item() == -1.0


# --- shapes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4), (0,), (0, 3), (3, 0)])
def test_without_pooling_keys_keep_their_shape(
    client: pserver.Client, shape: tuple[int, ...]
) -> None:
    """Pooling "none" gives the shape of the keys and dim, each key its own row."""
    module = bag(client, dim=2, pooling="none")
    keys = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    weights = np.arange(2.0 * keys.size).reshape(*shape, 2)
    client.assign("t", keys.reshape(-1), weights.reshape(-1, 2))

    out = module(keys)
    out.sum().backward()
    module.flush()

    assert out.shape == (*shape, 2)
    assert np.array_equal(out.detach().numpy(), weights)
    assert np.array_equal(client.peek("t", keys.reshape(-1)), weights.reshape(-1, 2) - 1.0)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize(
    ("shape", "begins", "bags"),
    [
        ((0,), (), 0),
        ((0,), (0, 0, 0), 3),
        ((0, 4), None, 0),
        ((4, 0), None, 4),
    ],
)
def test_empty_batches_are_fine(
    client: pserver.Client,
    shape: tuple[int, ...],
    begins: tuple[int, ...] | None,
    bags: int,
    pooling: str,
) -> None:
    """No keys, with or without bags, give zeros of the right shape, and backward pushes no key."""
    module = bag(client, dim=2, pooling=pooling)
    keys = np.empty(shape, np.int64)

    out = module(keys) if begins is None else module(keys, offsets(*begins))
    out.sum().backward()
    module.flush()

    assert torch.equal(out, torch.zeros(bags, 2))
    assert counts(client)["keys_pushed"] == counts(client)["rows"] == 0


# --- as a torch module --------------------------------------------------------------------------


def test_module_has_no_parameters(client: pserver.Client) -> None:
    """The weights are the servers': a torch optimizer sees none, a state dict holds none."""
    module = bag(client)

    assert list(module.parameters()) == []
    assert module.state_dict() == {}


def test_module_tells_what_it_is(client: pserver.Client) -> None:
    """A printed model names table, dim and pooling; the spec has every option spelled out."""
    module = bag(client, "ads", dim=8, pooling="mean", optimizer="adam")

    assert repr(module) == "EmbeddingBag('ads', dim=8, pooling=mean)"
    assert module.spec.optimizer.startswith("adam:lr=0.001,")


def test_communication_time_grows(client: pserver.Client) -> None:
    """Pulls, pushes and flushes are timed, each on its own account."""
    module = bag(client)
    assert module.comm.total_s == 0.0

    out = module(np.array([[1]]))
    pulled_s = module.comm.pull_s
    out.sum().backward()
    pushed_s = module.comm.push_s
    module.flush()

    assert pulled_s > 0.0
    assert 0.0 < pushed_s < module.comm.push_s
    assert module.comm.pull_s == pulled_s
    assert module.comm.total_s == module.comm.pull_s + module.comm.push_s


def test_seed_and_name_decide_first_weights(client: pserver.Client) -> None:
    """Modules of one seed and name start alike on any number of shards; another seed does not."""

    def first(shards: int, seed: int) -> torch.Tensor:
        with pserver.embedded(shards) as other:
            module = EmbeddingBag(other, "t", dim=4, pooling="none", seed=seed)
            out: torch.Tensor = module(np.arange(50))
            return out

    assert torch.equal(first(1, 3), first(2, 3))
    assert not torch.equal(first(1, 3), first(1, 4))
