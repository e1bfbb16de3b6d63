"""The Prometheus series of a group: how many trainers, which round, what waits, how stale pushes were.

Rooms before and after: ``members`` and ``rounds`` are read; ``series`` has the other ones.

What always holds: no label names a trainer, so the number of series does not grow with them.
"""

from collections import Counter

from pserver.metrics import AnySeries, Series, SpreadSeries
from pserver.server.members import Members
from pserver.server.rounds import Rounds
from pserver.spread import Spread

_STATES = ("absent", "live", "expired", "left", "dropped")


def group_series(members: Members, rounds: Rounds) -> list[AnySeries]:
    """Return what the metrics page reads of the group; zeros while there is none."""

    def trainers() -> list[tuple[tuple[str, ...], float]]:
        states = Counter[str](member.state for member in list(members))
        return [((state,), float(states[state])) for state in _STATES]

    def staleness() -> list[int]:
        return Spread.joined([member.staleness for member in list(members)]).counts

    return [
        Series("trainers", "Trainers of the group.", ("state",), trainers),
        Series("rounds_total", "Sync rounds applied.", (), lambda: [((), float(rounds.applied))]),
        Series(
            "parked_bytes",
            "Bytes of parts that wait for other trainers.",
            (),
            lambda: [((), float(rounds.parked_bytes))],
        ),
        SpreadSeries(
            "staleness_versions",
            "Versions that others came to between pull and push, of the group's pushes.",
            staleness,
        ),
    ]
