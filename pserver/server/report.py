"""The facts of a shard: for the handshake and for ``pserver status``.

Rooms before and after: ``servicer`` gives a ``Report``, from which ``series`` makes the metrics page; what is read from it are plain numbers,
so a reader on the event loop sees each of them as it was at some moment.
"""

import datetime
import resource
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pserver._version import __version__
from pserver.metrics import Recent
from pserver.placement import NUM_PARTITIONS, PLACEMENT_VERSION
from pserver.server.bad_values import BadValues
from pserver.table.ctr import CtrSlab
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


def age_s(created: str) -> float:
    """Return the seconds since a version was saved."""
    since = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(created)
    return since.total_seconds()


@dataclass(frozen=True, slots=True)
class Versions:
    """The checkpoints that a shard had to do with, as far as its process knows.

    Attributes:
        created: when the version was saved that the tables came from; empty: they came from none.
        last: name of the version that was last saved or restored here; empty: none.
        last_age_s: seconds since it was saved.
    """

    created: str = ""
    last: str = ""
    last_age_s: float = 0.0


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
    bad_values: BadValues
    queued: int
    started_s: float
    versions: Versions
    term: int


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
        term=report.term,
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
        tables=[_table_stats(table, report) for table in report.tables],
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
        checkpoint=report.versions.last,
        checkpoint_age_s=report.versions.last_age_s,
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


def embedx_rows(table: SparseTable) -> int:
    """Return the rows of a table of ctr that have their second part."""
    return table.slab.num_embedx if isinstance(table.slab, CtrSlab) else 0


def _table_stats(table: SparseTable, report: Report) -> pb.TableStats:
    name, tallies, gate = table.spec.name, report.tallies, table.gate
    bad = report.bad_values.of(name)
    return pb.TableStats(
        table=name,
        rows=table.num_rows,
        bytes=table.num_bytes,
        version=table.version,
        keys_pulled=tallies.keys_pulled.get(name, 0),
        keys_pushed=tallies.keys_pushed.get(name, 0),
        occurrences_pushed=tallies.occurrences_pushed.get(name, 0),
        embedx_rows=embedx_rows(table),
        keys_waiting=0 if gate is None else gate.filter.num_keys,
        keys_unadmitted=0 if gate is None else gate.keys_dropped,
        filter_bytes=0 if gate is None else gate.filter.num_bytes,
        bad_pushes=report.bad_values.total(name),
        bad_pushes_of=[
            pb.BadPushes(trainer=trainer, pushes=entry.pushes, last=entry.last)
            for trainer, entry in bad.items()
        ],
        stopped=table.stopped,
        evicted=table.keeping.evicted,
        shrunk=table.keeping.shrunk,
        day=table.keeping.day,
    )
