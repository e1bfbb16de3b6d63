"""What ``pserver trace`` shows: the spans of one batch, of all, and what the step's time went into."""

import json
from pathlib import Path

import pytest

from pserver.cli.main import main
from tests.unit.trace.traces import span, write


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    """Return a merged trace of two batches of which the second one's step is slower."""
    events = []
    for batch, slow in ((1, 0), (2, 5000)):
        at, own = 100_000.0 * batch, 100 * batch
        events += [
            span("batch", at, at + 9000 + slow, own=own, batch=batch, tid=2),
            span("step", at + 2000, at + 8000 + slow, own=own + 1, parent=own, batch=batch),
            span("compute", at + 2000, at + 6000, own=own + 2, parent=own + 1, batch=batch),
            span("wait rows", at + 2000, at + 3000, own=own + 3, parent=own + 2, batch=batch),
            span("push", at + 6000, at + 7500 + slow, own=own + 4, parent=own + 1, batch=batch),
        ]
    trainer = write(tmp_path / "t.json", 1, "trainer 0", events, clocks={2: [(0.0, 900.0, 1100.0)]})
    server = write(tmp_path / "s.json", 2, "shard 0", [])
    out = tmp_path / "m.json"
    assert main(["trace", "merge", str(trainer), str(server), "-o", str(out)]) == 0
    return out


def test_merge_says_how_far_clocks_were_moved(
    merged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each process has a line with its offset and the error of that; the last one says where the result is."""
    files = [str(merged.with_name(name)) for name in ("t.json", "s.json")]
    capsys.readouterr()

    assert main(["trace", "merge", *files, "-o", str(merged)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "trainer 0: clock moved by +0.000 ms, known to 0.000 ms",
        "shard 0: clock moved by -1.000 ms, known to 0.100 ms",
    ]
    assert lines[2].startswith(f"10 spans in {merged}")


def test_a_batch_is_shown_with_what_its_step_spent_its_time_on(
    merged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every span has a line with its begin and duration; the shares of the step add up to it."""
    capsys.readouterr()

    assert main(["trace", "show", str(merged), "--batch", "1"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "batch 1 of trainer 0: 9.000 ms from reading it to its last reply; its step took 6.000 ms"
    )
    assert lines[2:] == [
        "     2.000      6.000  step  [trainer 0, track]",
        "     2.000      4.000    compute  [trainer 0, track]",
        "     2.000      1.000      wait rows  [trainer 0, track]",
        "     6.000      1.500    push  [trainer 0, track]",
        "the step: compute 3.000 ms (50%), wait rows 1.000 ms (17%), push 1.500 ms (25%), "
        "the rest 0.500 ms (8%)",
    ]


def test_all_batches_are_shown_with_the_slowest_first(
    merged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without ``--batch`` each kind of span has a row, and the slowest steps are named."""
    capsys.readouterr()

    assert main(["trace", "show", str(merged), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(["trace", "show", str(merged)]) == 0
    shown = capsys.readouterr().out

    assert told["batches"] == 2
    assert [one["batch"] for one in told["slowest"]] == [2, 1]
    push = next(row for row in told["spans"] if row["name"] == "push")
    assert (push["spans"], round(push["max_ms"], 3), round(push["ms_a_batch"], 3)) == (2, 6.5, 4.0)
    assert "slowest steps: 2 of trainer 0 (11.000 ms), 1 of trainer 0 (6.000 ms)" in shown


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch", "3"], "--batch 3: not in this trace, which has 2 batches from 1 to 2"),
        (["--trainer", "nobody"], "--trainer 'nobody': has no batch in this trace; there are"),
    ],
)
def test_what_is_not_in_a_trace_is_refused(
    merged: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    """A batch or trainer that is not there is an error that says what is."""
    assert main(["trace", "show", str(merged), *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_server_alone_has_no_batch_to_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file of a server says to merge it first."""
    server = write(tmp_path / "s.json", 2, "shard 0", [span("turn", 0, 1, own=3)])

    assert main(["trace", "show", str(server)]) == 2
    assert (
        "has no batch as a whole: merge it with the file of the trainer" in capsys.readouterr().err
    )
