"""``trainer launch``: what its flags say, under each launcher's names, and what is refused before it starts."""

from pathlib import Path

import pytest

from trainer.cli import launch as cli_launch
from trainer.cli import main as cli
from trainer.launch import ranks as launch_ranks
from trainer.launch.ranks import Launch, command_of

NODES = "10.0.0.1,10.0.0.2"


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Launch]:
    """Return what would have been started; nothing is."""
    found: list[Launch] = []
    monkeypatch.chdir(tmp_path)
    Path("job.toml").touch()
    Path("train.py").touch()
    monkeypatch.setattr(launch_ranks, "run_ranks", lambda launch, **_: found.append(launch))
    return found


def test_nodes_and_ranks_are_taken_by_torchruns_names(launched: list[Launch]) -> None:
    """Two nodes of two ranks, of which this is the second; what comes after the target is the target's."""
    words = ["--nnodes", "2", "--nproc_per_node", "2", "--node-ip", "10.0.0.2"]
    words += ["--cluster-node-ips", NODES, "--max_restarts", "3"]

    assert cli.main(["launch", *words, "job.toml", "--dim", "8"]) == 0

    (launch,) = launched
    assert (launch.nodes_min, launch.nodes_max, launch.ranks) == (2, 2, 2)
    assert (launch.node_ip, list(launch.ips)) == ("10.0.0.2", NODES.split(","))
    assert (launch.max_restarts, launch.is_alone) == (3, False)
    assert command_of(launch)[2:] == ["-m", "trainer", "run", "--config", "job.toml", "--dim", "8"]


def test_paddles_names_say_the_same(launched: list[Launch]) -> None:
    """``--trainers`` gives nodes and ranks; the others servers, ranks and devices of one node."""
    places = "10.0.0.1:6170,10.0.0.1:6171,10.0.0.2:6170,10.0.0.2:6171"
    servers = ["--servers", "10.0.0.9:7000"]
    assert (
        cli.main(["launch", "--trainers", places, "--node-ip", "10.0.0.1", *servers, "train.py"])
        == 0
    )
    assert cli.main(["launch", "--worker_num", "2", "--server_num", "3", "train.py", "-v"]) == 0
    assert cli.main(["launch", "--devices", "0,1,2", "train.py"]) == 0

    many, few, cards = launched
    assert (list(many.ips), many.ranks, many.servers) == (NODES.split(","), 2, "10.0.0.9:7000")
    assert (few.ranks, few.server_num, few.is_alone) == (2, 3, True)
    assert command_of(few)[1:] == ["-u", "train.py", "-v"]
    assert (cards.ranks, cards.devices) == (3, "0,1,2")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("other.py", "there is no file 'other.py'"),
        ("train.sh", "takes a job.toml of `trainer run` or a script.py, got 'train.sh'"),
        ("--nnodes two train.py", "nnodes must be N or MIN:MAX, got 'two'"),
        ("--nnodes 2 train.py", "nnodes says 2 and cluster_node_ips has 0 addresses"),
        (f"--cluster-node-ips {NODES} train.py", "give node_ip, one of 10.0.0.1, 10.0.0.2"),
        (
            f"--cluster-node-ips {NODES} --node-ip 10.0.0.3 train.py",
            "node_ip must be one of cluster_node_ips 10.0.0.1, 10.0.0.2, got '10.0.0.3'",
        ),
        ("--devices 0,1 --worker_num 3 train.py", "devices says 2 and nproc_per_node says 3"),
        ("--worker_num 0 train.py", "nproc_per_node must be at least 1, got 0"),
        ("--max-restarts -1 train.py", "max_restarts must be at least 0, got -1"),
        ("--servers a:1 --server_num 1 train.py", "give servers or server_num, not both"),
        (
            f"--cluster-node-ips {NODES} --node-ip 10.0.0.1 --server_num 1 train.py",
            "with several nodes start them by `pserver serve`",
        ),
        ("--trainers 10.0.0.1:1,10.0.0.1:2,10.0.0.2:1 train.py", "as many ranks on each node"),
    ],
)
def test_what_cannot_be_started_is_refused(
    words: str, text: str, launched: list[Launch], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 with the reason; nothing is started."""
    assert cli.main(["launch", *words.split()]) == 2
    assert text in capsys.readouterr().err
    assert not launched


def test_the_port_in_the_help_is_the_rooms_own() -> None:
    """It is written twice, since one of the rooms is loaded late."""
    assert cli_launch._PORT == launch_ranks.PORT
