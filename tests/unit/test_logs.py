"""What ``logs`` promises: one event a line, as text or JSON, with the fields that every event has."""

import io
import json
from collections.abc import Callable, Iterator

import pytest
import structlog

from pserver.logs import configure_logs, logs_are_json, tell_failure


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """Return what tells what went to standard error since it was last asked; logs are as before afterwards."""
    before = structlog.get_config() if structlog.is_configured() else None
    yield lambda: capsys.readouterr().err
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


def fail() -> None:
    """Log an error with where it came from, and values that break lines."""
    try:
        raise ValueError("two\nlines")
    except ValueError:
        structlog.get_logger("test").exception("failed", table="a\nb", epoch=3)


def test_json_is_an_object_a_line(said: Callable[[], str]) -> None:
    """Every value is a field, also the shard that all events have; an exception stays in its line."""
    configure_logs("info", form="json", shard=2)
    log = structlog.get_logger("test")

    log.debug("below the level")
    log.info("saved", table="ads", epoch=7, shard=9, where=io)
    fail()

    first, second = map(json.loads, said().splitlines())
    assert (first["event"], first["level"], first["table"], first["epoch"]) == (
        "saved",
        "info",
        "ads",
        7,
    )
    assert (first["shard"], second["shard"]) == (9, 2)  # an event's own field wins
    assert second["table"] == "a\nb"
    assert "ValueError: two\nlines" in second["exception"]
    assert logs_are_json()


def test_text_is_an_event_a_line(said: Callable[[], str]) -> None:
    """Time, level and event come first, then the fields; no value breaks a line."""
    configure_logs("info", trainer=1)

    structlog.get_logger("test").info("joined", table="ads")
    fail()

    first, second = said().splitlines()
    assert first.endswith("level='info' event='joined' trainer=1 table='ads'")
    assert "two\\nlines" in second
    assert not logs_are_json()


def test_the_last_words_have_the_form_of_the_logs(said: Callable[[], str]) -> None:
    """As text they are what a person reads; as JSON an event with the exit status, below no level."""
    configure_logs("error")
    tell_failure("pserver serve", "--bind x: cannot listen there\ngive another", status=2)
    text = said()
    configure_logs("error", form="json", shard=0)

    tell_failure("pserver serve", "--bind x: cannot listen there\ngive another", status=2)

    assert text == "pserver serve: --bind x: cannot listen there\ngive another\n"
    (line,) = said().splitlines()
    told = json.loads(line)
    assert (told["event"], told["status"], told["shard"]) == ("ended", 2, 0)
    assert told["error"].endswith("give another")
