"""What ``logs`` promises: one event a line, as text or JSON, with the fields that every event has."""

import io
import json
import logging
from collections.abc import Callable, Iterator

import pytest
import structlog

from pserver.logs import configure_logs, logs_are_json, tell_crash, tell_failure


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """Return what tells what went to standard error since it was last asked; logs are as before afterwards."""
    before = structlog.get_config() if structlog.is_configured() else None
    yield lambda: capsys.readouterr().err
    configure_logs("info")  # which takes away what JSON has for libraries
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


def test_what_libraries_log_is_an_event_too(said: Callable[[], str]) -> None:
    """With JSON a library's warning is an object a line, also of several lines and with an error; then no more."""
    configure_logs("warning", form="json", shard=3)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("asyncio").exception("Task exception was\nnever retrieved")

    (line,) = said().splitlines()
    configure_logs("warning", shard=3)
    logging.getLogger("asyncio").warning("plain")

    told = json.loads(line)
    assert (told["event"], told["level"]) == ("Task exception was\nnever retrieved", "error")
    assert (told["logger"], told["shard"]) == ("asyncio", 3)
    assert "ValueError: two" in told["exception"]
    assert "{" not in said()


def test_a_crash_is_the_last_event_where_logs_are_json(said: Callable[[], str]) -> None:
    """An error that nobody handles is one line that says what to do; as text it is left to Python."""
    configure_logs("info")
    assert not tell_crash("pserver serve", KeyError("x"), status=1)
    configure_logs("info", form="json", shard=0)
    said()

    assert tell_crash("pserver serve", KeyError("x"), status=1)

    (line,) = said().splitlines()
    told = json.loads(line)
    assert (told["event"], told["status"], told["command"]) == ("ended", 1, "pserver serve")
    assert (
        told["error"]
        == "KeyError('x') is our own mistake; report it with this line, and start again"
    )
    assert "KeyError: 'x'" in told["exception"]
