"""What ``pserver ls`` and ``inspect`` tell: facts for ``--json``, and text for people.

Rooms before and after: ``cli`` reads the flags, asks here, and prints; the facts come from the
shards' Stats and Inspect.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from pserver.cli.shared import aligned
from pserver.client.client import Client
from pserver.client.inspected import Inspected
from pserver.placement import partitions_of_shard
from pserver.spec import DenseSpec, TableSpec
from pserver.table.in_force import in_force
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import dense_spec_of, spec_of


def table_facts(client: Client) -> list[dict[str, Any]]:
    """Return what the shards hold of each table, in the order in which shard 0 made them.

    Dense tables come behind the sparse ones.
    """
    replies = client.stats()
    return [*_sparse_facts(client, replies), *_dense_facts(client, replies)]


def _sparse_facts(client: Client, replies: list[pb.StatsReply]) -> list[dict[str, Any]]:
    specs: dict[str, TableSpec] = {}
    held: dict[str, list[dict[str, Any]]] = {}
    for info, stats in zip(client.shards, replies, strict=True):
        begin, end = partitions_of_shard(info.shard, client.num_shards)
        for message, table in zip(stats.server.tables, stats.tables, strict=True):
            spec = spec_of(message)
            first = specs.setdefault(spec.name, spec)
            held.setdefault(spec.name, []).append(
                {
                    "shard": info.shard,
                    "endpoint": info.endpoint,
                    "first_partition": begin,
                    "last_partition": end - 1,
                    "rows": table.rows,
                    "bytes": table.bytes,
                    "version": table.version,
                    "keys_pulled": table.keys_pulled,
                    "keys_pushed": table.keys_pushed,
                    "occurrences_pushed": table.occurrences_pushed,
                    "embedx_rows": table.embedx_rows,
                    "keys_waiting": table.keys_waiting,
                    "keys_unadmitted": table.keys_unadmitted,
                    "filter_bytes": table.filter_bytes,
                    "evicted": table.evicted,
                    "shrunk": table.shrunk,
                    "day": table.day,
                    "spec_difference": first.difference(spec),
                }
            )
    return [_table_fact(specs[name], shards, client.num_shards) for name, shards in held.items()]


_SUMMED = ("embedx_rows", "keys_waiting", "keys_unadmitted", "filter_bytes")


def _table_fact(spec: TableSpec, shards: list[dict[str, Any]], num_shards: int) -> dict[str, Any]:
    """Return the facts of one table over all shards that have it."""
    num_rows = sum(shard["rows"] for shard in shards)
    num_bytes = sum(shard["bytes"] for shard in shards)
    versions = [shard["version"] for shard in shards]
    present = {shard["shard"] for shard in shards}
    return {
        "kind": "sparse",
        **dataclasses.asdict(spec),
        "rows": num_rows,
        "bytes": num_bytes,
        "in_force": in_force(spec),
        "bytes_per_row": num_bytes / num_rows if num_rows else None,
        **{name: sum(shard[name] for shard in shards) for name in _SUMMED},
        "version_min": min(versions),
        "version_max": max(versions),
        "missing_on": sorted(set(range(num_shards)) - present),
        "shards": shards,
    }


def _dense_facts(client: Client, replies: list[pb.StatsReply]) -> list[dict[str, Any]]:
    specs: dict[str, DenseSpec] = {}
    held: dict[str, list[dict[str, Any]]] = {}
    for info, stats in zip(client.shards, replies, strict=True):
        for message, table in zip(stats.server.dense_tables, stats.dense_tables, strict=True):
            spec = dense_spec_of(message)
            first = specs.setdefault(spec.name, spec)
            held.setdefault(spec.name, []).append(
                {
                    "shard": info.shard,
                    "endpoint": info.endpoint,
                    "length": table.length,
                    "bytes": table.bytes,
                    "version": table.version,
                    "epoch": table.epoch,
                    "spec_difference": first.difference(spec),
                }
            )
    return [
        {
            "kind": "dense",
            **dataclasses.asdict(specs[name]),
            "bytes": sum(shard["bytes"] for shard in shards),
            "version_min": min(shard["version"] for shard in shards),
            "version_max": max(shard["version"] for shard in shards),
            "missing_on": sorted(
                set(range(client.num_shards)) - {shard["shard"] for shard in shards}
            ),
            "shards": shards,
        }
        for name, shards in held.items()
    ]


def tables_table(facts: list[dict[str, Any]]) -> Table:
    """Return one line a table; the rules stand last, since they are long.

    A dense table has its length in the column of rows, and no dim, capacity, seed or initializer.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("table", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    for column in ("dim", "rows", "B/row", "version", "capacity", "seed"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("dtype", "storage"):
        table.add_column(column, no_wrap=True)
    for column in ("optimizer", "initializer", "accessor", "admission", "evict", "shrink removes"):
        table.add_column(column, no_wrap=True)
    for fact in facts:
        low, high = fact["version_min"], fact["version_max"]
        versions = f"{low}" if low == high else f"{low}..{high}"
        if fact["kind"] == "dense":
            length, rule = f"{fact['length']:,}", fact["optimizer"]
            table.add_row(
                fact["name"], "dense", "-", length, "-", versions, *"----", rule, *"-----"
            )
            continue
        per_row = fact["bytes_per_row"]
        table.add_row(
            fact["name"],
            "sparse",
            str(fact["dim"]),
            f"{fact['rows']:,}",
            "-" if per_row is None else f"{per_row:,.1f}",
            versions,
            f"{fact['capacity_max']:,}",
            str(fact["seed"]),
            fact["row_dtype"],
            fact["storage"],
            fact["optimizer"],
            fact["initializer"],
            _accessor_text(fact),
            _admission_text(fact),
            fact["evict"],
            fact["in_force"]["shrink"],
        )
    return table


def _accessor_text(fact: dict[str, Any]) -> str:
    """Return a table's accessor, and how many rows have their second part."""
    if fact["accessor"] == "plain":
        return "plain"
    return f"{fact['accessor']} ({fact['embedx_rows']:,} rows with embedx)"


def _admission_text(fact: dict[str, Any]) -> str:
    """Return a table's admission, and how many keys wait for it."""
    if fact["admission"] == "always":
        return "always"
    waiting = f"{fact['keys_waiting']:,} keys wait, " if fact["keys_waiting"] else ""
    return f"{fact['admission']} ({waiting}{fact['keys_unadmitted']:,} gradients dropped)"


def warnings(facts: list[dict[str, Any]]) -> list[str]:
    """Return a line for each table that is not the same on all shards."""
    lines = []
    for fact in facts:
        if fact["missing_on"]:
            missing = ", ".join(map(str, fact["missing_on"]))
            lines.append(f"table {fact['name']!r} is missing on shard {missing}; create it again")
        lines += [
            f"table {fact['name']!r} has another spec on shard {shard['shard']} "
            f"(shown against that): {shard['spec_difference']}"
            for shard in fact["shards"]
            if shard["spec_difference"]
        ]
    return lines


def troubles(stats: pb.StatsReply) -> list[str]:
    """Return a line for each table of a shard that was sent NaN, or that it stopped."""
    lines = []
    for table in stats.tables:
        where = f"table {table.table!r} on shard {stats.server.shard_index}"
        if table.stopped:
            lines.append(f"{where} takes no more pushes: {table.stopped}")
        if table.bad_pushes:
            worst = max(table.bad_pushes_of, key=lambda bad: bad.pushes)
            lines.append(
                f"{where}: {table.bad_pushes} pushes with NaN, infinity or a huge number from "
                f"{len(table.bad_pushes_of)} trainers; most ({worst.pushes}) from trainer "
                f"{worst.trainer}, the last of them: {worst.last}"
            )
    return lines


def inspected_facts(found: Inspected) -> dict[str, Any]:
    """Return a key's facts, with arrays as lists."""
    return {
        "table": found.table,
        "key": found.key,
        "shard": found.shard,
        "endpoint": found.endpoint,
        "partition": found.partition,
        "has_row": found.has_row,
        "weights": found.weights.tolist(),
        "state": {name: values.tolist() for name, values in found.state.items()},
        "epoch": found.epoch,
        "table_epoch": found.table_epoch,
        "version": found.version,
        "would_go": found.would_go,
        "why": found.why,
        "words": dict(found.words),
        "counted": None if found.counted is None else dict(found.counted),
        "score": found.score,
        "has_embedx": found.has_embedx,
    }


def inspected_lines(found: Inspected) -> list[str]:
    """Return a key's facts for people, a line each."""
    pairs = [
        ("table", f"{found.table}, {found.version} pushes applied on this shard"),
        ("key", f"{found.key} ({found.key:#x})"),
        ("shard", f"{found.shard} at {found.endpoint}, partition {found.partition}"),
    ]
    if found.has_row:
        pairs += [
            ("row", f"last changed in epoch {found.epoch}; the table is in {found.table_epoch}"),
            ("weights", _floats(found.weights)),
            *((f"state {name}", _floats(values)) for name, values in found.state.items()),
        ]
        if not found.state:
            pairs.append(("state", "none"))
        if found.words:
            words = (f"{name} {value:g}" for name, value in found.words.items())
            pairs.append(("words", ", ".join(words)))
        if found.score is not None:
            has = "has embedx" if found.has_embedx else "no embedx yet: it reads as 0"
            pairs.append(("score", f"{found.score:g}; {has}"))
        if found.why:
            pairs.append(
                ("shrink", f"{'would remove it' if found.would_go else 'keeps it'}: {found.why}")
            )
    else:
        pairs += [("row", _no_row(found)), ("reads as", _floats(found.weights))]
    return aligned(pairs)


def _no_row(found: Inspected) -> str:
    """Return why a key has no row."""
    if found.counted is None:
        return "none; a pull or push would make one"
    counted = ", ".join(f"{name} {value:g}" for name, value in found.counted.items())
    return f"none; not admitted yet, counted so far: {counted or 'nothing'}"


def _floats(values: NDArray[np.float32]) -> str:
    """Return numbers with as many digits as tell them apart."""
    return " ".join(map(str, values))
