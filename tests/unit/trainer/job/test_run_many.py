"""Several trainers of one job, each a thread over shards of this process: every mode ends well."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import pserver
from pserver.embedded import Cluster
from tests.unit.trainer.models import criteo_line, on_file
from trainer.config import RunSettings
from trainer.job import run as job
from trainer.job.summary import Summary

WAIT_S = 60.0
MODES: dict[str, dict[str, object]] = {
    "sync": {},
    "async": {},
    "half_async": {"max_merge_num": 4},
    "geo": {"k_steps": 3},
}
Together = Callable[..., list[Summary]]


@pytest.fixture
def together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Together]:
    """Return what runs trainers at once, each with settings of its own, and returns their figures."""
    path = tmp_path / "rows.txt"
    path.write_text("".join(map(criteo_line, range(130))), encoding="utf-8")
    with Cluster(2) as cluster:

        def connect(given: RunSettings) -> pserver.Client:
            return cluster.connect(settings=given.client_settings())

        def train(*own: dict[str, object], **values: object) -> list[Summary]:
            values = {"trainers": len(own), "ps": "here:1", "model": "fm", **values}
            given = [
                on_file(path, **{**values, "trainer_id": number, **one})
                for number, one in enumerate(own)
            ]
            with ThreadPoolExecutor(len(own)) as pool:
                return list(pool.map(job.run, given, timeout=WAIT_S))

        monkeypatch.setattr(job, "_connect", connect)
        yield train


@pytest.mark.parametrize("data_mode", ["static", "dynamic"])
@pytest.mark.parametrize("mode", MODES)
def test_all_rows_are_trained_on_once_an_epoch(
    together: Together, mode: str, data_mode: str
) -> None:
    """Two trainers share the rows of two epochs; trainer 0 scores when both are done."""
    summaries = together(
        {}, {}, mode=mode, data_mode=data_mode, batch_size=7, epochs=2, eval_last=10, **MODES[mode]
    )

    assert sum(summary.samples for summary in summaries) == 2 * 120
    assert [summary.eval_samples for summary in summaries] == [10, 0]
    assert summaries[0].log_loss is not None
    assert all(summary.watch.get("ranges_again", 0.0) == 0.0 for summary in summaries)


@pytest.mark.parametrize("mode", MODES)
def test_e1_uneven_numbers_of_batches_end_well(together: Together, mode: str) -> None:
    """Trainers with 1, 4 and 22 batches all end; who is done leaves, and the others go on."""
    sizes = [{"batch_size": 65}, {"batch_size": 11}, {"batch_size": 2}]

    summaries = together(*sizes, mode=mode, **MODES[mode])

    assert [summary.steps for summary in summaries] == [1, 4, 22]
    assert sum(summary.samples for summary in summaries) == 130


def test_steps_end_one_trainer_and_its_range_goes_to_the_other(together: Together) -> None:
    """A trainer that stops in the middle of a range leaves it to the other one."""
    summaries = together(
        {"steps": 2}, {}, data_mode="dynamic", range_rows=65, batch_size=13, mode="async"
    )

    assert summaries[0].samples == 26
    assert summaries[1].samples in (65 + 65, 65)  # the other's range too, unless it was done first


@pytest.mark.parametrize("mode", MODES)
def test_watch_list_has_what_was_promised(together: Together, mode: str) -> None:
    """Every mode tells the whole list, as plain numbers."""
    (first, _) = together({}, {}, mode=mode, batch_size=13, **MODES[mode])

    assert {
        "loss",
        "nonfinite",
        "grad_norm",
        "queue_depth_max",
        "pull_share",
        "push_share",
        "staleness_p50",
        "staleness_p99",
        "staleness_max",
        "merge_factor",
        "pull_wait_s",
        "push_wait_s",
    } <= set(first.watch)
    assert all(type(value) is float for value in first.watch.values())
    assert ("barrier_wait_s" in first.watch) == (mode == "sync")
