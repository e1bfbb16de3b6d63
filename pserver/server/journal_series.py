"""The Prometheus series of a journal: how long it is, what is not synced yet, how far behind the standby is.

Rooms before and after: ``recording`` and ``feed`` are read; ``series`` has the other ones.
"""

from collections.abc import Callable

from pserver.journal.writer import Journal
from pserver.metrics import Series
from pserver.server.feed import Feed


def journal_series(feed: Feed) -> list[Series]:
    """Return what the metrics page reads of the journal; zeros without one."""

    def of(read: Callable[[Journal], float]) -> Callable[[], list[tuple[tuple[str, ...], float]]]:
        def values() -> list[tuple[tuple[str, ...], float]]:
            journal = feed.recorder.journal
            return [((), 0.0 if journal is None else float(read(journal)))]

        return values

    return [
        Series("journal_records_total", "Records ever written.", (), of(lambda j: j.position)),
        Series("journal_bytes", "Bytes of all segments.", (), of(lambda j: j.num_bytes)),
        Series(
            "journal_unsynced_records",
            "Records that a power failure may take; with fsync off all since the start.",
            (),
            of(lambda j: j.position - max(j.synced, j.opened_at)),
        ),
        Series(
            "standby_lag_records",
            "Records that the standby has not taken; 0 while none ever asked.",
            (),
            of(lambda j: j.position - feed.taken if feed.taken else 0),
        ),
    ]
