"""The longest time for which this machine let a waiting thread not run, beside which pauses are read.

Rooms before and after: ``checkpoint`` starts it as a process of its own. For each line that it reads it says the
longest gap since the line before, in milliseconds: how much later than asked a thread woke that sleeps for one
millisecond, again and again. No part of what is measured runs here, so nothing there makes it longer but the
load that it puts on the cores.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from bench.common import process

_SLEEP_S = 0.001


class Gaps:
    """The gaps that a process of its own sees."""

    def __init__(self, ask: IO[str], answers: IO[str]) -> None:
        """Take the process's two ends."""
        self._ask, self._answers = ask, answers

    def longest_ms(self) -> float:
        """Return the longest since the last call, or since the start."""
        print(file=self._ask, flush=True)
        return float(self._answers.readline())


@contextmanager
def watched() -> Iterator[Gaps]:
    """Watch the machine for as long as the block lasts."""
    with process("-m", "bench.gaps", stdin=-1) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        yield Gaps(child.stdin, child.stdout)


def main() -> None:
    """Answer lines until there are no more."""
    longest = [0.0]

    def sleep() -> None:
        while True:
            begin = time.perf_counter()
            time.sleep(_SLEEP_S)
            longest[0] = max(longest[0], time.perf_counter() - begin - _SLEEP_S)

    threading.Thread(target=sleep, daemon=True).start()
    for _ in sys.stdin:
        print(1e3 * longest[0], flush=True)
        longest[0] = 0.0


if __name__ == "__main__":
    main()
