"""What ``trainer.job.run`` promises: settings in, a summary out whose every figure is right."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import pserver
from tests.unit.trainer.models import criteo_line, on_file, settings
from trainer.config import RunSettings
from trainer.data import choose_data
from trainer.dataset import Generator
from trainer.errors import TrainerError
from trainer.evaluate import auc
from trainer.job.model import TABLE, make_ctr_model
from trainer.job.run import run
from trainer.job.summary import Summary
from trainer.modes import make_mode
from trainer.strategy import Strategy

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


def test_epochs_are_passes_over_the_same_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """Three epochs are three times the steps, as shown, and no more rows."""
    once = run(settings())
    capsys.readouterr()

    thrice = run(settings(epochs=3))

    assert "train deepfm async: step 24/24" in capsys.readouterr().err
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


def test_model_is_made_as_the_settings_say() -> None:
    """Rules, dim and seed reach the table and the dense part; a seed is the same weights anew."""
    given = settings(seed=7, optimizer="sgd:lr=0.5", initializer="zeros", dense_optimizer="sgd")
    data = choose_data(given, batch_size=64, seed=7)

    def weights(of: RunSettings) -> torch.Tensor:
        with pserver.embedded(1) as client:
            model, _ = make_ctr_model(make_mode(client, Strategy()), of, data)
            return torch.cat([p.flatten() for p in model.dense.parameters()])

    with pserver.embedded(1) as client:
        model, optimizer = make_ctr_model(make_mode(client, Strategy()), given, data)
        spec = client.spec(TABLE)

    assert (spec.seed, spec.dim, spec.optimizer, spec.initializer) == (7, 4, "sgd:lr=0.5", "zeros")
    assert model.bag.spec == spec
    assert isinstance(optimizer, torch.optim.SGD)
    assert torch.equal(weights(given), weights(given))
    assert not torch.equal(weights(given), weights(settings(seed=8)))


def test_rows_are_kept_as_the_settings_say(tmp_path: Path) -> None:
    """16-bit weights take half the bytes and change the numbers a little; a file changes no bit."""
    plain, half = run(settings(dim=8)), run(settings(dim=8, row_dtype="bfloat16"))
    file = run(settings(dim=8, row_dtype="bfloat16", storage="file", storage_dir=str(tmp_path)))

    assert plain.bytes_per_row is not None
    assert half.bytes_per_row == pytest.approx(plain.bytes_per_row - 2 * 8)
    assert half.log_loss != plain.log_loss
    assert half.log_loss == pytest.approx(plain.log_loss, abs=0.01)
    assert (file.log_loss, file.auc) == (half.log_loss, half.auc)
    with pytest.raises(pserver.ConfigError, match=r"'embedding': storage is file.*--storage-dir"):
        run(settings(storage="file"))


def test_the_table_keeps_the_size_and_the_rules_that_the_settings_say() -> None:
    """What falls out, goes by day, or is done with NaN is of the table that the run makes."""
    plain, small = (run(settings(batch_size=4, evict=e)) for e in ("none", "lru:rows=200"))
    assert small.rows <= 2 * 200 < plain.rows

    given = settings(evict="lfu:rows=1e6", ttl_days=9, on_nan="zero")
    data = choose_data(given, batch_size=64, seed=7)
    with pserver.embedded(1) as client:
        make_ctr_model(make_mode(client, Strategy()), given, data)
        spec = client.spec(TABLE)
        assert (spec.evict, spec.ttl_days, spec.on_nan) == (
            "lfu:rows=1000000,half_life=10000",
            9,
            "zero",
        )


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
