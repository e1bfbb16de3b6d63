"""What ``trace.files`` promises: a whole file of the last spans, soon after them and at the end."""

import json
import threading
from pathlib import Path

import pytest

from pserver.config_trace import TraceSettings
from pserver.errors import ConfigError
from pserver.trace import files, numbered, recording, span, traced
from pserver.trace.recorder import ACTIVE
from tests.chrome_format import read_events

WAIT_S = 30.0


def one_batch() -> None:
    """Do the work of a batch."""
    for number, _ in numbered("a"):
        with traced(number, ends=True), span("step"):
            pass


def names(path: Path) -> list[str]:
    """Return the spans of a file, checked."""
    return [event["name"] for event in read_events(path) if event["ph"] == "X"]


def test_the_file_has_the_spans_when_the_process_ends(tmp_path: Path) -> None:
    """It is there with the first moment, empty, and with all that was recorded at the end; nothing else is left."""
    path = tmp_path / "out-3.json"

    with recording(TraceSettings(trace=str(tmp_path / "out.json")), name="trainer 3", number=3):
        assert names(path) == []
        one_batch()

    assert names(path) == ["read", "step", "batch"]
    (about,) = json.loads(path.read_text())["pserver"]["processes"]
    assert (about["name"], about["every"], about["gone"]) == ("trainer 3", 1, 0)
    assert list(tmp_path.iterdir()) == [path]
    assert ACTIVE.recorder is None


def test_the_file_is_written_while_the_process_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once no more spans come the file is written anew, without waiting for the end."""
    monkeypatch.setattr(files, "_QUIET_S", 0.01)
    path, is_written = tmp_path / "out.json", threading.Event()
    write = files.TraceFile.write

    def told(file: files.TraceFile) -> None:
        write(file)
        is_written.set()

    monkeypatch.setattr(files.TraceFile, "write", told)

    with recording(TraceSettings(trace=str(path)), name="shard 0"):
        one_batch()
        assert is_written.wait(WAIT_S)
        assert names(path) == ["read", "step", "batch"]


def test_a_run_goes_on_when_its_file_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that goes away is a warning that says what to do, and no error."""
    folder = tmp_path / "gone"
    folder.mkdir()

    with recording(TraceSettings(trace=str(folder / "out.json")), name="shard 0"):
        one_batch()
        (folder / "out.json").unlink()
        folder.rmdir()

    assert "trace not written; see that there is room, the run goes on" in capsys.readouterr().out


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    """A folder that is not there is an error of the settings, before anything runs."""
    settings = TraceSettings(trace=str(tmp_path / "none" / "out.json"))

    with (
        pytest.raises(ConfigError, match=r"--trace .*out\.json: cannot be written: No such file"),
        recording(settings, name="shard 0"),
    ):
        raise AssertionError("not reached")


def test_a_process_has_one_trace(tmp_path: Path) -> None:
    """A second recording in a process that has one is refused, and the first goes on."""
    settings = TraceSettings(trace=str(tmp_path / "out.json"))

    with recording(settings, name="a"):
        before = ACTIVE.recorder
        with (
            pytest.raises(ConfigError, match="records a trace already"),
            recording(settings, name="b"),
        ):
            raise AssertionError("not reached")
        assert ACTIVE.recorder is before


def test_nothing_is_recorded_when_nothing_is_asked_for() -> None:
    """Without settings of a trace there is no recorder."""
    with recording(TraceSettings(), name="a"):
        assert ACTIVE.recorder is None
