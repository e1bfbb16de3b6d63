"""What ``pserver.ordinal`` promises: ``--shard auto`` is the number of the pod, or an error."""

import socket

import pytest

from pserver.cli.main import main
from pserver.config import ServeSettings
from pserver.errors import ConfigError
from pserver.options import resolve
from pserver.ordinal import ordinal_of


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Have this machine go by another name."""
    monkeypatch.setattr(socket, "gethostname", lambda: request.param)
    return str(request.param)


@pytest.mark.parametrize(
    ("host", "shard"),
    [("pserver-3", 3), ("a-b-0", 0), ("pserver-12.pserver.training.svc.cluster.local", 12)],
    indirect=["host"],
)
def test_shard_is_the_number_of_the_host_when_it_is_auto(host: str, shard: int) -> None:
    """A flag, a variable and a file may say auto; the shard is the number behind the last dash."""
    for flags, environ in (({"shard": "auto"}, {}), ({}, {"PSERVER_SHARD": "auto"})):
        settings, _ = resolve(
            ServeSettings, {**flags, "shards": 13}, environ=environ, prefix="PSERVER_"
        )

        assert settings.shard == shard


@pytest.mark.parametrize("host", ["pserver-3"], indirect=True)
def test_given_shard_is_taken_before_the_host_name(host: str) -> None:
    """A number is a number, whatever the host is called."""
    assert ServeSettings.make({"shard": "1"}, origins={}).shard == 1


@pytest.mark.parametrize(
    "host", ["laptop", "pserver3", "pserver-", "-3", "pserver-3a"], indirect=True
)
def test_auto_is_refused_when_the_host_has_no_number(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says where auto stood, what a name must be and which it is; exit 2."""
    assert main(["serve", "--shard", "auto"]) == 2

    said = capsys.readouterr().err
    assert said.startswith(
        "pserver serve: flag --shard: auto takes the number at the end of the host"
    )
    assert f"this host is '{host}'" in said


@pytest.mark.parametrize("host", ["pserver-2"], indirect=True)
def test_auto_is_refused_when_the_cluster_has_no_such_shard(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A StatefulSet with more pods than shards: the pod too many says so and exits 2."""
    assert main(["serve", "--shard", "auto", "--shards", "2"]) == 2

    assert "shard must be in [0, 1] for a cluster of 2, got 2" in capsys.readouterr().err


def test_huge_number_is_no_ordinal() -> None:
    """A name that ends in more digits than any StatefulSet counts to is refused."""
    with pytest.raises(ConfigError, match="int"):
        ServeSettings.make({"shard": "one"}, origins={})
    with pytest.raises(ValueError, match="this host is"):
        ordinal_of("node-20261130215125")
