"""The settings of what a run shows of itself while it goes on.

Rooms before and after: ``config`` inherits them; ``metrics`` serves the page.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pserver import TraceSettings


class ShownSettings(TraceSettings):
    """What can be seen of a trainer from outside."""

    metrics_bind: Annotated[
        str | None,
        Field(
            description="HOST:PORT of this trainer's Prometheus page; of several that are started here, "
            "trainer N has port PORT + N; none when not given"
        ),
    ] = None
    metrics_token_file: Annotated[
        str | None,
        Field(description="TOML file of tokens that may read the page beyond this machine"),
    ] = None
    insecure_bind: Annotated[
        bool,
        Field(description="show the page beyond this machine though TLS or tokens are missing"),
    ] = False
    trace_every: Annotated[
        int, Field(ge=1, le=1 << 40, description="trace every so many batches only")
    ] = 1
    log_format: Annotated[
        Literal["text", "json"],
        Field(description="form of what is said while it runs: text, or an object a line"),
    ] = "text"

    @model_validator(mode="after")
    def _check_page(self) -> Self:
        """Refuse what is of a page or a trace that nobody asked for."""
        if self.trace_every > 1 and self.trace is None and self.otel_endpoint is None:
            raise ValueError("trace_every has no effect without trace or otel_endpoint")
        for name in ("metrics_token_file", "insecure_bind"):
            if name in self.model_fields_set and self.metrics_bind is None:
                raise ValueError(f"{name} has no effect without metrics_bind")
        return self
