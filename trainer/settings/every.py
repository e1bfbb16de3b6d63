"""How often a run saves: a text such as 1000 or 60s.

Rooms before and after: ``config`` checks the text, ``checkpoint`` asks whether it is time.
"""

import re
from dataclasses import dataclass

_TEXT = re.compile(r"(\d{1,12})(s?)")


@dataclass(frozen=True, slots=True)
class Every:
    """Steps, or seconds, between two saves; the other one is 0."""

    steps: int = 0
    seconds: int = 0

    def is_due(self, *, step: int, seconds: float) -> bool:
        """Return whether to save after a step.

        Args:
            step: of the run, from 1.
            seconds: since the last save began, or the run.

        >>> every_of("10").is_due(step=20, seconds=0.5), every_of("10s").is_due(step=20, seconds=9.5)
        (True, False)
        """
        return seconds >= self.seconds if self.seconds else step % self.steps == 0


def every_of(text: str) -> Every:
    """Return what a text says.

    Raises:
        ValueError: it has another form.

    >>> every_of("1000"), every_of("60s")
    (Every(steps=1000, seconds=0), Every(steps=0, seconds=60))
    """
    match = _TEXT.fullmatch(text)
    if match is None or not int(match[1]):
        raise ValueError(f"must be steps such as 1000, or seconds such as 60s, got {text!r}")
    number = int(match[1])
    return Every(seconds=number) if match[2] else Every(steps=number)
