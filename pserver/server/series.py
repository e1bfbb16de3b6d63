"""The Prometheus series of a shard, read when the page is asked for.

Rooms before and after: ``servicer`` gives a way to a fresh ``Report``; ``pserver.metrics`` serves.

What always holds: labels are the names of tables, which a shard has few of.
"""

from collections.abc import Callable, Mapping

from pserver.metrics import Series
from pserver.server.report import Report, Tallies, age_s, embedx_rows
from pserver.table.dense import DenseTable
from pserver.table.sparse import SparseTable

_Sample = tuple[tuple[str, ...], float]
_ByTable = Callable[[Callable[[SparseTable], float]], Callable[[], list[_Sample]]]


def series(report: Callable[[], Report]) -> list[Series]:
    """Return what the metrics page reads from a shard."""

    def by_table(read: Callable[[SparseTable], float]) -> Callable[[], list[_Sample]]:
        return lambda: [((table.spec.name,), read(table)) for table in report().tables]

    def by_any(
        read: Callable[[SparseTable | DenseTable], float],
    ) -> Callable[[], list[_Sample]]:
        def samples() -> list[_Sample]:
            tables: list[SparseTable | DenseTable] = [*report().tables, *report().dense_tables]
            return [((table.spec.name,), read(table)) for table in tables]

        return samples

    def by_dense(read: Callable[[DenseTable], float]) -> Callable[[], list[_Sample]]:
        return lambda: [((table.spec.name,), read(table)) for table in report().dense_tables]

    def by_name(read: Callable[[Tallies], Mapping[str, int]]) -> Callable[[], list[_Sample]]:
        return lambda: [((name,), count) for name, count in dict(read(report().tallies)).items()]

    def one(read: Callable[[Report], float]) -> Callable[[], list[_Sample]]:
        return lambda: [((), read(report()))]

    table = ("table",)
    return [
        Series("rows", "Rows alive.", table, by_table(lambda t: t.num_rows)),
        Series(
            "dense_floats", "Floats of a dense table held here.", table, by_dense(lambda t: t.size)
        ),
        Series("table_bytes", "Bytes of rows and index.", table, by_any(lambda t: t.num_bytes)),
        Series("table_version", "Pushes applied to it.", table, by_any(lambda t: t.version)),
        Series("pulled_keys_total", "Keys read.", table, by_name(lambda t: t.keys_pulled)),
        Series("pushed_keys_total", "Keys pushed.", table, by_name(lambda t: t.keys_pushed)),
        Series(
            "pushed_occurrences_total",
            "Occurrences of the pushed keys, where trainers count them.",
            table,
            by_name(lambda t: t.occurrences_pushed),
        ),
        *_refused_and_gone(report, by_table),
        *_admitted(by_table),
        Series("queue_depth", "Requests waiting.", (), one(lambda r: r.queued)),
        *_versions(report),
        Series(
            "applied_pushes_total", "Pushes applied.", (), one(lambda r: r.tallies.pushes_applied)
        ),
        Series(
            "duplicate_pushes_total",
            "Pushes refused because they were applied before.",
            (),
            one(lambda r: r.tallies.pushes_duplicate),
        ),
    ]


def _versions(report: Callable[[], Report]) -> list[Series]:
    """Return how old the version is that the shard came from; nothing where it came from none."""
    return [
        Series(
            "restored_age_seconds",
            "Since the checkpoint was saved that the tables came from.",
            (),
            lambda: [((), age_s(created))] if (created := report().versions.created) else [],
        ),
    ]


def _refused_and_gone(report: Callable[[], Report], by_table: _ByTable) -> list[Series]:
    """Return what tables did not take, and what they lost."""
    table = ("table",)
    return [
        Series(
            "bad_pushes_total",
            "Pushes with NaN, infinity or a huge number, mended or refused.",
            table,
            by_table(lambda t: report().bad_values.total(t.spec.name)),
        ),
        Series(
            "evicted_rows_total",
            "Rows that fell out over a limit.",
            table,
            by_table(lambda t: t.keeping.evicted),
        ),
        Series(
            "shrunk_rows_total",
            "Rows that shrinks removed.",
            table,
            by_table(lambda t: t.keeping.shrunk),
        ),
    ]


def _admitted(by_table: _ByTable) -> list[Series]:
    """Return which keys got rows, and rows their second part."""
    table = ("table",)
    return [
        Series("embedx_rows", "Rows that have their second part.", table, by_table(embedx_rows)),
        Series(
            "waiting_keys",
            "Keys without a row that admission counts one by one.",
            table,
            by_table(lambda t: 0 if t.gate is None else t.gate.filter.num_keys),
        ),
        Series(
            "filter_bytes",
            "Bytes of what admission counts, part of table_bytes.",
            table,
            by_table(lambda t: 0 if t.gate is None else t.gate.filter.num_bytes),
        ),
        Series(
            "unadmitted_keys_total",
            "Keys of pushes whose gradient was dropped, each once a push.",
            table,
            by_table(lambda t: 0 if t.gate is None else t.gate.keys_dropped),
        ),
    ]
