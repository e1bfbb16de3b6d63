"""The settings of a trace: where the spans of batches go.

Rooms before and after: a server's settings and a trainer's inherit them; ``pserver.trace`` records.
"""

from typing import Annotated

from pydantic import Field

from pserver.settings import Settings


class TraceSettings(Settings):
    """Where a process writes what it did for each traced batch."""

    trace: Annotated[
        str | None,
        Field(
            description="JSON file of the last spans of this process, see `pserver trace`; none: no trace"
        ),
    ] = None
    otel_endpoint: Annotated[
        str | None,
        Field(description="HOST:PORT that takes the same spans by OTLP over gRPC; none: nobody"),
    ] = None
