"""What ``pserver status`` tells of the trainers: facts for ``--json``, and lines for people.

Rooms before and after: ``cli`` asks the shards for their counters, and here for what they say of the
group; each shard knows its own part of it.
"""

import math
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from pserver.v1 import pserver_pb2 as pb


def group_facts(replies: Sequence[pb.StatsReply]) -> dict[str, Any] | None:
    """Return what the shards say of the group, or None if there is none.

    Of the open round, and of what waits for whom, the shard that is behind counts; staleness is the
    most of any shard, and a trainer was seen when the last shard heard from it.
    """
    groups = [reply.group for reply in replies if reply.group.group.mode]
    if not groups:
        return None
    behind = min(groups, key=lambda group: group.open_round)
    return {
        "mode": behind.group.mode,
        "trainers": behind.group.trainers,
        "sync_divisor": behind.group.sync_divisor,
        "on_missing": behind.group.on_missing,
        "open_round": behind.open_round,
        "missing": sorted({trainer for group in groups for trainer in group.missing}),
        "parked_bytes": sum(group.parked_bytes for group in groups),
        "failure": next((group.failure for group in groups if group.failure), ""),
        "members": [
            _member([group.trainers[place] for group in groups if place < len(group.trainers)])
            for place in range(behind.group.trainers)
        ],
    }


def _member(entries: Sequence[pb.TrainerStats]) -> dict[str, Any]:
    """Return what the shards say of one trainer."""
    first = entries[0]
    seen = [entry.last_seen_s for entry in entries if entry.last_seen_s >= 0.0]
    return {
        "trainer_id": first.trainer_id,
        "state": first.state,
        "host": first.host,
        "process": first.trainer_incarnation,
        "step": max(entry.step for entry in entries),
        "loss": None if math.isnan(first.loss) else first.loss,
        "auc": first.auc if first.HasField("auc") else None,
        "samples_per_s": first.samples_per_s if first.HasField("samples_per_s") else None,
        "last_round": min(entry.last_round for entry in entries),
        "pushes": max(entry.pushes for entry in entries),
        "staleness_p50": max(entry.staleness_p50 for entry in entries),
        "staleness_p99": max(entry.staleness_p99 for entry in entries),
        "staleness_max": max(entry.staleness_max for entry in entries),
        "last_seen_s": min(seen) if seen else None,
    }


def group_lines(facts: dict[str, Any]) -> tuple[str, Table]:
    """Return a line about the group, and a table of its trainers."""
    line = f"{facts['mode']} group of {facts['trainers']}"
    if facts["mode"] == "sync":
        line += f", round {facts['open_round']} is open, divided by {facts['sync_divisor']}"
    if facts["missing"]:
        line += f", waiting for trainer {', '.join(map(str, facts['missing']))}"
    if facts["failure"]:
        line += f"; it cannot go on: {facts['failure']}"
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("trainer", "state", "host"):
        table.add_column(column, no_wrap=True)
    for column in ("step", "loss", "pushes", "staleness p50/p99/max", "last seen"):
        table.add_column(column, justify="right", no_wrap=True)
    for member in facts["members"]:
        loss, seen = member["loss"], member["last_seen_s"]
        spread = (member[f"staleness_{name}"] for name in ("p50", "p99", "max"))
        table.add_row(
            str(member["trainer_id"]),
            member["state"],
            member["host"] or "-",
            f"{member['step']:,}",
            "-" if loss is None else f"{loss:.4f}",
            f"{member['pushes']:,}",
            "/".join(map(str, spread)),
            "never" if seen is None else f"{seen:.1f} s ago",
        )
    return line, table
