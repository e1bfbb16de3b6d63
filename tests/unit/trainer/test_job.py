"""What ``trainer.job`` promises: settings in, a summary out whose every figure is right."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import pserver
from tests.unit.trainer.models import criteo_line
from trainer.config import RunSettings
from trainer.dataset import Generator
from trainer.errors import DataError, TrainerError
from trainer.evaluate import auc
from trainer.job import GENERATED_HELD_OUT_ROWS, TABLE, Summary, choose_data, run
from trainer.loop import StepReport

SMALL = {
    "rows": 500,
    "eval_last": 300,
    "scale": 0.001,
    "batch_size": 64,
    "dim": 4,
    "device": "cpu",
    "window": 1,
}
"""A run of eight steps on generated rows."""


def settings(**values: object) -> RunSettings:
    """Return the settings of a small run, some of them otherwise; None takes one out."""
    merged = {**SMALL, **values}
    return RunSettings.make({k: v for k, v in merged.items() if v is not None}, origins={})


def on_file(path: Path, **values: object) -> RunSettings:
    """Return the settings of a small run on a file."""
    generated_only: dict[str, object] = dict.fromkeys(("rows", "scale", "eval_last"))
    return settings(**{"data": str(path), **generated_only, **values})


@pytest.fixture
def hundred(tmp_path: Path) -> Path:
    """Return a Criteo file of 100 good rows."""
    path = tmp_path / "hundred.txt"
    path.write_text("".join(map(criteo_line, range(100))), encoding="utf-8")
    return path


# --- the summary --------------------------------------------------------------------------------


def test_every_figure_of_a_run_is_right() -> None:
    """Rows, samples, ceiling, bytes and shares are what can be counted by other means."""
    seconds: list[float] = []
    held_out = list(Generator(0, batch_size=64, rows=800, skip_rows=500, scale=0.001))
    keys = [b.keys for b in Generator(0, batch_size=64, rows=500, scale=0.001)]

    summary = run(settings(shards=3), on_step=lambda step: seconds.append(step.loss))

    assert (summary.model, summary.device, summary.shards) == ("deepfm", "cpu", 3)
    assert summary.data == "generated, 500 rows"
    assert (summary.steps, summary.samples, len(seconds)) == (8, 500, 8)
    assert summary.eval_samples == 300
    assert summary.rows == np.unique(np.concatenate(keys)).size
    ceiling = auc(
        np.concatenate([b.teacher for b in held_out if b.teacher is not None]),
        np.concatenate([b.labels for b in held_out]),
    )
    assert summary.auc_ceiling == pytest.approx(ceiling)
    assert summary.auc is not None
    assert 0.0 < summary.auc < ceiling
    assert summary.log_loss is not None
    assert 0.0 < summary.log_loss < 1.0
    assert summary.train_auc is not None
    assert 0.0 < summary.train_auc < 1.0
    assert summary.seconds > 0.0
    assert summary.samples_per_s == pytest.approx(500 / summary.seconds)
    assert 0.0 < summary.comm_share < 1.0
    assert summary.bytes_per_row is not None
    own = 4 * 4 + 4 * 4 + 4  # weights, adagrad's state, the epoch; then the index: 16 a bucket
    # A small table pays for the first region of each of the 1024 partitions of its index.
    assert own < summary.bytes_per_row < own + 1024 * 16 * 16 * 3 / summary.rows
    assert (summary.retries, summary.bad_lines, summary.first_bad_lines) == (0, 0, [])


def test_summary_is_plain_data() -> None:
    """``as_dict`` has each documented figure once, by name, in order."""
    names = [field.name for field in dataclasses.fields(Summary)]
    values = dict.fromkeys(names, 0)

    assert list(Summary(**values).as_dict()) == names  # type: ignore[arg-type] # only names matter
    assert Summary.__doc__ is not None
    assert all(f"{name}:" in Summary.__doc__ or f"{name}," in Summary.__doc__ for name in names)


def test_epochs_are_passes_over_the_same_rows() -> None:
    """Three epochs are three times the steps, and no more rows."""
    once, thrice = run(settings()), run(settings(epochs=3))

    assert (thrice.steps, thrice.samples) == (24, 1500)
    assert thrice.rows == once.rows
    assert thrice.log_loss != once.log_loss


def test_steps_end_a_run_early() -> None:
    """``steps`` counts over epochs, and what was not trained is not counted."""
    positions: list[int] = []

    summary = run(settings(epochs=3, steps=9), on_step=lambda s: positions.append(s.batch.position))

    assert (summary.steps, summary.samples) == (9, 500 + 64)
    assert positions[-2:] == [500, 64]


def test_last_batch_may_be_short(hundred: Path) -> None:
    """No row is left out when the batch size does not divide them."""
    sizes: list[int] = []

    summary = run(
        on_file(hundred, batch_size=32), on_step=lambda s: sizes.append(s.batch.num_samples)
    )

    assert sizes == [32, 32, 32, 4]
    assert summary.samples == 100


def test_two_runs_of_one_seed_are_the_same() -> None:
    """With a window of one a run is a function of its settings, to the bit."""

    def figures(summary: Summary) -> tuple[float | int | None, ...]:
        return summary.auc, summary.log_loss, summary.train_auc, summary.rows

    one = figures(run(settings()))

    assert figures(run(settings(shards=5))) == one
    assert figures(run(settings(seed=1))) != one


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 400},
        {"scale": 0.01},
        {"alpha": 1.5},
        {"model": "fm"},
        {"dim": 5},
        {"optimizer": "adam"},
        {"optimizer": "adagrad:lr=0.03"},
        {"initializer": "zeros"},
        {"dense_optimizer": "sgd"},
        {"batch_size": 65},
        {"seed": 3},
        {"prefetch": 0},
        {"eval_last": 299},
        {"steps": 7},
    ],
)
def test_every_setting_of_the_training_changes_it(change: dict[str, object]) -> None:
    """No setting is taken and dropped: each one, changed, gives another log loss."""
    assert run(settings(**change)).log_loss != run(settings()).log_loss


def test_threads_are_torchs() -> None:
    """``threads`` sets how many torch uses; nothing said leaves them."""
    run(settings(steps=1))
    assert torch.get_num_threads() == 1

    run(settings(steps=1, threads=2))

    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("model", ["lr", "fm", "wide_deep", "deepfm"])
def test_every_model_learns(model: str) -> None:
    """Each built-in model, with its own dim, beats chance by far on generated rows."""
    summary = run(
        settings(
            model=model,
            dim=None,
            rows=6000,
            eval_last=2000,
            scale=1e-6,
            optimizer="adagrad:lr=0.1",
        )
    )

    assert summary.auc is not None
    assert summary.auc > 0.65
    assert summary.auc_ceiling is not None
    assert summary.auc < summary.auc_ceiling


def test_training_that_breaks_is_an_error() -> None:
    """A learning rate far too high ends the run with an error, not with a number."""
    with pytest.raises((pserver.NotFiniteError, TrainerError)) as caught:
        run(settings(dense_optimizer="sgd:lr=1e38", epochs=3))

    assert TABLE in str(caught.value) or "learning rate that is too high" in str(caught.value)


# --- data ---------------------------------------------------------------------------------------


def test_generated_rows_have_held_out_rows_of_their_own() -> None:
    """Without a word 200,000 rows are held out, which follow the training rows."""
    data, readers = choose_data(settings(eval_last=None))

    assert readers == []
    assert data.held_out is not None
    positions = [batch.position for batch in data.held_out()]
    assert positions[0] == 500 + 64
    assert positions[-1] == 500 + GENERATED_HELD_OUT_ROWS == 200_500


def test_last_rows_of_a_file_are_held_out(hundred: Path) -> None:
    """``eval_last`` keeps the last rows from training and scores on exactly those."""
    data, _ = choose_data(on_file(hundred, eval_last=30))
    assert data.held_out is not None
    assert [b.position for b in data.train()] == [64, 70]
    assert [b.position for b in data.held_out()] == [100]

    summary = run(on_file(hundred, eval_last=30))

    assert (summary.samples, summary.eval_samples) == (70, 30)
    assert summary.data == f"{hundred}, 70 rows"
    assert summary.auc is not None
    assert summary.auc_ceiling is None


def test_held_out_file_is_scored(hundred: Path, tmp_path: Path) -> None:
    """``eval_data`` is scored whole, and all of ``data`` is trained on."""
    other = tmp_path / "other.txt"
    other.write_text("".join(map(criteo_line, range(500, 520))), encoding="utf-8")

    summary = run(on_file(hundred, eval_data=str(other)))

    assert (summary.samples, summary.eval_samples) == (100, 20)


def test_without_held_out_rows_there_is_no_score(hundred: Path) -> None:
    """A file alone is trained on whole; what was not measured is None, and the AUC in training is."""
    summary = run(on_file(hundred))

    assert (summary.auc, summary.log_loss, summary.auc_ceiling) == (None, None, None)
    assert summary.eval_samples == 0
    assert summary.train_auc is not None


def test_held_out_rows_of_one_class_have_no_auc(hundred: Path, tmp_path: Path) -> None:
    """An AUC that does not exist is None; the log loss still is a number."""
    other = tmp_path / "clicks.txt"
    other.write_text(criteo_line(0) * 5, encoding="utf-8")

    summary = run(on_file(hundred, eval_data=str(other)))

    assert summary.auc is None
    assert summary.log_loss is not None


def test_bad_lines_are_counted_when_skipped(hundred: Path) -> None:
    """Skipped lines of training and held-out rows are counted and shown with their places."""
    lines = hundred.read_text(encoding="utf-8").splitlines(keepends=True)
    for number in (3, 40, 95):
        lines[number - 1] = "no row\n"
    hundred.write_text("".join(lines), encoding="utf-8")

    summary = run(on_file(hundred, eval_last=10, bad_lines="skip", epochs=2))

    assert (summary.samples, summary.eval_samples) == (2 * 88, 9)
    assert summary.bad_lines == 3
    assert [line.split(": ")[0] for line in summary.first_bad_lines] == [
        f"{hundred}:{number}" for number in (3, 40, 95)
    ]


def test_only_the_first_bad_lines_are_shown(tmp_path: Path) -> None:
    """Of many bad lines five are told, training rows first."""
    path = tmp_path / "bad.txt"
    path.write_text(("bad\n" + criteo_line(1)) * 20, encoding="utf-8")

    summary = run(on_file(path, eval_last=20, bad_lines="skip"))

    assert summary.bad_lines == 20
    assert [line.split(": ")[0] for line in summary.first_bad_lines] == [
        f"{path}:{number}" for number in (1, 3, 5, 7, 9)
    ]


def test_bad_line_ends_a_run(hundred: Path) -> None:
    """By default the first bad line is an error with its place, after the batches before it."""
    lines = hundred.read_text(encoding="utf-8").splitlines(keepends=True)
    hundred.write_text("".join([*lines[:70], "no row\n", *lines[71:]]), encoding="utf-8")

    with pytest.raises(DataError, match=rf"{hundred}:71: "):
        run(on_file(hundred))


def no_file(path: Path) -> None:
    """Leave the path as it is: nothing there."""


def empty_file(path: Path) -> None:
    """Make a file without rows."""
    path.touch()


def folder(path: Path) -> None:
    """Make a folder."""
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (no_file, "cannot be read: No such file or directory"),
        (empty_file, "0 rows: nothing"),
        (folder, "cannot be read: Is a directory"),
    ],
)
@pytest.mark.parametrize("name", ["data", "eval_data"])
def test_file_without_rows_is_named(
    hundred: Path, tmp_path: Path, make: Callable[[Path], None], fact: str, name: str
) -> None:
    """A file that is missing, empty or none is refused before anything is trained."""
    path = tmp_path / "it"
    make(path)
    steps: list[StepReport] = []
    files = {"data": str(hundred), name: str(path)}

    with pytest.raises(DataError) as caught:
        run(on_file(hundred, **files), on_step=steps.append)

    assert str(caught.value).startswith(f"{path}: ")
    assert fact in str(caught.value)
    assert steps == []


@pytest.mark.parametrize("held_out", [100, 101])
def test_all_rows_held_out_are_refused(hundred: Path, held_out: int) -> None:
    """Holding out every row, or more than there are, says how many there are."""
    with pytest.raises(DataError) as caught:
        run(on_file(hundred, eval_last=held_out))

    assert str(caught.value) == (
        f"{hundred}: 100 rows, of which the last {held_out} are held out: "
        "nothing is left to train on"
    )


# --- settings that cannot work ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "fact"),
    [
        ({"model": "lr", "dim": 2}, "--dim: model lr: dim must be at least 1 and at most 1, got 2"),
        ({"model": "deepfm", "dim": 1}, "--dim: model deepfm: dim must be at least 2, got 1"),
        ({"optimizer": "adagard"}, "unknown rule 'adagard'; did you mean 'adagrad'?"),
        ({"optimizer": "sgd:lrr=1"}, "did you mean 'lr'?"),
        ({"initializer": "unifrom"}, "did you mean 'uniform'?"),
        ({"dense_optimizer": "adma"}, "--dense-optimizer: unknown rule 'adma'"),
        ({"ps": "nowhere"}, "must be HOST:PORT"),
    ],
)
def test_settings_that_cannot_work_are_told(values: dict[str, object], fact: str) -> None:
    """What shows only when the run is put together is a ``ConfigError`` as well."""
    with pytest.raises(pserver.ConfigError) as caught:
        run(settings(**values))

    assert fact in str(caught.value)


def test_figures_that_json_cannot_hold_are_none(hundred: Path) -> None:
    """No NaN and no infinity is in a summary, whatever was trained."""
    hundred.write_text(criteo_line(0), encoding="utf-8")

    summary = run(on_file(hundred))

    assert summary.train_auc is None
    numbers = [v for v in summary.as_dict().values() if isinstance(v, float)]
    assert all(map(math.isfinite, numbers))
