"""What ``trainer.cli.main`` promises: one command, exit status 0, 1 or 2, one line on errors, one JSON."""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pserver
from tests.unit.trainer.models import SMALL_FLAGS
from trainer.cli import main as cli
from trainer.cli.main import make_parser
from trainer.config import RunSettings
from trainer.job import run as job
from trainer.job.summary import Summary
from trainer.launch import local as launch

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "options_trainer.txt"
REGENERATE = "PSERVER_WRITE_GOLDEN"
"""Set this variable to 1 to rewrite the golden file; the difference is reviewed."""

pytestmark = pytest.mark.usefixtures("command_line")

FIGURES = {
    "model": str,
    "data": str,
    "device": str,
    "shards": int,
    "steps": int,
    "samples": int,
    "seconds": float,
    "samples_per_s": float,
    "comm_share": float,
    "train_auc": float,
    "auc": float,
    "log_loss": float,
    "copc": float,
    "auc_ceiling": float,
    "eval_samples": int,
    "rows": int,
    "bytes_per_row": float,
    "retries": int,
    "bad_lines": int,
    "first_bad_lines": list,
    "mode": str,
    "trainers": int,
    "strategy": dict,
    "watch": dict,
    "speedup": float,
    "lost": list,
    "warnings": list,
}
"""Every figure of ``--json`` and what it is; boards and scripts read these names."""


def nothing(**figures: object) -> Summary:
    """Return the summary of a run that did nothing."""
    values = {name: kind() for name, kind in FIGURES.items()}
    return Summary(**{**values, "strategy": {"dense": "local"}, **figures})


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[RunSettings]:
    """Return the settings with which a run would have started; nothing is trained."""
    started: list[RunSettings] = []

    def run(settings: RunSettings, **_: object) -> Summary:
        started.append(settings)
        return nothing()

    monkeypatch.setattr(job, "run", run)
    monkeypatch.setattr(launch, "launch", run)
    return started


# --- what a run prints --------------------------------------------------------------------------


def test_last_line_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` ends standard output with every documented figure, and no other."""
    status = cli.main(["run", *SMALL_FLAGS, "--json"])

    captured = capsys.readouterr()
    told = json.loads(captured.out.splitlines()[-1], parse_constant=pytest.fail)
    assert status == 0
    kinds = {name: type(value) for name, value in told.items()}
    assert kinds == {**FIGURES, "speedup": type(None)}
    assert list(told) == list(FIGURES)
    assert (told["steps"], told["samples"], told["eval_samples"]) == (5, 300, 200)
    assert "train deepfm async: step 5/5" in captured.err


def test_table_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Without ``--json`` the figures stand in a table, the AUC beside the best possible."""
    assert cli.main(["run", *SMALL_FLAGS]) == 0

    text = capsys.readouterr().out
    assert "deepfm on generated, 300 rows" in text
    assert "on held-out rows; best possible 0." in text
    assert "on 200 rows" in text
    assert "300 rows, 5 steps" in text
    assert "% of the training time" in text
    assert "on 2 shards" in text
    assert "bytes each" in text
    assert "retries" not in text
    assert "bad lines" not in text


def test_table_of_a_file_tells_what_is_missing(
    hundred: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without held-out rows the AUC in training is told, and how to get the other."""
    assert cli.main(["run", "--data", str(hundred), "--model", "lr", "--device", "cpu"]) == 0

    text = capsys.readouterr().out
    assert "in training; no held-out rows (--eval-data or --eval-last)" in text
    assert "log loss" not in text


def test_table_shows_bad_lines(hundred: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Skipped lines are counted and the first of them shown, with file, line and reason."""
    text = hundred.read_text(encoding="utf-8")
    hundred.write_text("0\tx\n" + text + "half\n", encoding="utf-8")
    words = ["run", "--data", str(hundred), "--model", "lr", "--bad-lines", "skip"]

    assert cli.main([*words, "--eval-last", "20", "--device", "cpu"]) == 0

    shown = "".join(capsys.readouterr().out.split())
    assert "badlines│2skipped" in shown
    assert f"{hundred.name}:1:" in shown
    assert f"{hundred.name}:102:" in shown


def test_numbers_that_are_missing_are_not_shown(
    resolved: list[RunSettings],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run without any number worth showing still prints its table."""
    missing = ("auc", "train_auc", "log_loss", "copc", "auc_ceiling", "bytes_per_row", "speedup")
    summary = nothing(**dict.fromkeys(missing), retries=3)
    monkeypatch.setattr(job, "run", lambda _, **__: summary)

    assert cli.main(["run"]) == 0

    text = capsys.readouterr().out
    assert "no held-out rows" in text
    assert "retries" in text
    assert resolved == []


# --- where settings come from -------------------------------------------------------------------


def test_flags_win_over_environment_over_file(
    resolved: list[RunSettings],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run has flag over ``TRAINER_`` variable over ``[run]`` over default."""
    file = tmp_path / "job.toml"
    file.write_text(
        '[serve]\nshard = 1\n[run]\nmodel = "fm"\nepochs = 2\nseed = 5\nsteps = 9\n',
        encoding="utf-8",
    )
    monkeypatch.setenv("TRAINER_EPOCHS", "3")
    monkeypatch.setenv("TRAINER_SEED", "6")
    monkeypatch.setenv("TRAINER_UNKNOWN", "7")

    status = cli.main(["run", "--config", str(file), "--seed", "7", "--json"])

    assert status == 0
    assert resolved == [RunSettings(model="fm", epochs=3, seed=7, steps=9)]
    assert set(json.loads(capsys.readouterr().out)) == set(FIGURES)


SERVERS = {"ps": "a:1", "tls_cert": "c", "tls_key": "k", "tls_ca": "a", "token_file": "t"}
OVER_RANKS: tuple[dict[str, object], ...] = (
    {"amp": "fp16", "amp_scale": 8.0, "amp_grow_every": 2, "amp_grow_by": 4.0, "recompute": "mlp"}
    | {"amp_shrink_after": 3, "amp_shrink_by": 0.25},
    {"dense": "allreduce", "trainers": 4, "sharding_stage": 2, "sharding_degree": 2},
    {
        "dense": "allreduce",
        "trainers": 2,
        "trainer_id": 1,
        "ps": "a:1",
        "master": "b:2",
        "master_store": "launcher",
        "allreduce": "hierarchical",
        "inter_nranks": 2,
        "wire": "bfloat16",
        "fuse_grad_mb": 2.5,
        "last_group_mb": 0.5,
        "accumulate": 4,
        "allreduce_timeout": 7.0,
        "check_every": 5,
    },
    {"dense": "allreduce", "local_sgd_steps": 8},
)
"""Settings of a dense part that is averaged over the trainers."""


IN_MODES: tuple[dict[str, object], ...] = (
    {"mode": "sync", "sync_divisor": "samples", "on_missing": "wait"},
    {
        "mode": "half_async",
        "max_merge_num": 4,
        "merge": "mean",
        "flush_interval_ms": 9,
        "staleness_lr": "inverse",
    },
    {"mode": "geo", "k_steps": 9, "geo_average": "none", "geo_cache_rows": 7},
    {"on_full": "merge"},
    {"data": "x", "format": "libsvm", "slots": 3},
    {"data": "x", "eval_data": "y"},
    {
        "role": "embed",
        "next": "a:1,b:2",
        "batch_size": 12,
        "micro_batch_size": 3,
        "accumulate_steps": 4,
    },
    {"role": "dense", "listen": "a:1", "stage_queue_bytes": 7},
    {"stages": 4, "virtual": 2, "schedule": "interleaved", "cut": "a,b,c", "trainers": 2},
    {
        "data": "x",
        "format": "parquet",
        "label_column": "y",
        "dense_columns": "a",
        "slot_columns": "b",
    },
)
"""Settings of the modes, of data, and of roles."""


SHOWN = {"metrics_bind": "h:0", "metrics_token_file": "t", "log_format": "json"}
SHOWN |= {"trace": "t", "trace_every": "5", "otel_endpoint": "h:1"}
FLAGLESS = {"offload", "deterministic", "accumulate_avg", "resume", "insecure_bind"}
"""Switches, which take no value."""


def test_every_field_has_a_flag(resolved: list[RunSettings]) -> None:
    """Each setting can be given as a flag and arrives as it was given."""
    values = {
        **SERVERS,
        "data": "x",
        "format": "criteo",
        "bad_lines": "skip",
        "eval_last": 7,
        "model": "lr",
        "dim": 1,
        "optimizer": "sgd",
        "rule": "own.py:Mine",
        "initializer": "zeros",
        "accessor": "ctr",
        "embedx_optimizer": "sgd",
        "admission": "count:n=2",
        "row_dtype": "float16",
        "on_nan": "zero",
        "ttl_days": 9,
        "evict": "lru:rows=5",
        "storage": "file",
        "dense_optimizer": "sgd",
        "epochs": 2,
        "steps": 3,
        "batch_size": 5,
        "seed": 6,
        "device": "cpu",
        "threads": 1,
        "prefetch": 0,
        "window": 2,
        "send_queue_size": 8,
        "send_queue_bytes": 9,
        "max_staleness": 3,
        "barrier_timeout": 1.5,
        "lease_s": 1.5,
        "give_up_after": 1.5,
        "retry": 4,
        "promote_after": 1.5,
        "on_restart": "go_on",
        "dense": "pserver",
        "clip_norm": 0.5,
        "trainers": 3,
        "trainer_id": 2,
    }
    others: dict[str, object] = {"shards": 3, "rows": 8, "scale": 0.5, "alpha": 1.5}
    others |= {"storage": "file", "storage_dir": "d", "checkpoint_dir": "c", "checkpoint_every": 9}
    several: dict[str, object] = {"trainers": 2, "log_dir": "d", "base_samples_per_s": 5.0}
    several |= {"data_mode": "dynamic", "range_rows": 7, **SHOWN}
    every: tuple[Any, ...] = (*OVER_RANKS, *IN_MODES, values, others, several)
    assert {name for given in every for name in given} | FLAGLESS == set(RunSettings.model_fields)

    for given in every:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        assert cli.main(["run", *flags]) == 0
        assert resolved.pop() == RunSettings.make(given, origins={})


# --- the command --------------------------------------------------------------------------------


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """``--version`` prints name and version and exits 0."""
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])

    assert capsys.readouterr().out == f"trainer {pserver.__version__}\n"


def all_commands(
    name: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield a command and those below it, with their names."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below, command in sorted(action.choices.items()):
                yield from all_commands(below, command)


def all_options() -> Iterator[str]:
    """Yield each command's flags with their values."""
    for name, command in all_commands("trainer", make_parser()):
        for action in command._actions:
            if action.option_strings:
                value = f" {action.metavar or action.dest.upper()}" if action.nargs != 0 else ""
                needed = " (required)" if action.required else ""
                yield f"{name} {' '.join(action.option_strings)}{value}{needed}"


def test_no_option_comes_or_goes_unseen() -> None:
    """Every flag of the command stands in the golden file, and nothing else does."""
    text = "\n".join(all_options()) + "\n"
    if os.environ.get(REGENERATE) == "1":
        GOLDEN.write_text(text, encoding="utf-8")

    assert text == GOLDEN.read_text(encoding="utf-8"), f"set {REGENERATE}=1 to rewrite it"
