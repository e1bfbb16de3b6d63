"""Logs: one event a line on standard error, values as fields.

Rooms before and after: the command lines call ``configure_logs`` once; every room logs through
``structlog.get_logger``.
"""

import logging
import sys

import structlog


def configure_logs(level: str) -> None:
    """Write events of that level and above to standard error as ``time level event key=value``.

    Args:
        level: debug, info, warning or error.
    """
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
