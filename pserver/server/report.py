"""The facts of a shard: for the handshake, for ``pserver status``, for the metrics page.

Rooms before and after: ``servicer`` gives a ``Report``; what is read from it are plain numbers,
so a reader on the event loop sees each of them as it was at some moment.
"""

import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pserver._version import __version__
from pserver.metrics import Recent, Series
from pserver.placement import NUM_PARTITIONS, PLACEMENT_VERSION
from pserver.table.dense import DenseTable
from pserver.table.sparse import SparseTable
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import WIRE_VERSION
from pserver.wire.small import dense_proto_of, proto_of


@dataclass(slots=True)
class Tallies:
    """What went through a shard since it started. Owner: the owner thread."""

    keys_pulled: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    keys_pushed: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    occurrences_pushed: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    pushes_applied: int = 0
    pushes_duplicate: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """Where the facts are read from."""

    shard: int
    num_shards: int
    incarnation: int
    state: str
    tables: Sequence[SparseTable]
    dense_tables: Sequence[DenseTable]
    tallies: Tallies
    queued: int
    started_s: float


def describe(report: Report) -> pb.DescribeReply:
    """Return who the shard is."""
    return pb.DescribeReply(
        wire_version=WIRE_VERSION,
        package_version=__version__,
        shard_index=report.shard,
        num_shards=report.num_shards,
        incarnation=report.incarnation,
        num_partitions=NUM_PARTITIONS,
        placement_version=PLACEMENT_VERSION,
        state=report.state,
        tables=[proto_of(table.spec) for table in report.tables],
        dense_tables=[dense_proto_of(table.spec) for table in report.dense_tables],
    )


def resident_bytes() -> int:
    """Return the memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def stats(report: Report, methods: Iterable[Recent]) -> pb.StatsReply:
    """Return the counters of the shard and of its process."""
    return pb.StatsReply(
        server=describe(report),
        uptime_s=time.monotonic() - report.started_s,
        cpu_s=time.process_time(),
        memory_bytes=resident_bytes(),
        tables=[_table_stats(table, report.tallies) for table in report.tables],
        methods=[
            pb.MethodStats(
                method=recent.method,
                calls=recent.calls,
                errors=recent.errors,
                calls_per_s=recent.calls_per_s,
                p50_s=recent.p50_s,
                p99_s=recent.p99_s,
                max_s=recent.max_s,
            )
            for recent in methods
        ],
        queued=report.queued,
        pushes_applied=report.tallies.pushes_applied,
        pushes_duplicate=report.tallies.pushes_duplicate,
        dense_tables=[
            pb.DenseStats(
                table=table.spec.name,
                length=table.size,
                bytes=table.num_bytes,
                version=table.version,
                epoch=table.epoch,
            )
            for table in report.dense_tables
        ],
    )


def _table_stats(table: SparseTable, tallies: Tallies) -> pb.TableStats:
    name = table.spec.name
    return pb.TableStats(
        table=name,
        rows=table.num_rows,
        bytes=table.num_bytes,
        version=table.version,
        keys_pulled=tallies.keys_pulled.get(name, 0),
        keys_pushed=tallies.keys_pushed.get(name, 0),
        occurrences_pushed=tallies.occurrences_pushed.get(name, 0),
    )


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
        Series("queue_depth", "Requests waiting.", (), one(lambda r: r.queued)),
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


_Sample = tuple[tuple[str, ...], float]
