"""A deadline: a point in time, made once from a timeout and asked at every hop for what is left."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on the monotonic clock, in seconds."""

    at_s: float

    @classmethod
    def after(cls, timeout_s: float) -> "Deadline":
        """Return the deadline that is ``timeout_s`` seconds from now."""
        return cls(time.monotonic() + timeout_s)

    @property
    def remaining_s(self) -> float:
        """Return the seconds that are left, 0 at the least."""
        return max(0.0, self.at_s - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Return whether nothing is left."""
        return time.monotonic() >= self.at_s
