"""What ``trainer.ranges`` promises: every row of an epoch, ranges reported when they are trained on."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pserver
from pserver.embedded import Cluster
from tests.unit.trainer.models import on_file, settings
from trainer.config import RunSettings
from trainer.data import choose_data
from trainer.job.run import run
from trainer.loop import StepReport
from trainer.ranges import (
    RANGE_BATCHES_MAX,
    RANGES_A_TRAINER,
    RangeSource,
    choose_range_rows,
)


@pytest.fixture
def place() -> Iterator[pserver.Group]:
    """Return the place of the only trainer of a group."""
    with Cluster(1) as cluster, cluster.connect() as client:
        yield client.join(pserver.GroupSettings())


def source_of(
    place: pserver.Group, given_settings: RunSettings, *, range_rows: int, in_rounds: bool = False
) -> tuple[RangeSource, pserver.Leases]:
    """Return the batches of leased ranges of a run's rows, and the leases."""
    data = choose_data(given_settings, batch_size=given_settings.batch_size, seed=0)
    leases = place.leases(rows=data.rows, range_rows=range_rows)
    epochs = given_settings.epochs
    return RangeSource(leases, data, epochs=epochs, in_rounds=in_rounds), leases


@given(rows=st.integers(1, 10**9), batch_size=st.integers(1, 10**6), trainers=st.integers(1, 1024))
def test_ranges_are_whole_batches_and_not_too_large(
    rows: int, batch_size: int, trainers: int
) -> None:
    """A range is whole batches unless there are no more rows, and fair or one batch."""
    range_rows = choose_range_rows(rows, batch_size=batch_size, trainers=trainers)

    assert range_rows == rows or range_rows % batch_size == 0
    assert 1 <= range_rows <= RANGE_BATCHES_MAX * batch_size
    if range_rows > batch_size:
        assert (range_rows - batch_size) * RANGES_A_TRAINER * trainers < rows


def test_range_is_reported_after_its_last_batch_and_a_flush(
    place: pserver.Group, hundred: Path
) -> None:
    """A range of 25 rows in batches of 10 is done after three steps, and not before the flush."""
    source, leases = source_of(place, on_file(hundred, batch_size=10), range_rows=25)
    flushed: list[int] = []
    steps = 0

    for batch in source.batches():
        if not batch.num_samples:  # all that was read is trained on before this is waited for
            continue
        steps += 1
        source.trained(lambda: flushed.append(steps))  # noqa: B023 - called before the next step

    assert steps == 12
    assert flushed == [3, 6, 9, 12]
    assert leases.next_range(0) == "over"
    assert source.again == 0


def test_range_of_bad_lines_only_is_done(place: pserver.Group, hundred: Path) -> None:
    """A range without a good row has no step, and is reported all the same."""
    lines = hundred.read_text(encoding="utf-8").splitlines(keepends=True)
    hundred.write_text("".join(["bad\n"] * 20 + lines[20:]), encoding="utf-8")
    given_settings = on_file(hundred, batch_size=10, bad_lines="skip")
    source, _ = source_of(place, given_settings, range_rows=10)

    samples = 0
    for batch in source.batches():
        samples += batch.num_samples
        if batch.num_samples:
            source.trained(lambda: None)

    assert samples == 80


@pytest.mark.parametrize("mode", ["sync", "async", "half_async"])
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_one_trainer_trains_on_every_row_once_an_epoch(
    hundred: Path, mode: str, prefetch: int
) -> None:
    """With leases a single trainer sees each row once an epoch, however far it reads ahead."""
    seen: list[StepReport] = []
    given_settings = on_file(
        hundred,
        mode=mode,
        prefetch=prefetch,
        data_mode="dynamic",
        range_rows=30,
        batch_size=7,
        epochs=2,
        eval_last=10,
    )

    summary = run(given_settings, on_step=seen.append)

    assert (summary.samples, summary.eval_samples) == (180, 10)
    assert sum(report.batch.num_samples for report in seen) == 180
    assert summary.watch["ranges_again"] == 0.0


def test_steps_max_counts_steps_with_samples(hundred: Path) -> None:
    """``--steps`` stops in the middle of a range."""
    given_settings = on_file(
        hundred, data_mode="dynamic", range_rows=30, batch_size=10, epochs=5, steps=13
    )

    assert run(given_settings).steps == 13


def test_trainers_in_rounds_that_wait_have_batches_without_samples(hundred: Path) -> None:
    """In rounds a trainer without a range takes part with nothing, so that the others go on."""
    with Cluster(1) as cluster, cluster.connect() as one, cluster.connect() as other:
        places = [
            client.join(pserver.GroupSettings(mode="sync", trainer_id=number, trainers=2))
            for number, client in enumerate((one, other))
        ]
        given_settings = on_file(hundred, batch_size=50)
        holder, leases = source_of(places[0], given_settings, range_rows=100, in_rounds=True)
        waiting, _ = source_of(places[1], given_settings, range_rows=100, in_rounds=True)
        held, idle = holder.batches(), waiting.batches()
        assert next(held).num_samples == 50

        for _ in range(3):
            batch = next(idle)
            assert (batch.num_samples, batch.num_slots, batch.dense.shape) == (0, 26, (0, 13))
            waiting.trained(lambda: pytest.fail("nothing was read, so nothing is flushed"))
        assert next(held).num_samples == 50
        holder.trained(lambda: pytest.fail("the range goes on"))
        holder.trained(lambda: None)

        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: list(idle)).result(20.0) == []
        assert leases.next_range(0) == "over"


def test_generated_rows_can_be_leased() -> None:
    """Ranges are of any rows, generated ones too."""
    assert run(settings(data_mode="dynamic", batch_size=100)).samples == 500
