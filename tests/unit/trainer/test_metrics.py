"""The metrics page of a trainer: its names are a promise, its series are few, its numbers those of the run."""

import contextlib
import os
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

import pserver
from tests.integration.servers import WAIT_S
from tests.unit.trainer.split_runs import SYNC, RunTogether, write
from tests.unit.trainer.test_roles import embedding, listening
from tests.unit.trainer.test_stages import in_stages
from trainer.config import RunSettings
from trainer.job import dense as job_dense
from trainer.job import stage as job_stage
from trainer.job.run import run
from trainer.loop import StepReport
from trainer.metrics import SERIES_MAX, RunMetrics

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "metrics_trainer.txt"
REGENERATE = "PSERVER_WRITE_GOLDEN"
STEPS, BATCH = 6, 64
SMALL = {
    "rows": STEPS * BATCH,
    "scale": 0.001,
    "batch_size": BATCH,
    "shards": 1,
    "device": "cpu",
    "model": "lr",
    "metrics_bind": "127.0.0.1:0",
}


def page(address: str) -> list[Metric]:
    """Return what a page says."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=WAIT_S) as reply:
        return list(text_string_to_metric_families(reply.read().decode()))


def pages_of(capsys: pytest.CaptureFixture[str], **more: object) -> list[list[Metric]]:
    """Run a trainer and return what its page said after each step."""
    said: list[str] = []
    seen = []

    def look(_: StepReport) -> None:
        said.append(capsys.readouterr().err)
        found = re.search(r"metrics at (\S+)/metrics", "".join(said))
        assert found is not None, said
        seen.append(page(found[1]))

    run(RunSettings.make({**SMALL, **more}, origins={}), on_step=look)
    return seen


def samples(families: list[Metric]) -> dict[str, float]:
    """Return the samples of a page by name and label."""
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.fixture
def pages(capsys: pytest.CaptureFixture[str]) -> list[list[Metric]]:
    """Return the pages of a small run."""
    return pages_of(capsys, mode="sync")


def test_no_metric_of_a_trainer_comes_or_goes_unseen(pages: list[list[Metric]]) -> None:
    """Every name with its type and labels stands in the golden file, and there are few series."""
    families = pages[-1]
    lines = {
        f"{sample.name} {family.type} {','.join(sorted(sample.labels))}".rstrip()
        for family in families
        for sample in family.samples
    }
    lines.add("trainer_gpu_memory_bytes gauge kind")  # where there is a GPU
    text = "\n".join(sorted(lines)) + "\n"
    if os.environ.get(REGENERATE) == "1":
        GOLDEN.write_text(text, encoding="utf-8")

    assert text == GOLDEN.read_text(encoding="utf-8"), f"set {REGENERATE}=1 to rewrite it"
    assert sum(len(family.samples) for family in families) <= SERIES_MAX
    assert all(family.documentation.endswith(".") for family in families)


def test_numbers_of_a_trainer_are_those_of_its_run(pages: list[list[Metric]]) -> None:
    """Samples grow by batches; loss, AUC, norm and waits are there; the last step is young."""
    first, last = samples(pages[0]), samples(pages[-1])

    assert [samples(each)["trainer_steps_total"] for each in pages] == list(range(1, STEPS + 1))
    assert last["trainer_samples_total"] == STEPS * BATCH
    assert first["trainer_samples_total"] == BATCH
    assert 0.0 < last["trainer_loss"] < 2.0
    assert 0.0 <= last["trainer_auc"] <= 1.0
    assert last["trainer_grad_norm"] > 0.0
    assert last["trainer_nonfinite_steps_total"] == 0
    assert last["trainer_merge_factor"] == 1.0
    assert last["trainer_pushes_total"] == STEPS
    assert last["trainer_comm_seconds_total pull"] > first["trainer_comm_seconds_total pull"]
    assert 0.0 < last["trainer_comm_ratio"] < 1.0
    assert last["trainer_barrier_wait_seconds_total"] > 0.0
    assert last["trainer_staleness_versions_bucket 0.0"] > 0
    assert last["trainer_staleness_versions_sum"] == 0
    assert last["trainer_training"] == 1
    assert last["trainer_queue_wait_seconds_total"] == 0.0
    assert 0.0 <= last["trainer_step_age_seconds"] < WAIT_S
    assert last["trainer_retries_total"] == 0


def test_memory_of_a_gpu_is_shown_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tensors take and what torch holds, read at each scrape; nothing without a GPU."""
    taken = [5]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda: taken[0])
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda: 8)

    (series,) = [each for each in RunMetrics().series() if each.name == "gpu_memory_bytes"]

    assert list(series.read()) == [(("allocated",), 5.0), (("reserved",), 8.0)]
    taken[0] = 6
    assert list(series.read()) == [(("allocated",), 6.0), (("reserved",), 8.0)]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "gpu_memory_bytes" not in {each.name for each in RunMetrics().series()}


def test_merged_steps_are_seen_when_they_leave_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Three steps a push are a merge factor of three."""
    seen = pages_of(capsys, mode="half_async", max_merge_num=3, flush_interval_ms=3_600_000)

    last = samples(seen[-1])
    assert last["trainer_merge_factor"] == 3.0
    assert last["trainer_pushes_total"] == 2
    assert last["trainer_barrier_wait_seconds_total"] == 0.0


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"metrics_bind": "0.0.0.0:0"}, "--metrics-token-file"),
        ({"metrics_bind": "127.0.0.1"}, "HOST:PORT"),
    ],
)
def test_a_page_that_cannot_be_is_refused_at_the_start(more: dict[str, str], text: str) -> None:
    """Beyond this machine it takes TLS and a token, and the error has the commands."""
    with pytest.raises(pserver.ConfigError, match=text):
        run(RunSettings.make({**SMALL, **more}, origins={}))


def test_what_guards_no_page_is_refused() -> None:
    """Tokens of a page that nobody asked for would have no effect."""
    with pytest.raises(
        pserver.ConfigError, match="insecure_bind has no effect without metrics_bind"
    ):
        RunSettings.make({"insecure_bind": True}, origins={})


def test_the_page_is_gone_when_the_run_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    """Its port is free again; a finished run in a program leaves nothing that listens."""
    run(RunSettings.make(dict(SMALL), origins={}))
    found = re.search(r"metrics at (\S+)/metrics", capsys.readouterr().err)
    assert found is not None

    with pytest.raises(OSError, match="refused"):
        page(found[1])


@pytest.mark.parametrize("kind", ["a stage behind the first", "a dense trainer"])
def test_trainers_without_rows_have_a_page(
    run_together: RunTogether, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its steps, samples, loss and waits are those of its summary; what it has not is 0."""
    path = write(tmp_path / "rows.txt", list(range(24)))
    seen: list[dict[str, float]] = []
    room = job_stage if kind == "a stage behind the first" else job_dense
    page_of_run = room.metrics_page

    @contextlib.contextmanager
    def watched(settings: RunSettings, say: Callable[[str], None]) -> Iterator[RunMetrics]:
        told: list[str] = []
        with page_of_run(settings, told.append) as metrics:
            yield metrics
            found = re.search(r"metrics at (\S+)/metrics", told[0])
            assert found is not None
            seen.append(samples(page(found[1])))

    monkeypatch.setattr(room, "metrics_page", watched)
    shown = {"metrics_bind": "127.0.0.1:0"}
    if room is job_stage:
        given = in_stages(path, 2, 2, batch_size=8, **SYNC)
        given[1] = RunSettings.make(
            {**{n: getattr(given[1], n) for n in given[1].model_fields_set}, **shown}, origins={}
        )
        told = run_together(given)[0][1]
    else:
        denses = listening(1, **shown)
        told = run_together([*denses, *embedding(path, denses, 1, batch_size=8, **SYNC)])[0][0]

    (last,) = seen
    assert (last["trainer_steps_total"], last["trainer_samples_total"]) == (3, 24)
    assert last["trainer_loss"] == pytest.approx(told.watch["loss"])
    assert last["trainer_auc"] == pytest.approx(told.train_auc)
    assert last["trainer_comm_seconds_total dense"] > 0.0
    assert (last["trainer_pushes_total"], last["trainer_training"]) == (0, 0)
