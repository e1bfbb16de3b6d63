"""What a trainer says of keys: shows and clicks from labels, for the tables that count them."""

import numpy as np
import pytest
import torch

import pserver
from trainer.config import RunSettings
from trainer.embedding import EmbeddingBag
from trainer.job.run import run
from trainer.said import BagFacts, said_of

SPEC = pserver.TableSpec(name="t", dim=2)


def test_clicks_are_the_labels_of_the_samples_that_a_key_is_in() -> None:
    """Two samples of two slots, the first clicked; key 5 is in both, twice in a bag of the second."""
    distinct = pserver.dedupe(np.array([5, 6, 5, 5, 7], np.uint64))
    facts = BagFacts.of(np.array([1, 0], np.float32), 2)

    said = said_of(distinct, np.array([1, 2, 4, 5]), facts, {"counts", "clicks", "slots"})

    assert isinstance(said, pserver.Occurrences)
    assert distinct.keys.tolist() == [5, 6, 7]
    assert said.counts.tolist() == [3, 1, 1]
    assert said.clicks.tolist() == [1, 1, 0]
    assert said.slots.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("rules", "needs"),
    [
        ({}, set()),
        ({"accessor": "ctr"}, {"counts", "clicks", "slots"}),
        ({"admission": "count:n=2"}, {"counts"}),
        ({"admission": "probability:p=0.5"}, set()),
        ({"admission": "show_click:score=1"}, {"counts", "clicks"}),
        ({"optimizer": "sgd:show_scale=on"}, {"counts"}),
    ],
)
def test_nothing_is_said_that_the_table_does_not_count(
    rules: dict[str, str], needs: set[str]
) -> None:
    """A plain table costs no byte more on the wire than its gradients."""
    spec = pserver.TableSpec(name="t", dim=2, **rules)  # type: ignore[arg-type]

    assert spec.needs == needs


def test_rows_count_what_a_batch_says_when_backward_ends() -> None:
    """Shows, clicks and slots arrive with the gradients of a bag."""
    with pserver.embedded(2) as client:
        bag = EmbeddingBag(client, "t", dim=2, accessor="ctr:embedx_threshold=1")
        keys = np.array([[1, 2], [1, 3]], np.uint64)

        out = bag(keys.reshape(-1, 1), facts=BagFacts.of(np.array([1, 0], np.float32), 2))
        out.sum().backward()
        client.flush()

        shown = client.pull_shown("t", [1, 2, 3])
        assert shown.shows.tolist() == [2, 1, 1]
        assert shown.clicks.tolist() == [1, 1, 0]
        assert client.inspect("t", 3).words["slot"] == 1
        assert isinstance(out, torch.Tensor)


@pytest.mark.parametrize(
    "rules",
    [
        {"accessor": "ctr:embedx_threshold=1.5"},
        {"accessor": "ctr:embedx_threshold=1.5", "admission": "show_click:score=0.3"},
        {"accessor": "ctr", "embedx_optimizer": "sgd:lr=0.01", "admission": "count:n=2"},
        {"admission": "count:n=3,filter=sketch,counters=1e6"},
        {"admission": "probability:p=0.5"},
    ],
)
def test_a_run_learns_with_every_accessor_and_admission(rules: dict[str, str]) -> None:
    """Fewer rows than with always, and yet better than chance."""
    settings = {
        "rows": 40_000,
        "eval_last": 10_000,
        "batch_size": 1000,
        "model": "fm",
        "scale": 0.01,
    }
    always = run(RunSettings.make({**settings, "rows": 1000, "eval_last": 10}, origins={}))

    summary = run(RunSettings.make({**settings, **rules}, origins={}))

    assert always.rows > 0
    assert summary.auc is not None
    assert summary.auc > 0.6
