"""The Prometheus series of what outlives a process: the journal, the standby, checkpoints, and who has the place.

Rooms before and after: ``role`` and ``checkpoint`` are read; ``series`` has the other ones.
"""

from collections.abc import Callable

from pserver.journal.writer import Journal
from pserver.metrics import Series
from pserver.server.checkpoint import Saves
from pserver.server.role import STATES, Role


def durable_series(role: Role, saves: Callable[[], Saves]) -> list[Series]:
    """Return what the metrics page reads; zeros without a journal or a place for versions."""
    return [*_of_journal(role), *_of_checkpoints(saves)]


def _of_journal(role: Role) -> list[Series]:
    feed = role.feed

    def of(read: Callable[[Journal], float]) -> Callable[[], list[tuple[tuple[str, ...], float]]]:
        def values() -> list[tuple[tuple[str, ...], float]]:
            journal = role.standby.journal if role.standby is not None else feed.recorder.journal
            return [((), 0.0 if journal is None else float(read(journal)))]

        return values

    def role_now() -> list[tuple[tuple[str, ...], float]]:
        return [((state,), float(state == role.state)) for state in STATES]

    return [
        Series("journal_records_total", "Records ever written.", (), of(lambda j: j.position)),
        Series("journal_bytes", "Bytes of all segments.", (), of(lambda j: j.num_bytes)),
        Series(
            "journal_unsynced_records",
            "Records that a power failure may take; with fsync off all since the start.",
            (),
            of(lambda j: j.position - max(j.synced, j.opened_at)),
        ),
        Series("journal_syncs_total", "Syncs of the journal.", (), of(lambda j: j.syncs)),
        Series(
            "journal_sync_seconds_total",
            "Seconds that syncs of the journal took.",
            (),
            of(lambda j: j.sync_s),
        ),
        Series(
            "standby_lag_records",
            "Records that the standby has not taken; 0 while none ever asked.",
            (),
            of(lambda j: j.position - feed.taken if feed.taken else 0),
        ),
        Series("role", "1 for what the server is, 0 for what it is not.", ("state",), role_now),
    ]


def _of_checkpoints(saves: Callable[[], Saves]) -> list[Series]:
    return [
        Series(
            "checkpoint_age_seconds",
            "Since the last version that this process saved, or its start; 0 without --checkpoint-dir.",
            (),
            lambda: [((), saves().age_s())],
        ),
        Series(
            "checkpoint_pause_seconds",
            "The longest that the last save held up requests in one go.",
            (),
            lambda: [((), saves().pause_s)],
        ),
        Series(
            "failed_saves_total",
            "Saves of this shard that failed.",
            (),
            lambda: [((), float(saves().num_failed))],
        ),
    ]
