"""What ``trainer.cli.main`` promises when something is wrong: one line that says what, and exit 1 or 2."""

import signal
from pathlib import Path

import pytest

import pserver
from tests.unit.trainer.models import SMALL_FLAGS
from trainer.cli import main as cli
from trainer.config import RunSettings
from trainer.job import run as job
from trainer.job.summary import Summary

pytestmark = pytest.mark.usefixtures("command_line")


def failed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Return the exit status of a command line that must fail, and what it says."""
    try:
        status = cli.main(words)
    except SystemExit as error:
        status = int(str(error.code))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return status, captured.err


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--optimiser", "lr"], "unknown option --optimiser; did you mean '--optimizer'?"),
        (["--batchsize=3"], "unknown option --batchsize=3; did you mean '--batch-size'?"),
        (
            ["--model", "deepfn"],
            "flag --model: unknown value",
        ),
        (
            ["--optimizer", "adagard", *SMALL_FLAGS],
            "unknown rule 'adagard'; did you mean 'adagrad'?",
        ),
        (["--optimizer", "adam:bta1=0", *SMALL_FLAGS], "did you mean 'beta1'?"),
        (
            ["--dense-optimizer", "adm", *SMALL_FLAGS],
            "--dense-optimizer: unknown rule 'adm'; did you",
        ),
        (["--initializer", "unform", *SMALL_FLAGS], "did you mean 'uniform'?"),
        (
            ["--model", "lr", *SMALL_FLAGS],
            "--dim: model lr: dim must be at least 1 and at most 1, got 4",
        ),
        (["--epochs", "0"], "flag --epochs: input should be greater than or equal to 1, got '0'"),
        (["--steps", "many"], "flag --steps: input should be a valid integer"),
        (["--config", "none.toml"], "--config none.toml: "),
        (["--eval-data", "x"], "eval_data needs data"),
        (["--ps", "nowhere"], "must be HOST:PORT"),
    ],
)
def test_settings_that_cannot_work_exit_2(
    words: list[str], fact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typo or a value that cannot be is one line with the nearest valid name, exit 2."""
    status, text = failed(capsys, "run", *words)

    assert status == 2
    assert text.startswith("trainer run: ")
    assert fact in text


def test_unknown_key_of_the_file_exits_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key of ``[run]`` that is no setting names the file and the nearest one."""
    file = tmp_path / "job.toml"
    file.write_text("[run]\nepoch = 2\n", encoding="utf-8")

    status, text = failed(capsys, "run", "--config", str(file))

    assert status == 2
    assert f"{file}: [run] has no setting 'epoch'; did you mean 'epochs'?" in text


@pytest.mark.parametrize("words", [[], ["rnu"], ["run", "fast"], ["run", "--steps"]])
def test_usage_errors_exit_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """No command, an unknown one, a stray word and a flag without value point to the help."""
    status, text = failed(capsys, *words)

    assert status == 2
    assert text.startswith("trainer")
    assert "--help" in text


def test_cuda_that_is_absent_exits_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asking for a GPU that is not there is refused before anything is trained."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    status, text = failed(capsys, "run", *SMALL_FLAGS, "--device", "cuda")

    assert status == 2
    assert text == ("trainer run: --device cuda: torch finds no CUDA device; use auto or cpu\n")


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        (["--data", "{none}"], "{none}: cannot be read: No such file or directory"),
        (["--data", "{empty}"], "{empty}: 0 rows: nothing is left to train on"),
        (["--data", "{hundred}", "--eval-last", "100"], "the last 100 are held out: nothing is"),
        (["--data", "{hundred}", "--eval-data", "{none}"], "{none}: cannot be read"),
        (["--data", "{hundred}", "--eval-data", "{empty}"], "{empty}: 0 rows: nothing to score"),
        (["--data", "{bad}", "--device", "cpu"], "{bad}:1: "),
    ],
)
def test_data_that_cannot_be_used_exits_1(
    flags: list[str],
    fact: str,
    hundred: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A file that is missing, empty, too short or bad is one line that names it, exit 1."""
    (tmp_path / "empty").touch()
    (tmp_path / "bad").write_text("no row\n", encoding="utf-8")
    paths = {name: str(tmp_path / name) for name in ("none", "empty", "bad")}
    paths["hundred"] = str(hundred)

    status, text = failed(capsys, "run", *(flag.format(**paths) for flag in flags))

    assert status == 1
    assert text.startswith("trainer run: ")
    assert fact.format(**paths) in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (pserver.DeadlineError("late"), 1),
        (pserver.RestartedError("gone"), 1),
        (pserver.SpecMismatchError("another"), 2),
        (pserver.ConfigError("no"), 2),
    ],
)
def test_errors_of_servers_have_their_status(
    error: Exception,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What servers and settings raise is one line; 2 only where trying again cannot help."""

    def run(_: RunSettings, **__: object) -> Summary:
        raise error

    monkeypatch.setattr(job, "run", run)

    assert failed(capsys, "run") == (status, f"trainer run: {error}\n")


def test_interrupt_exits_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends a run with one word and the status that shells know."""

    def run(_: RunSettings, **__: object) -> Summary:
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "run", run)

    assert failed(capsys, "run") == (130, "trainer run: interrupted\n")


def test_sigterm_exits_143(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGTERM ends a run with one word and its own status, and is nobody's afterwards."""
    before = signal.getsignal(signal.SIGTERM)

    def run(_: RunSettings, **__: object) -> Summary:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("the signal is handled before this")

    monkeypatch.setattr(job, "run", run)

    assert failed(capsys, "run") == (143, "trainer run: ended by SIGTERM\n")
    assert signal.getsignal(signal.SIGTERM) is before
