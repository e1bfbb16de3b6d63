"""What ``trainer.loop.score`` promises: numbers over all rows, and nothing changed by taking them."""

import math

import numpy as np
import pytest
import torch

import pserver
from tests.unit.trainer.models import Sum, batch, broken, counts, ctr_model, frozen, numbered
from trainer.dataset import Generator
from trainer.errors import DataError
from trainer.evaluate import auc
from trainer.loop import score, train


@pytest.mark.parametrize("is_training", [True, False])
def test_c2_scoring_changes_nothing(client: pserver.Client, is_training: bool) -> None:
    """Unseen keys get no row, nothing is pushed, and the model's mode is what it was (C2)."""
    model = ctr_model(client)
    train(model, numbered(5), optimizer=frozen(model))
    model.train(is_training)
    before, weights = counts(client), client.peek("t", np.arange(9))

    got = score(model, [batch([1, 2, 3], [0.0, 1.0, 0.0]), batch([100, 101], [1.0, 0.0])])

    assert got.samples == 5
    assert 0.0 <= got.auc <= 1.0
    assert math.isfinite(got.log_loss)
    assert counts(client) == before
    assert np.array_equal(client.peek("t", np.arange(9)), weights)
    assert (model.training, model.bag.training) == (is_training, is_training)


def test_dense_part_scores_as_in_serving(client: pserver.Client) -> None:
    """While rows are scored the model is in evaluation mode, so that dropout drops nothing."""
    dense = Sum()
    modes: list[bool] = []
    dense.register_forward_pre_hook(lambda module, _: modes.append(module.training))

    score(ctr_model(client, dense), numbered(2))

    assert modes == [False, False]
    assert dense.training


def test_mode_is_restored_when_scoring_fails(client: pserver.Client) -> None:
    """An error in the data leaves the model in training mode."""
    model = ctr_model(client)

    with pytest.raises(DataError):
        score(model, broken(2, DataError("bad")))

    assert model.training
    assert torch.is_grad_enabled()


def test_score_is_of_all_samples(client: pserver.Client) -> None:
    """AUC and log loss are over all batches at once, not a mean of batches'."""
    model = ctr_model(client)
    client.assign("t", [1, 2, 3, 4], [[-2.0], [-1.0], [1.0], [2.0]])

    got = score(model, [batch([1, 3], [0.0, 1.0]), batch([2, 4], [1.0, 0.0])])

    sigmoid = [1 / (1 + math.exp(-logit)) for logit in (-2, -1, 1, 2)]
    expected = -np.mean(np.log([1 - sigmoid[0], sigmoid[1], sigmoid[2], 1 - sigmoid[3]]))
    assert got.auc == 0.5
    assert got.log_loss == pytest.approx(expected, rel=1e-5)
    assert got.auc_ceiling is None
    assert got.seconds > 0.0


def test_generated_rows_have_a_ceiling(client: pserver.Client) -> None:
    """Where the true probabilities are known the best possible AUC is told, and it is better."""
    data = list(Generator(3, batch_size=500, rows=2000, scale=0.01))

    got = score(ctr_model(client), data)

    assert got.auc_ceiling == pytest.approx(
        auc(
            np.concatenate([b.teacher for b in data if b.teacher is not None]),
            np.concatenate([b.labels for b in data]),
        )
    )
    assert got.auc_ceiling is not None
    assert got.auc_ceiling > 0.7 > got.auc


def test_scoring_no_rows_gives_no_numbers(client: pserver.Client) -> None:
    """Held-out data without rows gives NaN, not a made-up number."""
    got = score(ctr_model(client), [])

    assert got.samples == 0
    assert math.isnan(got.auc)
    assert math.isnan(got.log_loss)
