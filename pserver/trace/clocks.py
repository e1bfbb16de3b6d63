"""How the clocks of other processes stand to this one's, from calls that they answered.

Rooms before and after: ``call`` brings the four times of each traced call; ``merge`` brings all spans to one clock.

A call leaves here at t1, arrives there at t2, is answered there at t3 and comes back at t4, the middle two by the clock
there. As nothing arrives before it left, their clock minus ours lies between t3 - t4 and t2 - t1: NTP's offset is the
middle of these for one call. What many calls say together is narrower, and puts every one of them in order.
"""

import threading
from collections import deque
from dataclasses import dataclass, field

WINDOW_NS = 10_000_000_000
"""Calls of so many nanoseconds are taken together: clocks drift apart by under a microsecond in them if somebody
disciplines them, by 0.5 ms if nobody does."""

_WINDOWS_MAX = 1024  # almost three hours; the last ones are kept


@dataclass(slots=True)
class Window:
    """What the calls of some seconds say of another clock minus ours, in nanoseconds.

    Attributes:
        at_ns: the middle of these seconds.
        low_ns: it is no less.
        high_ns: and no more.
    """

    at_ns: int
    low_ns: int
    high_ns: int


@dataclass(slots=True)
class Clock:
    """The clock of another process.

    Attributes:
        endpoint: where it answers.
        windows: by time.
    """

    endpoint: str
    windows: deque[Window] = field(default_factory=lambda: deque(maxlen=_WINDOWS_MAX))


class Clocks:
    """What is known of the clocks of other processes. Thread-safe."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._of: dict[int, Clock] = {}

    def add(self, process: int, endpoint: str, times_ns: tuple[int, int, int, int]) -> None:
        """Take in a call.

        Args:
            process: that answered.
            endpoint: where.
            times_ns: t1 to t4, see above.
        """
        t1, t2, t3, t4 = times_ns
        low_ns, high_ns = t3 - t4, t2 - t1
        number = t4 // WINDOW_NS
        with self._lock:
            clock = self._of.setdefault(process, Clock(endpoint))
            at_ns = number * WINDOW_NS + WINDOW_NS // 2
            if clock.windows and clock.windows[-1].at_ns >= at_ns:  # calls may end in another order
                last = clock.windows[-1]
                last.low_ns = max(last.low_ns, low_ns)
                last.high_ns = min(last.high_ns, high_ns)
            else:
                clock.windows.append(Window(at_ns, low_ns, high_ns))

    def known(self) -> list[tuple[int, str, list[Window]]]:
        """Return each process that answered, where, and its windows."""
        with self._lock:
            return [
                (
                    process,
                    clock.endpoint,
                    [Window(w.at_ns, w.low_ns, w.high_ns) for w in clock.windows],
                )
                for process, clock in self._of.items()
            ]
