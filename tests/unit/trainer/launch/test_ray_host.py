"""What ``trainer.launch.ray_host`` promises of one process, without Ray: its class is plain Python."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import pserver
from trainer.launch.ray_host import Host, Order, Told, write_whole

WAIT_S = 30.0
TURNS_MAX = 60  # of a second at the most each
HERE = "127.0.0.1"
PROGRAM = """\
import pathlib, sys
print(sys.argv[1:], flush=True)
print("said", file=sys.stderr, flush=True)
if "wait" in sys.argv:
    sys.stdin.read()
    import signal; signal.pause()
sys.exit(3)
"""

Make = Callable[..., Host]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Return a maker of hosts whose process is a small program; all end."""
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    paths = [str(tmp_path), *sys.path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.chdir(tmp_path)
    made: list[Host] = []

    def make(*, listens: bool = False, cwd: str = str(tmp_path)) -> Host:
        order = Order("server 1", "program", listens, cwd, str(tmp_path / "own" / "server-1"))
        made.append(Host(order, HERE))
        return made[-1]

    yield make
    for host in made:
        host.end()


def heard(host: Host, *words: str, turn: int = 0) -> tuple[list[str], str, int | None, int]:
    """Ask until the process ended, or has printed and said something; return that, and the next turn."""
    lines: list[str] = []
    log = ""
    told = Told((), "", None)
    while told.status is None and not (lines and log and "wait" in words):
        told = host.ask(turn, words, {"shard-0": "a:1"})
        lines += told.lines
        log += told.log
        turn += 1
        assert turn < TURNS_MAX
    return lines, log, told.status, turn


def test_a_process_is_told_of_until_its_end_and_started_again_after_it(
    make: Make, tmp_path: Path
) -> None:
    """Its lines, its log and its status come; the next question starts it anew with the words of then."""
    host = make(listens=True)

    first = heard(host, "a")
    second = heard(host, "b", turn=first[3])

    bind = f"--bind={HERE}:0"
    assert first[:3] == ([str(["a", bind])], "said\n", 3)
    assert second[:3] == ([str(["b", bind])], "said\n", 3)
    assert (tmp_path / "own" / "server-1" / "shard-0").read_text(encoding="utf-8") == "a:1"


def test_an_answer_that_was_lost_is_told_again(make: Make) -> None:
    """The same turn gets the same answer, and no process is started for it."""
    host = make()
    *_, turn = heard(host)

    assert host.ask(turn - 1, (), {}) == host.ask(turn - 1, (), {})
    assert host.ask(turn - 1, (), {}).status == 3


def test_the_end_of_a_host_ends_its_process_and_removes_its_folder(
    make: Make, tmp_path: Path
) -> None:
    """Nothing is left on the machine, and a host without a process has nothing to end."""
    host = make()
    before = set(psutil.Process().children(recursive=True))
    heard(host, "wait")
    started = set(psutil.Process().children(recursive=True)) - before
    assert started

    assert host.end() == ""

    assert psutil.wait_procs(started, timeout=WAIT_S)[1] == []
    assert not (tmp_path / "own" / "server-1").exists()
    assert make().end() == ""


def test_a_machine_without_the_folder_of_the_job_is_refused(make: Make, tmp_path: Path) -> None:
    """Relative names would mean something else there, so the error says which folder is missing where."""
    with pytest.raises(
        pserver.ConfigError, match=f"server 1: {HERE} has no folder {tmp_path}/gone"
    ):
        make(cwd=str(tmp_path / "gone")).ask(0, (), {})


def test_a_free_place_is_of_this_machine(make: Make) -> None:
    """Trainers can meet there."""
    host, _, port = make().free_place().rpartition(":")

    assert host == HERE
    assert 0 < int(port) < 65536


def test_a_file_is_written_only_when_it_changes(tmp_path: Path) -> None:
    """Whoever reads it finds one text or the other, and nothing beside it is left."""
    file = tmp_path / "shard-0"

    write_whole(file, "a:1")
    before = file.stat().st_ino
    write_whole(file, "a:1")
    same = file.stat().st_ino
    write_whole(file, "b:2")

    assert same == before != file.stat().st_ino
    assert [path.name for path in tmp_path.iterdir()] == ["shard-0"]
    assert file.read_text(encoding="utf-8") == "b:2"
