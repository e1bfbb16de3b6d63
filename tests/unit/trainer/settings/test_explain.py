"""What ``trainer config explain`` promises: every setting, its value, and where it came from."""

import json
import os
from pathlib import Path

import pytest

from trainer.cli import main as cli
from trainer.config import RunSettings

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "explain.txt"
REGENERATE = "PSERVER_WRITE_GOLDEN"

pytestmark = pytest.mark.usefixtures("command_line")


@pytest.fixture
def job(command_line: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have settings from every kind of source; the working folder is the file's."""
    assert command_line is None  # it has taken the others away
    monkeypatch.chdir(tmp_path)
    text = "[run]\nepochs = 2\na_sync = true\na_sync_configs = { k_step = 100 }\n"
    Path("job.toml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("TRAINER_BATCH_SIZE", "512")
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "4")


WORDS = ["config", "explain", "--config", "job.toml", "--seed", "7"]


@pytest.mark.usefixtures("job")
def test_table_is_as_agreed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each value stands with its origin, as the golden file has it."""
    assert cli.main(WORDS) == 0

    text = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
    if os.environ.get(REGENERATE) == "1":
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8"), f"set {REGENERATE}=1 to rewrite it"


@pytest.mark.usefixtures("job")
def test_json_has_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` prints one object: by setting its value, its origin, and whether it is read."""
    assert cli.main([*WORDS, "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert set(told) == set(RunSettings.model_fields)
    assert told["seed"] == {"value": 7, "from": "flag --seed", "read": True}
    assert told["batch_size"]["from"] == "environment TRAINER_BATCH_SIZE"
    assert told["trainers"] == {"value": 4, "from": "environment PADDLE_TRAINERS_NUM", "read": True}
    assert told["epochs"]["from"] == "job.toml:run.epochs"
    assert told["mode"] == {"value": "geo", "from": "alias job.toml:run.a_sync", "read": True}
    assert told["k_steps"]["from"] == "alias job.toml:run.a_sync_configs.k_step"
    assert told["dense"] == {"value": "pserver", "from": "default with 4 trainers", "read": True}
    assert told["on_missing"] == {"value": "fail", "from": "default", "read": False}


def test_mode_is_told_where_it_was_not_given(capsys: pytest.CaptureFixture[str]) -> None:
    """No mode is chosen in silence: the default is shown as such."""
    assert cli.main(["config", "explain", "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["mode"] == {"value": "async", "from": "default", "read": True}


def test_settings_that_cannot_work_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """What ``run`` refuses, ``config explain`` refuses too."""
    assert cli.main(["config", "explain", "--k-steps", "3"]) == 2

    assert "k_steps has no effect in mode async, only in geo" in capsys.readouterr().err
