"""What commands show of the shards of a cluster: facts for ``--json`` and screens, and a table for people.

Rooms before and after: ``client`` asked the servers; ``cli`` prints it once, ``cli.top`` and ``cli.web``
again and again.
"""

import datetime
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from pserver.cli.tables import troubles
from pserver.cli.trainers import group_facts
from pserver.errors import PserverError
from pserver.v1 import pserver_pb2 as pb

_MIB = 1 << 20


def cluster_facts(
    endpoints: Sequence[str], answers: Sequence[pb.StatsReply | PserverError]
) -> dict[str, Any]:
    """Return what is known of a cluster now: its shards, the down ones too, and its trainers.

    Args:
        endpoints: of the shards, in order.
        answers: of each, or why it gave none.
    """
    shards = [
        down_facts(endpoint, shard, answer)
        if isinstance(answer, PserverError)
        else shard_facts(endpoint, answer)
        for shard, (endpoint, answer) in enumerate(zip(endpoints, answers, strict=True))
    ]
    there = [answer for answer in answers if isinstance(answer, pb.StatsReply)]
    at = datetime.datetime.now(datetime.UTC)
    return {"at": at.isoformat(), "shards": shards, "group": group_facts(there)}


def shard_facts(endpoint: str, stats: pb.StatsReply) -> dict[str, Any]:
    """Return what is shown of a shard."""
    methods = {method.method: method for method in stats.methods}
    pull = methods.get("Pull", pb.MethodStats())
    push = methods.get("Push", pb.MethodStats())
    return {
        "shard": stats.server.shard_index,
        "endpoint": endpoint,
        "state": stats.server.state,
        "tables": [table.table for table in stats.tables],
        "rows": sum(table.rows for table in stats.tables),
        "bytes": sum(table.bytes for table in stats.tables),
        "memory_bytes": stats.memory_bytes,
        "cpu_s": stats.cpu_s,
        "pulls_per_s": pull.calls_per_s,
        "pushes_per_s": push.calls_per_s,
        "pull_p99_s": pull.p99_s,
        "push_p99_s": push.p99_s,
        "pushes_applied": stats.pushes_applied,
        "pushes_duplicate": stats.pushes_duplicate,
        "queued": stats.queued,
        "bad_pushes": sum(table.bad_pushes for table in stats.tables),
        "checkpoint": stats.checkpoint or None,
        "checkpoint_age_s": stats.checkpoint_age_s if stats.checkpoint else None,
        "uptime_s": stats.uptime_s,
        "package_version": stats.server.package_version,
        "troubles": troubles(stats),
    }


def down_facts(endpoint: str, shard: int, error: PserverError) -> dict[str, Any]:
    """Return what is shown of a shard that does not answer."""
    nothing = pb.StatsReply(server=pb.DescribeReply(shard_index=shard, state="down"))
    return {**shard_facts(endpoint, nothing), "error": str(error)}


def status_table(facts: Sequence[dict[str, Any]]) -> Table:
    """Return a line a shard."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("shard", "endpoint", "state"):
        table.add_column(column, no_wrap=True)
    for column in ("rows", "MiB", "pulls/s", "pushes/s", "p99 ms", "uptime"):
        table.add_column(column, justify="right", no_wrap=True)
    for fact in facts:
        table.add_row(
            str(fact["shard"]),
            str(fact["endpoint"]),
            str(fact["state"]),
            f"{fact['rows']:,}",
            f"{fact['bytes'] / _MIB:,.1f}",
            f"{fact['pulls_per_s']:.1f}",
            f"{fact['pushes_per_s']:.1f}",
            f"{max(fact['pull_p99_s'], fact['push_p99_s']) * 1e3:.1f}",
            f"{fact['uptime_s']:.0f} s",
        )
    return table
