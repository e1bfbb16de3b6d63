"""What ``trace.merge`` promises: spans of all processes on one clock, or an error that says what is missing."""

from pathlib import Path

import pytest

from pserver.errors import ConfigError
from pserver.trace.merge import merge, read_trace
from tests.chrome_format import check_events
from tests.unit.trace.traces import span, write


def begins(events: list[dict[str, object]]) -> dict[object, object]:
    """Return when each span begins, by name."""
    return {event["name"]: event["ts"] for event in events if event["ph"] == "X"}


def test_a_server_is_moved_to_its_trainers_clock(tmp_path: Path) -> None:
    """A server whose clock is 5 s behind, give or take 10 µs: its spans come where they were, inside the call."""
    wire = span("wire", 1000, 2000, own=5, parent=4)
    answer = span("answer", 1500 - 5e6, 1600 - 5e6, own=6, parent=5)
    trainer = write(
        tmp_path / "t.json", 1, "trainer 0", [wire], clocks={2: [(5e6, -5e6 - 10, -5e6 + 10)]}
    )
    server = write(tmp_path / "s.json", 2, "shard 0", [answer])

    about, events = merge([server, trainer])

    check_events(events)
    assert begins(events) == {"wire": 1000, "answer": 1500}
    moved = {one["name"]: (one["offset_us"], one["offset_error_us"]) for one in about["processes"]}
    assert moved == {"trainer 0": (0, 0), "shard 0": (5e6, 10)}
    assert [one["ph"] for one in events if one["name"] == "call"] == ["s", "f"] or [
        one["ph"] for one in events if one["name"] == "call"
    ] == ["s", "t", "f"]


def test_a_clock_that_drifts_is_followed_over_its_windows(tmp_path: Path) -> None:
    """Where no offset suits all windows, the middles of two are joined by a line."""
    windows = [(0.0, 90.0, 110.0), (10e6, 990.0, 1010.0)]
    trainer = write(tmp_path / "t.json", 1, "trainer 0", [], clocks={2: windows})
    told = [span(str(at), at + 100 + at * 90e-6, at + 200 + at * 90e-6, own=1) for at in (0, 5e6)]
    server = write(tmp_path / "s.json", 2, "shard 0", told)

    _, events = merge([trainer, server])

    found = begins(events)
    assert found["0"] == pytest.approx(0, abs=0.1)
    assert found["5000000.0"] == pytest.approx(5e6, abs=0.1)


def test_another_trainer_is_reached_over_the_servers_that_both_used(tmp_path: Path) -> None:
    """Trainers say nothing of each other: the way goes over the server whose clock is known best."""
    one = write(
        tmp_path / "a.json",
        1,
        "trainer 0",
        [],
        clocks={3: [(0.0, 50.0, 150.0)], 4: [(0.0, 199.0, 201.0)]},
    )
    other = write(
        tmp_path / "b.json",
        2,
        "trainer 1",
        [span("step", 7, 8, own=1)],
        clocks={3: [(0.0, 0.0, 100.0)], 4: [(0.0, 29.0, 31.0)]},
    )
    servers = [write(tmp_path / f"{n}.json", n, f"shard {n}", []) for n in (3, 4)]

    about, events = merge([one, other, *servers])

    assert begins(events) == {"step": 7 + 30 - 200}
    assert about["processes"][1]["offset_error_us"] == 2


def test_a_process_that_nothing_is_known_of_is_refused(tmp_path: Path) -> None:
    """The error names the file, and what to give with it."""
    trainer = write(tmp_path / "t.json", 1, "trainer 0", [], clocks={7: [(0.0, 0.0, 1.0)]})
    server = write(tmp_path / "s.json", 2, "shard 0", [])

    with pytest.raises(ConfigError, match=r"s\.json: nothing is known of its clock.*of a trainer"):
        merge([trainer, server])


def test_files_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    """The same process twice, and what is merged already, are errors that say so."""
    one = write(tmp_path / "a.json", 1, "trainer 0", [])
    same = write(tmp_path / "b.json", 1, "trainer 0", [])
    whole = tmp_path / "m.json"
    whole.write_text('{"traceEvents": [], "pserver": {"format": 1, "processes": []}}')

    with pytest.raises(ConfigError, match=r"a\.json: the same process as in another file"):
        merge([one, same])
    with pytest.raises(ConfigError, match=r"m\.json: is merged already"):
        merge([whole])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"x\.json: cannot be read: No such file"),
        ("{", r"x\.json: is no trace of a pserver or trainer"),
        ("[]", r"x\.json: is no trace of a pserver or trainer"),
        ('{"traceEvents": []}', r"x\.json: is no trace of a pserver or trainer"),
        (
            '{"traceEvents": [], "pserver": {"format": 2}}',
            r"has format 2, this release knows up to 1",
        ),
    ],
)
def test_what_is_no_trace_of_ours_is_refused(
    tmp_path: Path, text: str | None, message: str
) -> None:
    """A file that is not there, or is something else, is named with what to give instead."""
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)

    with pytest.raises(ConfigError, match=message):
        read_trace(path)
