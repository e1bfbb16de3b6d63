"""Logs: one event a line on standard error, values as fields, as text or as JSON.

Rooms before and after: the command lines call ``configure_logs`` once; every room logs through
``structlog.get_logger``. What a command ends with goes through ``tell_failure``.

What always holds: a line is one event, whatever is in its values. With JSON that is true of all that is written to
standard error once the settings are known, the last words included.
"""

import json
import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog
from typing_extensions import override


def configure_logs(level: str, *, form: str = "text", **always: object) -> None:
    """Write events of that level and above to standard error.

    Args:
        level: debug, info, warning or error.
        form: text, as ``time level event key=value``, or json: an object a line.
        always: fields of every event, such as the shard.
    """
    structlog.configure(
        processors=[
            _fields_first(always),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            _JSON if form == "json" else _TEXT,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    root = logging.getLogger()
    root.handlers = [one for one in root.handlers if not isinstance(one, _Events)]
    if form == "json":
        root.addHandler(_Events(logging.WARNING))


class _Events(logging.Handler):
    """Makes events of what libraries log, which would else be lines of any form."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Write one."""
        log = structlog.get_logger(record.name)
        facts: dict[str, Any] = {"logger": record.name}
        if record.exc_info:
            facts["exc_info"] = record.exc_info
        log.log(record.levelno, record.getMessage(), **facts)


def logs_are_json() -> bool:
    """Return whether standard error is for lines of JSON only."""
    return structlog.is_configured() and structlog.get_config()["processors"][-1] is _JSON


def tell_failure(command: str, error: str, *, status: int) -> None:
    """Say why a command ends: as its last line, or as its last event.

    Args:
        command: such as ``pserver serve``.
        error: what happened, and what to do.
        status: that it exits with.
    """
    if logs_are_json():
        structlog.get_logger(__name__).error("ended", command=command, error=error, status=status)
    else:
        sys.stderr.write(f"{command}: {error}\n")


def tell_crash(command: str, error: Exception, *, status: int) -> bool:
    """Tell an error that nobody handles as the last event, and return whether that was done: only where logs are JSON.

    Elsewhere Python's own lines are the better ones.

    Args:
        command: such as ``pserver serve``.
        error: of ours, or of a library.
        status: that the command exits with then.
    """
    if not logs_are_json():
        return False
    text = f"{error!r} is our own mistake; report it with this line, and start again"
    structlog.get_logger(__name__).error(
        "ended", command=command, error=text, status=status, exc_info=error
    )
    return True


def _fields_first(always: Mapping[str, object]) -> structlog.typing.Processor:
    """Return what gives each event the fields that all have; its own win."""

    def add(_logger: object, _name: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        return {**always, **event}

    return add


_TEXT = structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"])
_JSON = structlog.processors.JSONRenderer(serializer=json.dumps, default=str)
