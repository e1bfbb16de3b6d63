"""What ``pserver.paddle`` promises: a server finds its place in PaddlePaddle's launch environment."""

import pytest

from pserver.config import ServeSettings
from pserver.errors import ConfigError
from pserver.options import resolve
from pserver.paddle import ServeAliases, read_paddle

SERVER = {
    "TRAINING_ROLE": "PSERVER",
    "PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:6170,10.0.0.2:6170,10.0.0.1:6171",
    "POD_IP": "10.0.0.1",
    "PADDLE_PORT": "6171",
    "PADDLE_TRAINERS_NUM": "4",
}


def resolved(environ: dict[str, str], **flags: object) -> tuple[ServeSettings, dict[str, str]]:
    """Return a server's settings and where they came from."""
    return resolve(ServeSettings, flags, environ=environ, prefix="PSERVER_", aliases=ServeAliases())


@pytest.mark.parametrize("name", ["PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_PSERVER_ENDPOINTS"])
def test_server_finds_its_shard_by_its_address(name: str) -> None:
    """The place of POD_IP:PADDLE_PORT in either list is the shard, and is where it listens."""
    environ = {**SERVER, name: SERVER["PADDLE_PSERVERS_IP_PORT_LIST"]}
    if name not in SERVER:
        del environ["PADDLE_PSERVERS_IP_PORT_LIST"]

    settings, origins = resolved(environ)

    assert (settings.shard, settings.shards, settings.bind) == (2, 3, "10.0.0.1:6171")
    assert origins["shard"] == origins["shards"] == f"environment {name}"
    assert origins["bind"] == "environment POD_IP:PADDLE_PORT"


def test_flag_wins_over_the_launch_environment() -> None:
    """A flag is taken before what a launcher says."""
    settings, _ = resolved(SERVER, bind="0.0.0.0:7000")

    assert (settings.shard, settings.bind) == (2, "0.0.0.0:7000")


def test_environment_without_a_role_says_nothing() -> None:
    """Variables of an image that is no launched server change nothing."""
    assert resolved({"POD_IP": "10.0.0.1", "PADDLE_PORT": "6171"})[0] == ServeSettings()


@pytest.mark.parametrize("name", ["PADDLE_PSERVERS_IP_PORT_LIST", "POD_IP", "PADDLE_PORT"])
def test_missing_variable_is_named(name: str) -> None:
    """A launched server that cannot know its place says what is missing."""
    environ = {key: value for key, value in SERVER.items() if key != name}

    with pytest.raises(ConfigError, match=f"TRAINING_ROLE=PSERVER needs {name}"):
        resolved(environ)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"PADDLE_PORT": "9"}, "POD_IP:PADDLE_PORT 10.0.0.1:9 must stand once in PADDLE_PSERVERS_"),
        (
            {"PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:6171,10.0.0.1:6171"},
            "must stand once in PADDLE_PSERVERS_IP_PORT_LIST, which is 10.0.0.1:6171,10.0.0.1:6171",
        ),
        ({"TRAINING_ROLE": "TRAINER"}, "TRAINING_ROLE=TRAINER is for `trainer run`, and this is"),
        ({"TRAINING_ROLE": "HETER"}, "unknown role 'HETER'; "),
        ({"PADDLE_PSERVER_ENDPOINTS": "10.0.0.3:1"}, "must be the same list"),
        ({"PADDLE_PORTS": "1"}, "did you mean PADDLE_PORT?"),
        ({"PSERVER_SHARD": "0"}, "environment PSERVER_SHARD says 0 and environment PADDLE_PSERV"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, str], fact: str) -> None:
    """An address that is not listed, another role and contradictions are errors."""
    with pytest.raises(ConfigError) as caught:
        resolved({**SERVER, **change})

    assert fact in str(caught.value)


def test_empty_variables_say_nothing() -> None:
    """A launcher that sets a variable to nothing has not set it."""
    assert read_paddle({"TRAINING_ROLE": "", "POD_IP": ""}, role="TRAINER") == {}
