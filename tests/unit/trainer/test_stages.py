"""``trainer run --stages``: the parameters and rows of one process, with every schedule.

Trainers are threads over shards of this process; they meet by real gloo connections.
"""

import io
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import pserver
from collective import StageError
from collective.pipeline import Pipeline
from collective.pipeline_clock import PARTS
from collective.pipeline_queue import PipelineQueue
from tests.unit.trainer.models import on_file
from tests.unit.trainer.split_runs import RULE, SYNC, WAIT_S, RunTogether, alone, write
from tests.unit.trainer.test_hybrid import free_port, joined_order
from trainer.config import RunSettings
from trainer.job import run as job
from trainer.job.summary import Summary, summary_table
from trainer.loop import CtrModel

CUTS = {2: "mlp.layers.0", 3: "mlp,mlp.layers.0", 4: "linear,mlp,mlp.last"}


def in_stages(path: Path, stages: int, trainers: int, **values: object) -> list[RunSettings]:
    """Return the settings of every trainer."""
    own = {"stages": stages, "cut": CUTS[stages], "trainers": trainers, "ps": "here:1"}
    own |= {"dense_optimizer": RULE, "master": f"127.0.0.1:{free_port()}", **values}
    return [on_file(path, trainer_id=number, **own) for number in range(trainers)]


def with_values(given: RunSettings, **values: object) -> RunSettings:
    """Return settings with some others."""
    before = {name: getattr(given, name) for name in given.model_fields_set}
    return RunSettings.make({**before, **values}, origins={})


@pytest.mark.parametrize(
    ("schedule", "stages", "virtual", "trainers", "parts"),
    [
        pytest.param("gpipe", 2, 1, 2, 3, marks=pytest.mark.slow),
        ("1f1b", 3, 1, 3, 2),  # fewer micro-batches than stages
        ("1f1b", 2, 1, 4, 4),  # two pipelines side by side
        ("interleaved", 4, 2, 2, 4),
        ("zero_bubble", 3, 1, 3, 4),
        # fewer samples than micro-batches
        pytest.param("1f1b", 2, 1, 2, 9, marks=pytest.mark.slow),
    ],
)
def test_stages_equal_one_process(
    run_together: RunTogether,
    tmp_path: Path,
    schedule: str,
    stages: int,
    virtual: int,
    trainers: int,
    parts: int,
) -> None:
    """Parameters within 1e-6, with short last batches; each trainer tells the same loss and AUC."""
    pipelines = trainers * virtual // stages
    rows, batch = 43 * pipelines, 8
    many = write(tmp_path / "many.txt", list(range(rows)))
    one = write(tmp_path / "one.txt", joined_order(rows, pipelines, batch))
    own = {"schedule": schedule, "virtual": virtual, "accumulate_steps": parts}
    if virtual == 1:
        del own["virtual"]

    told, (found, *others), weights = run_together(
        in_stages(many, stages, trainers, batch_size=batch, **own, **SYNC)
    )
    (wanted_told,), (wanted,), wanted_weights = run_together(
        [alone(one, batch_size=batch * pipelines, **SYNC)]
    )

    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-6)
    assert all(torch.equal(found, other) for other in others)
    assert len(others) == pipelines - 1
    assert np.abs(weights - wanted_weights).max() < 1e-5
    assert [one.steps for one in told] == [6] * trainers
    assert {one.strategy["dense"] for one in told} == {"stages"}
    ranks = trainers // pipelines
    for first in told[::ranks]:
        assert first.watch["pushes"] == 6.0  # all micro-batches' gradients leave as one push
        assert first.watch["bubble_formula"] == (ranks - 1) / (parts + ranks - 1)
        assert 0.0 <= first.watch["bubble_share"] < 1.0
        assert first.watch["stage_queue_bytes_max"] > 0
    if pipelines == 1:
        for one_told in told:
            assert one_told.train_auc == pytest.approx(wanted_told.train_auc, abs=1e-6)
        assert sum(one.rows > 0 for one in told) == 1


@pytest.mark.gpu
def test_stages_on_a_gpu_agree_with_one_process(run_together: RunTogether, tmp_path: Path) -> None:
    """Two stages on one device, and the whole scored there: within 1e-4 of a run on the CPU."""
    path = write(tmp_path / "rows.txt", list(range(80)))

    told, (found,), _ = run_together(
        in_stages(path, 2, 2, batch_size=8, device="cuda", eval_last=20, **SYNC)
    )
    _, (wanted,), _ = run_together([alone(path, batch_size=8, eval_last=20, **SYNC)])

    torch.testing.assert_close(found.cpu(), wanted, rtol=0.0, atol=1e-4)
    assert told[0].eval_samples == 20


def test_uneven_pipelines_end_well_and_the_first_scores(
    run_together: RunTogether, tmp_path: Path
) -> None:
    """Pipelines with 2 and 5 steps end with the same parameters; trainer 0 scores with the whole."""
    path = write(tmp_path / "rows.txt", list(range(60)))
    given = in_stages(path, 2, 4, eval_last=20, mode="async")
    sizes = (10, 10, 4, 4)
    given = [with_values(one, batch_size=size) for one, size in zip(given, sizes, strict=True)]

    told, found, _ = run_together(given)

    assert [one.steps for one in told] == [2, 2, 5, 5]
    assert torch.equal(found[0], found[1])
    assert [one.eval_samples for one in told] == [20, 0, 0, 0]
    assert told[0].auc is not None


def test_a_trainer_that_fails_ends_its_pipeline_with_its_words(
    run_together: RunTogether, tmp_path: Path
) -> None:
    """Another data set in the second trainer, one line of which is bad: the first one says so."""
    good = write(tmp_path / "good.txt", list(range(40)))
    bad = write(tmp_path / "bad.txt", list(range(40)))
    lines = bad.read_text(encoding="utf-8").splitlines(keepends=True)
    bad.write_text("".join([*lines[:30], "bad\n", *lines[31:]]), encoding="utf-8")
    first, second = in_stages(good, 2, 2, batch_size=4)
    second = with_values(second, data=str(bad))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_together, [first, second])

        with pytest.raises(StageError, match=r"trainer 1 failed: .*bad.txt:31"):
            running.result(WAIT_S)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"cut": "mlp.lasst"}, "stages of deepfm: cut 'mlp.lasst' is no module of the model; did"),
        ({"cut": "mlp.first"}, "cut 'mlp.first' is never called"),
    ],
)
def test_cuts_that_cannot_be_are_refused(tmp_path: Path, values, text) -> None:
    """The message names the cut, and the nearest module."""
    path = write(tmp_path / "rows.txt", list(range(10)))
    given = on_file(
        path, stages=2, virtual=2, schedule="interleaved", **values
    )  # all stages in one trainer: nobody to meet

    with pytest.raises(pserver.ConfigError, match=text):
        job.run(given)


def test_cuts_are_chosen_where_none_are_given(run_together: RunTogether, tmp_path: Path) -> None:
    """Four stages of one trainer by bytes and time give the parameters of the unsplit model."""
    path = write(tmp_path / "rows.txt", list(range(40)))
    own = {"stages": 4, "virtual": 4, "schedule": "interleaved", "micro_batch_size": 3}

    _, (found,), _ = run_together([alone(path, batch_size=8, **own, **SYNC)])
    _, (wanted,), _ = run_together([alone(path, batch_size=8, **SYNC)])

    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-6)


def seconds_of(told: Summary, place: int) -> dict[str, float]:
    """Return where the time of a trainer of a pipeline went."""
    return {part: told.watch[f"place_{place}_{part}_s"] for part in PARTS}


def test_the_parts_of_a_trainers_time_sum_to_it(
    run_together: RunTogether, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stages of 10 ms a pass: parts do not overlap, and the bubble is that of both trainers together."""
    path, act = write(tmp_path / "rows.txt", list(range(24))), Pipeline._act

    def slow(self: Pipeline, *action: Any) -> None:
        threading.Event().wait(0.01)  # what the stage computes
        act(self, *action)

    monkeypatch.setattr(Pipeline, "_act", slow)

    told, _, _ = run_together(in_stages(path, 2, 2, batch_size=8, accumulate_steps=2, **SYNC))

    names = [name for name in told[0].watch if name.startswith(("place_", "bubble_"))]
    assert [told[1].watch[name] for name in names] == [told[0].watch[name] for name in names]
    seconds = [seconds_of(told[0], place) for place in range(2)]
    for place, own in enumerate(seconds):
        total_s = told[0].watch[f"place_{place}_total_s"]
        assert sum(own.values()) == pytest.approx(total_s, abs=1e-6)
        assert min(own.values()) >= 0.0
        assert total_s <= told[place].seconds + 1e-6
        assert own["compute"] >= 3 * 2 * 2 * 0.0099  # steps, micro-batches, passes
    bubble, compute = (sum(own[name] for own in seconds) for name in ("bubble", "compute"))
    assert told[0].watch["bubble_share"] == pytest.approx(bubble / (bubble + compute))
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(summary_table(told[0]))
    assert re.search(
        r"trainer 1: computes \d+\.\d%, bubble .*, between steps", console.export_text()
    )


def test_rows_that_come_late_are_no_bubble(
    run_together: RunTogether, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pooling is held back while the second trainer waits: both trainers call that rows, each step."""
    path = write(tmp_path / "rows.txt", list(range(24)))
    waits, held_s, pooled, take = threading.Event(), 0.05, CtrModel.pooled, PipelineQueue.take

    def late(self: CtrModel, *parts: Any) -> torch.Tensor:
        assert waits.wait(WAIT_S)
        waits.clear()
        threading.Event().wait(held_s)  # the time that is to be found again
        return pooled(self, *parts)

    def told_of(self: PipelineQueue, rank: int, label: Any) -> Any:
        if label[0] == "values" and label[3] == 0:
            waits.set()
        return take(self, rank, label)

    monkeypatch.setattr(CtrModel, "pooled", late)
    monkeypatch.setattr(PipelineQueue, "take", told_of)

    told, _, _ = run_together(in_stages(path, 2, 2, batch_size=8, accumulate_steps=2, **SYNC))

    assert [one.steps for one in told] == [3, 3]
    for place in range(2):
        assert seconds_of(told[0], place)["rows"] >= 3 * held_s - 0.001
