"""What ``pserver.cli.main`` promises: commands, exit status 0, 1 or 2, and one line on errors."""

import functools
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from pserver._version import __version__
from pserver.cli import main as cli
from pserver.client.channel import GrpcChannel
from pserver.config import ServeSettings
from pserver.table.optimizer import RULES, make_optimizer


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ServeSettings]]:
    """Return the settings with which ``serve`` would have run; nothing listens."""
    started: list[ServeSettings] = []

    async def serve(
        settings: ServeSettings, *, announce: Callable[[str], None], connect: object
    ) -> None:
        assert isinstance(connect, functools.partial)
        assert connect.func is GrpcChannel
        started.append(settings)
        announce("ready")

    monkeypatch.setattr(cli, "serve", serve)
    yield started
    structlog.reset_defaults()


def failed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Return the exit status of a command line that must fail, and its one line of error."""
    try:
        status = cli.main(words)
    except SystemExit as error:
        status = int(error.code or 0)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return status, captured.err


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """``--version`` prints name and version and exits 0."""
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])

    assert capsys.readouterr().out == f"pserver {__version__}\n"


@pytest.mark.parametrize(
    "words",
    [[], ["serv"], ["status"], ["serve", "6170"], ["ls"], ["inspect", "--ps", "a:1"], ["plan"]],
)
def test_usage_errors_exit_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """No command, an unknown one, a missing flag and a stray word exit 2 and point to the help."""
    status, text = failed(capsys, *words)

    assert status == 2
    assert text.startswith("pserver")
    assert "--help" in text


def test_unknown_flag_of_a_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown flag is judged by its command's flags."""
    status, text = failed(capsys, "serve", "--metric-bind", "x:1")

    assert status == 2
    assert "pserver serve: unknown option --metric-bind; did you mean '--metrics-bind'?" in text


def test_serve_takes_flags_environment_and_file(
    served: list[ServeSettings],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``serve`` runs with flag over ``PSERVER_`` variable over ``[serve]`` over default."""
    file = tmp_path / "job.toml"
    file.write_text("[serve]\nshard = 1\nshards = 8\nqueue_max = 9\n", encoding="utf-8")
    monkeypatch.setenv("PSERVER_SHARDS", "7")
    monkeypatch.setenv("PSERVER_SHARD", "2")

    status = cli.main(["serve", "--config", str(file), "--shard", "3", "--log-level", "error"])

    assert status == 0
    assert served == [ServeSettings(shard=3, shards=7, queue_max=9, log_level="error")]
    assert capsys.readouterr().out == "ready\n"


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--shards", "0"], "flag --shards: input should be greater than or equal to 1, got '0'"),
        (["--drain-s", "soon"], "flag --drain-s: "),
        (["--config", "none.toml"], "--config none.toml: "),
    ],
)
def test_settings_that_cannot_work_exit_2(
    served: list[ServeSettings], words: list[str], fact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refused setting is one line with its origin, exit 2, and nothing was started."""
    status, text = failed(capsys, "serve", *words)

    assert (status, served) == (2, [])
    assert text.startswith(f"pserver serve: {fact}")
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--shard", "2", "--shards", "2"], "shard must be in [0, 1] for a cluster of 2, got 2"),
        (["--bind", "6170"], "--bind: must be HOST:PORT"),
        (["--bind", "127.0.0.1:0", "--metrics-bind", "9090"], "--metrics-bind: must be HOST:PORT"),
    ],
)
def test_servers_that_cannot_start_exit_2(
    words: list[str], fact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What shows only when the server starts is one line and exit 2 too."""
    status, text = failed(capsys, "serve", "--log-level", "error", *words)
    structlog.reset_defaults()

    assert status == 2
    assert fact in text


def test_status_exits_1_when_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that is not there is named, exit 1: trying again may help."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        endpoint = f"127.0.0.1:{closed.getsockname()[1]}"

    status, text = failed(capsys, "status", "--ps", endpoint, "--timeout", "0.5")

    assert status == 1
    assert text.startswith(f"pserver status: no pserver answers at {endpoint}; is it running")


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--ps", "nowhere"], "servers: must be HOST:PORT"),
        (["--ps", "a:1,a:1"], "servers: a:1 is listed twice"),
        (["--ps", "a:1", "--timeout", "0"], "flag --timeout: input should be greater than 0"),
        (["--ps", "a:1", "--timeout", "x"], "argument --timeout: invalid float value: 'x'"),
    ],
)
def test_status_exits_2_when_it_cannot_be_asked(
    words: list[str], fact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad address or timeout is a setting that cannot work."""
    status, text = failed(capsys, "status", *words)

    assert status == 2
    assert fact in text


def test_optimizers_are_listed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """``optimizers --json`` tells every rule with what it costs at that dim."""
    assert cli.main(["optimizers", "--dim", "7", "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["dim"] == 7
    assert [rule["name"] for rule in told["optimizers"]] == list(RULES)
    for rule in told["optimizers"]:
        optimizer = make_optimizer(rule["name"], dim=7)
        assert (rule["default"], rule["state_floats"]) == (optimizer.text, optimizer.state_dim)
        assert rule["formula"]
        assert rule["source"]


def test_optimizers_are_listed_as_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``optimizers`` prints each rule's name and formula for people."""
    monkeypatch.setenv("COLUMNS", "250")

    assert cli.main(["optimizers"]) == 0

    text = capsys.readouterr().out
    assert "floats of state a row at dim 16" in text
    assert all(name in text for name in RULES)


def test_optimizers_refuse_a_dim_of_0(capsys: pytest.CaptureFixture[str]) -> None:
    """A dim below 1 is refused with what must hold."""
    assert failed(capsys, "optimizers", "--dim", "0") == (
        2,
        "pserver optimizers: --dim must be at least 1, got 0\n",
    )
