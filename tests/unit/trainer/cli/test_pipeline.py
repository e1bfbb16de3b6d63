"""``trainer pipeline plan``: the timetable on the screen and in a file."""

import re

import pytest

from collective.pipeline_timetable import SCHEDULES
from trainer.cli import main as cli
from trainer.cli import pipeline as cli_pipeline

pytestmark = pytest.mark.usefixtures("command_line")


def test_plan_prints_the_timetable_and_its_bubble(capsys, tmp_path):
    """Rows, share against the formula, and a PNG where it was asked for."""
    target = tmp_path / "plan.png"

    status = cli.main(
        ["pipeline", "plan", "--stages", "2", "--micro-batches", "2", "--png", str(target)]
    )

    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    assert lines[:2] == [
        "rank 0 |F0 F1 .  .  B0 =  .  B1 = |",
        "rank 1 |.  F0 B0 =  F1 B1 =  .  . |",
    ]
    assert "(S-1)/(M+S-1) = 33.3%" in lines[2]
    assert target.read_bytes().startswith(b"\x89PNG")


def test_measure_tells_the_bubble_beside_the_plan(capsys):
    """``--measure`` adds a line: measured share and time, and the planned time."""
    status = cli.main(
        ["pipeline", "plan", "--stages", "2", "--micro-batches", "2", "--measure", "2"]
    )

    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    assert re.fullmatch(
        r"measured: bubble \d+\.\d%, \d+ ms a step \(planned 18 ms; median of 5\), at most \d+ .*",
        lines[-1],
    )


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--stages", "3", "--virtual", "2"], "3 stages do not divide into 2 a rank"),
        (["--virtual", "2"], "1f1b has one stage a rank"),
        (["--micro-batches", "0"], "micro_batches must be in [1, 4096], got 0"),
        (["--measure", "0"], "a tick takes more than 0 and at most 1 s, got 0 s"),
        (["--stages", "33", "--measure"], "at most 32 ranks are measured, got 33"),
        (["--png", "no/such/folder.png"], "--png no/such/folder.png: No such file"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_reason(capsys, flags, text):
    """Exit status 2, and one line that says why."""
    status = cli.main(["pipeline", "plan", *flags])

    assert status == 2
    assert text in capsys.readouterr().err


def test_the_schedules_are_those_of_the_library():
    """The list that the command shows without loading torch is the library's."""
    assert cli_pipeline._SCHEDULES == SCHEDULES
