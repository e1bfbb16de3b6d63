"""What ``trainer.evaluate`` promises: exact metrics, close streaming ones, no silent NaN."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.errors import TrainerError
from trainer.evaluate import AUC_BUCKETS, StreamingAuc, StreamingMean, auc, copc, log_loss

SAMPLES = st.lists(
    st.tuples(st.sampled_from([-1e30, -1.0, 0.0, 0.25, 0.3, 1.0, math.inf]), st.booleans()),
    max_size=40,
)


def slow_auc(scores: list[float], labels: list[bool]) -> float:
    """The definition: the share of (positive, negative) pairs in order, ties one half."""
    pairs = [
        (p > n) + 0.5 * (p == n)
        for p, positive in zip(scores, labels, strict=True)
        if positive
        for n, other in zip(scores, labels, strict=True)
        if not other
    ]
    return sum(pairs) / len(pairs) if pairs else math.nan


def clicks(rows: int, *, seed: int, low: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities in [low, 1) and labels drawn from them."""
    rng = np.random.default_rng(seed)
    probabilities = low + (1 - low) * rng.random(rows) ** 3
    return probabilities.astype(np.float32), (rng.random(rows) < probabilities).astype(np.float32)


@given(SAMPLES)
def test_auc_is_the_share_of_ordered_pairs(samples: list[tuple[float, bool]]) -> None:
    """With any ties and infinities, the AUC equals the count over all pairs."""
    scores = [score for score, _ in samples]
    labels = [label for _, label in samples]

    value = auc(np.array(scores), np.array(labels, np.float32))

    assert value == pytest.approx(slow_auc(scores, labels), abs=1e-12, nan_ok=True)


def test_auc_does_not_see_the_scale_of_scores() -> None:
    """Logits, probabilities and float32 give one AUC; turning the scores around gives 1 minus."""
    probabilities, labels = clicks(5000, seed=0)
    logits = np.log(probabilities.astype(np.float64) / (1 - probabilities.astype(np.float64)))
    value = auc(probabilities, labels)

    assert auc(logits, labels) == pytest.approx(value, abs=1e-12)
    assert auc(-logits, labels) == pytest.approx(1 - value, abs=1e-12)
    assert auc(labels, labels) == 1.0
    assert auc(np.full(5000, 0.3), labels) == 0.5


@pytest.mark.parametrize("labels", [[], [0.0, 0.0], [1.0, 1.0]])
def test_an_auc_of_one_class_is_nan(labels: list[float]) -> None:
    """Without both a positive and a negative there is no AUC, exact or streaming."""
    given_labels = np.array(labels)
    scores = np.full(len(labels), 0.5)
    streaming = StreamingAuc()

    streaming.update(scores, given_labels)

    assert math.isnan(auc(scores, given_labels))
    assert math.isnan(streaming.value)


def test_copc_is_clicks_over_predicted_clicks() -> None:
    """1 where the sums agree, whatever single rows are; NaN where nothing is predicted."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, 1000).astype(np.float32)
    probabilities = rng.random(1000).astype(np.float32)

    assert copc(probabilities, labels) == pytest.approx(sum(labels) / sum(probabilities), rel=1e-5)
    assert copc(labels[::-1].copy(), labels) == 1.0
    assert math.isnan(copc(np.zeros(2), np.ones(2)))
    assert math.isnan(copc(np.empty(0), np.empty(0)))


def test_log_loss_is_the_mean_of_the_formula() -> None:
    """The log loss equals a plain loop, and a sure mistake costs what the clip says."""
    probabilities, labels = clicks(1000, seed=1)
    loop = [
        -math.log(float(p)) if y else -math.log1p(-float(p))
        for p, y in zip(probabilities, labels, strict=True)
    ]

    assert log_loss(probabilities, labels) == pytest.approx(sum(loop) / 1000, rel=1e-6)
    assert log_loss(np.array([0.0]), np.array([1.0])) == pytest.approx(-math.log(1e-7))
    assert log_loss(np.array([1.0], np.float32), np.array([0.0])) == pytest.approx(-math.log(1e-7))
    assert math.isnan(log_loss(np.empty(0), np.empty(0)))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000), st.lists(st.integers(0, 3000), max_size=4))
def test_streaming_auc_is_close_and_does_not_see_batches(seed: int, cuts: list[int]) -> None:
    """However the samples are cut into batches, the value is one, within 1e-4 of the exact."""
    probabilities, labels = clicks(3000, seed=seed)
    once, parts = StreamingAuc(), StreamingAuc()
    once.update(probabilities, labels)

    for chunk in zip(
        np.split(probabilities, sorted(cuts)), np.split(labels, sorted(cuts)), strict=True
    ):
        parts.update(*chunk)

    assert parts.value == once.value == pytest.approx(auc(probabilities, labels), abs=1e-4)
    assert parts.num_samples == 3000


def test_streaming_auc_is_close_for_rare_clicks() -> None:
    """With click rates around one per cent the value is within 1e-4 of the exact AUC."""
    rng = np.random.default_rng(2)
    probabilities = 1 / (1 + np.exp(-rng.normal(-5.0, 1.0, 500_000)))
    labels = (rng.random(500_000) < probabilities).astype(np.float32)
    streaming = StreamingAuc()

    streaming.update(probabilities, labels)

    assert streaming.value == pytest.approx(auc(probabilities, labels), abs=1e-4)


def test_streaming_auc_takes_the_ends_of_the_range() -> None:
    """Probabilities of exactly 0 and 1 fall in the first and last bucket."""
    streaming = StreamingAuc()

    streaming.update(np.array([0.0, 1.0], np.float32), np.array([0.0, 1.0]))

    assert streaming.value == 1.0
    assert (streaming.counts[0, 0], streaming.counts[1, AUC_BUCKETS - 1]) == (1, 1)


def test_merging_equals_one_stream() -> None:
    """Two trainers' halves, merged, give the value of all samples."""
    probabilities, labels = clicks(2000, seed=3)
    left, right, whole = StreamingAuc(), StreamingAuc(), StreamingAuc()
    left.update(probabilities[:700], labels[:700])
    right.update(probabilities[700:], labels[700:])
    whole.update(probabilities, labels)

    left.merge(right)

    assert left.value == whole.value
    assert left.num_samples == 2000


def test_streaming_mean_is_the_mean_of_all_values() -> None:
    """Values of any shape and batch count once each, summed in float64; none give NaN."""
    values = np.full(3_000_000, 0.1, np.float32)
    mean = StreamingMean()
    assert math.isnan(mean.value)

    for part in np.split(values, 3):
        mean.update(part.reshape(1000, 1000))
    mean.update(values[:1])

    assert mean.num_values == 3_000_001
    assert mean.value == pytest.approx(float(np.float32(0.1)), rel=1e-9)


@pytest.mark.parametrize("metric", [auc, log_loss, copc, StreamingAuc().update])
@pytest.mark.parametrize(
    ("predictions", "labels", "message"),
    [
        ([0.5, math.nan], [0.0, 1.0], "no value may be NaN, got 1 of 2, the first at 1"),
        ([0.5, 0.5], [0.0], r"must both be \(B,\), got \(2,\) and \(1,\)"),
        ([[0.5]], [[0.0]], r"must both be \(B,\), got \(1, 1\)"),
        ([0.5, 0.5], [0.0, 2.0], "labels must be 0 or 1, got 2.0 for sample 1"),
        ([0.5, 0.5], [math.nan, 1.0], "labels must be 0 or 1, got nan for sample 0"),
    ],
)
def test_what_is_no_prediction_is_refused(metric, predictions, labels, message: str) -> None:
    """NaN, shapes that differ and labels that are neither 0 nor 1 raise, in every metric."""
    with pytest.raises(TrainerError, match=message):
        metric(np.array(predictions), np.array(labels))


@pytest.mark.parametrize("metric", [log_loss, copc, StreamingAuc().update])
@pytest.mark.parametrize("value", [-0.1, 1.1, math.inf])
def test_what_is_no_probability_is_refused(metric, value: float) -> None:
    """A logit where a probability must stand raises, and the error says what to do."""
    with pytest.raises(
        TrainerError, match=r"must be in \[0, 1\], got .* for sample 1; pass logits"
    ):
        metric(np.array([0.5, value]), np.array([0.0, 1.0]))


def test_nan_leaves_streams_as_they_were() -> None:
    """After a refused update the value is what it was."""
    mean, streaming = StreamingMean(), StreamingAuc()
    mean.update(np.array([1.0, 2.0]))
    streaming.update(np.array([0.2, 0.7]), np.array([0.0, 1.0]))

    with pytest.raises(TrainerError, match="got 1 of 2"):
        mean.update(np.array([5.0, math.nan]))
    with pytest.raises(TrainerError, match="got 1 of 2"):
        streaming.update(np.array([0.5, math.nan]), np.array([0.0, 1.0]))

    assert (mean.value, mean.num_values) == (1.5, 2)
    assert (streaming.value, streaming.num_samples) == (1.0, 2)
