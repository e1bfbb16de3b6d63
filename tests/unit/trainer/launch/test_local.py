"""What ``trainer.launch.local`` promises: each trainer gets the settings that were given, and its place."""

import contextlib
import queue
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pserver
from tests.unit.trainer.cli.test_main import nothing
from trainer.cli.main import make_parser
from trainer.config import RunSettings
from trainer.errors import TrainerError
from trainer.job.summary import merged_summary
from trainer.launch import child as launch_child
from trainer.launch import local
from trainer.launch.child import Child, Events, end_all
from trainer.launch.local import _endpoints, _failed, trainer_flags

WAIT_S = 30.0


@contextlib.contextmanager
def child(code: str, log: Path) -> Iterator[tuple[Child, Events]]:
    """Give a process that runs some Python, and its lines; end it."""
    events: Events = queue.Queue()
    one = Child("it", 0, [sys.executable, "-c", code], log=log, environ={}, events=events)
    try:
        yield one, events
    finally:
        end_all([one])


def ending(status: int) -> str:
    """Return Python that ends with a status; below 0 it is a signal."""
    return (
        f"import os; os.kill(os.getpid(), {-status})"
        if status < 0
        else f"raise SystemExit({status})"
    )


def test_flags_give_a_trainer_the_settings_and_its_place() -> None:
    """What was given is given again, resolved; what is for all of them is not."""
    settings = RunSettings.make(
        {
            "trainers": 4,
            "mode": "sync",
            "deterministic": True,
            "shards": 3,
            "log_dir": "d",
            "data": "a b.txt",
            "epochs": 2,
            "threads": 3,
        },
        origins={},
    )

    flags = trainer_flags(settings, 2, ps="h:1,h:2", master="h:9")

    given = vars(make_parser().parse_args(["run", *flags]))
    resolved, _ = pserver.resolve(RunSettings, given, environ={}, prefix="TRAINER_")
    expected = {"trainers": 4, "mode": "sync", "deterministic": True, "data": "a b.txt"}
    assert {name: getattr(resolved, name) for name in resolved.model_fields_set} == {
        **expected,
        "epochs": 2,
        "threads": 3,
        "ps": "h:1,h:2",
        "trainer_id": 2,
    }
    assert given["json"]
    assert given["json_progress"]


def test_trainers_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless threads are given, each trainer's torch gets its part of the cores, at least one."""
    monkeypatch.setattr(local, "usable_cores", lambda: 8)

    for trainers, threads in [(2, 4), (3, 2), (16, 1)]:
        flags = trainer_flags(RunSettings(trainers=trainers), 0, ps="h:1", master="h:9")
        assert f"--threads={threads}" in flags


def test_lines_and_end_of_a_child_come_in_order(tmp_path: Path) -> None:
    """What a process prints comes line by line, then its end; its errors are in its log."""
    code = "import sys; print('a'); print('b é'); print('x\\nlast words\\n', file=sys.stderr); sys.exit(3)"
    with child(code, tmp_path / "log") as (one, events):
        lines = [events.get(timeout=WAIT_S)[1] for _ in range(3)]

        assert lines == ["a", "b é", None]
        assert one.wait() == 3
        assert one.reason() == "last words"


def test_child_that_says_nothing_has_no_reason(tmp_path: Path) -> None:
    """An empty log is told as such."""
    with child("", tmp_path / "log") as (one, _):
        assert one.wait() == 0
        assert one.reason() == "it said nothing"


def test_child_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM first; a process that ignores it is ended by force."""
    monkeypatch.setattr(launch_child, "END_S", 0.2)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(99)"
    with child(code, tmp_path / "log") as (one, events):
        assert events.get(timeout=WAIT_S)[1] == "up"
        end_all([one])

        assert one.wait() == -9


def test_server_that_does_not_start_is_told(tmp_path: Path) -> None:
    """A server that ends before it is ready is an error with its last words and its log."""
    code = "import sys; sys.exit('the port is taken')"
    with (
        child(code, tmp_path / "log") as (one, events),
        pytest.raises(
            TrainerError, match=r"it ended with status 1 .*: the port is taken; its log is"
        ),
    ):
        _endpoints([one], events)


def test_summaries_of_trainers_become_one() -> None:
    """Counts are added, time is the slowest's, the score is trainer 0's, failures are warnings."""
    trainers = [
        nothing(
            steps=number + 1,
            samples=100 * (number + 1),
            seconds=2.0 * (number + 1),
            train_auc=0.5 + 0.1 * number,
            auc=0.7 if number == 0 else None,
            comm_share=0.1,
            bad_lines=number,
            first_bad_lines=[f"x:{number}"] * 4,
            watch={"loss": 0.5 + number},
            lost=[{"shard": 1, "restarts": 2 - number, "pushes": 5, "rows": 7 + number}],
        )
        for number in range(2)
    ]

    summary = merged_summary(trainers, ["trainer 2 is gone"], base=25.0)

    assert (summary.trainers, summary.steps, summary.samples, summary.seconds) == (2, 3, 300, 4.0)
    assert (summary.samples_per_s, summary.speedup) == (75.0, 3.0)
    assert summary.train_auc == pytest.approx((0.5 * 100 + 0.6 * 200) / 300)
    assert (summary.auc, summary.bad_lines) == (0.7, 1)
    assert summary.first_bad_lines == ["x:0"] * 4 + ["x:1"]
    assert summary.watch == {"loss": 1.0, "loss_spread": 1.0}
    assert summary.lost == [{"shard": 1, "restarts": 2, "pushes": 10, "rows": 8}]
    first, second = summary.warnings
    assert first == "trainer 2 is gone"
    assert second.startswith(
        "shard 1 came back without what it held, 2 times: 10 acknowledged pushes to it are lost, and "
        "the state of the 8 rows"
    )


SIGKILL = -9


@pytest.mark.parametrize(
    ("values", "status", "facts"),
    [
        ({"mode": "async"}, SIGKILL, ["it was killed by SIGKILL: ", "step 7", "its share was not"]),
        ({"data_mode": "dynamic"}, SIGKILL, ["the ranges that it held went to the others"]),
        ({"mode": "geo", "k_steps": 5}, SIGKILL, ["its last window, up to 5 steps, was not told"]),
        ({"mode": "sync", "on_missing": "drop"}, 1, ["it ended with status 1: ", "its share"]),
        ({"mode": "sync", "on_missing": "wait"}, SIGKILL, ["killed by SIGKILL", "its share"]),
    ],
)
def test_others_go_on_and_what_is_lost_is_told(
    values: dict[str, object], status: int, facts: list[str], tmp_path: Path
) -> None:
    """A trainer that nobody has to wait for becomes a warning with its last step and its rows."""
    settings = RunSettings.make({"trainers": 2, "data": "x", **values}, origins={})
    with child(ending(status), tmp_path / "log") as (one, _):
        told = _failed(settings, one, step=7)

    assert all(fact in told for fact in facts), told


@pytest.mark.parametrize(
    ("values", "status"), [({"mode": "sync"}, SIGKILL), ({"mode": "async"}, 1), ({}, 1)]
)
def test_a_failure_ends_the_others(values: dict[str, object], status: int, tmp_path: Path) -> None:
    """An error of its own ends the job, and in sync any end does that ``on_missing`` does not allow."""
    settings = RunSettings.make({"trainers": 2, **values}, origins={})
    with (
        child(ending(status), tmp_path / "log") as (one, _),
        pytest.raises(TrainerError, match="the others were ended"),
    ):
        _failed(settings, one, step=7)
