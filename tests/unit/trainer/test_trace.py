"""What a run's trace has: each batch from its reading to the last reply, in every mode."""

import json
from pathlib import Path

import pytest

from pserver.errors import ConfigError
from tests.traced import check_batches, kernels_of
from trainer.config import RunSettings
from trainer.job.run import run

STEPS = 6


def traced_run(path: Path, **settings: object) -> None:
    """Run a few steps in this process, with a trace."""
    small = {
        "rows": 64 * STEPS,
        "eval_last": 64,
        "batch_size": 64,
        "scale": 0.001,
        "model": "fm",
        "device": "cpu",
    }
    run(RunSettings.make({**small, "trace": str(path), **settings}, origins={}))


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "sync"},
        {"mode": "async", "dense": "pserver", "prefetch": 2},
        {"mode": "sync", "dense": "pserver", "prefetch": 0},
    ],
    ids=["sync", "async", "alone"],
)
def test_every_batch_is_traced_from_its_reading_to_its_last_reply(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    """One id goes through reading, dedupe, queue, the shard's turn and kernel and back, for pulls and pushes."""
    path = tmp_path / "out.json"

    traced_run(path, **settings)

    batches = check_batches(path, over_wire=False)
    assert [batch.number for batch in batches] == list(range(1, STEPS + 1))
    assert kernels_of(batches)["Pull"] == 2 * STEPS
    for batch in batches:
        assert batch.step is not None
        assert batch.step.facts == {"step": batch.number}


def test_only_every_nth_batch_is_traced(tmp_path: Path) -> None:
    """With ``trace_every`` 3 batches 3 and 6 are there, and nothing of the others."""
    path = tmp_path / "out.json"

    traced_run(path, trace_every=3)

    assert [batch.number for batch in check_batches(path, over_wire=False)] == [3, 6]
    (about,) = json.loads(path.read_text())["pserver"]["processes"]
    assert about["every"] == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trace_every": 2}, "trace_every has no effect without trace or otel_endpoint"),
        (
            {"trace": "x", "role": "dense", "listen": "127.0.0.1:0"},
            "trace has no effect with role dense",
        ),
        (
            {"trace": "x", "stages": 2, "trainers": 2},
            "trace has no effect with stages above 1: only trainers that have the whole model",
        ),
    ],
)
def test_a_trace_that_would_show_nothing_is_refused(
    settings: dict[str, object], message: str
) -> None:
    """Settings of a trace that nothing reads are errors that say why."""
    with pytest.raises(ConfigError, match=message):
        RunSettings.make(settings, origins={})
