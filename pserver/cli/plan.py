"""``pserver plan``: what a table will cost, without a server.

Rooms before and after: ``cli`` gives the flags; ``plan`` counts.
"""

import argparse
import dataclasses
import json

from pserver.cli.shared import aligned, size_text
from pserver.options import whole_number
from pserver.plan import BATCH_KEYS, BUCKET_BYTES, Plan, make_plan
from pserver.spec import ROW_DTYPES, ROWS_MAX, STORAGES, TableSpec


def add_plan(planning: argparse.ArgumentParser) -> None:
    """Give ``plan`` its flags; what a spec has, has the spec's default."""
    spec = TableSpec(name="plan", dim=16)
    for flag, default, text in (
        ("--rows", None, "rows over all shards, such as 2e9"),
        ("--dim", spec.dim, "weights a row"),
        ("--shards", 1, "how many shards the cluster has"),
        ("--capacity-max", spec.capacity_max, "rows that a shard may hold"),
        ("--batch-keys", BATCH_KEYS, "distinct keys of a batch"),
    ):
        planning.add_argument(
            flag,
            type=whole_number,
            metavar=flag.rsplit("-", maxsplit=1)[-1].upper(),
            default=default,
            required=default is None,
            help=text if default is None else f"{text} (default: {default})",
        )
    planning.add_argument(
        "--optimizer",
        default=spec.optimizer,
        help=f"see `pserver optimizers` (default: {spec.optimizer})",
    )
    for flag, word, words, text in (
        ("--row-dtype", spec.row_dtype, ROW_DTYPES, "what weights are kept in"),
        ("--storage", spec.storage, STORAGES, "where rows are kept"),
    ):
        planning.add_argument(
            flag, default=word, metavar="|".join(words), help=f"{text} (default: {word})"
        )
    _add_rules(planning, spec)
    planning.add_argument("--json", action="store_true", help="print one JSON object")
    planning.set_defaults(run=_plan)


def _add_rules(planning: argparse.ArgumentParser, spec: TableSpec) -> None:
    """Give ``plan`` the flags of what is kept of a key, and for how long."""
    planning.add_argument(
        "--accessor", default=spec.accessor, help=f"plain or ctr (default: {spec.accessor})"
    )
    planning.add_argument(
        "--embedx-share",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="of the rows of ctr, those that have embedx (default: 1)",
    )
    planning.add_argument(
        "--embedx-optimizer",
        default=spec.embedx_optimizer,
        metavar="RULE",
        help="of the second part of rows of ctr (default: as --optimizer)",
    )
    planning.add_argument(
        "--evict", default=spec.evict, help=f"which rows fall out (default: {spec.evict})"
    )
    planning.add_argument(
        "--ttl-days",
        type=whole_number,
        default=spec.ttl_days,
        metavar="DAYS",
        help="days of data that rows live unwritten (default: 0, for ever)",
    )
    planning.add_argument(
        "--admission",
        default=spec.admission,
        metavar="RULE",
        help=f"which keys get a row (default: {spec.admission})",
    )
    planning.add_argument(
        "--waiting-keys",
        type=whole_number,
        default=0,
        metavar="KEYS",
        help="over all shards, keys that admission counts and that have no row (default: 0)",
    )


def _plan(given: argparse.Namespace) -> None:
    plan = make_plan(
        rows=given.rows,
        dim=given.dim,
        optimizer=given.optimizer,
        num_shards=given.shards,
        capacity_max=given.capacity_max,
        batch_keys=given.batch_keys,
        row_dtype=given.row_dtype,
        storage=given.storage,
        accessor=given.accessor,
        embedx_share=given.embedx_share,
        embedx_optimizer=given.embedx_optimizer,
        evict=given.evict,
        ttl_days=given.ttl_days,
        admission=given.admission,
        waiting_keys=given.waiting_keys,
    )
    if given.json:
        print(json.dumps(dataclasses.asdict(plan)))
    else:
        print(*plan_lines(plan), sep="\n")


def plan_lines(plan: Plan) -> list[str]:
    """Return a plan for people, a line a figure."""
    shards = "1 shard" if plan.num_shards == 1 else f"{plan.num_shards} shards"
    return aligned(
        [
            ("table", f"{plan.rows:,} rows of dim {plan.dim} on {shards}"),
            ("optimizer", plan.optimizer),
            ("bytes a row", f"{plan.row_bytes:.1f}"),
            ("  weights", f"{plan.weights_bytes}: {plan.row_dtype}"),
            ("  state", f"{plan.state_bytes}: {', '.join(plan.state_parts) or 'none'}"),
            *_epoch_line(plan),
            (
                "  index",
                f"{plan.index_bytes:.1f}: {BUCKET_BYTES} bytes a bucket, "
                f"{100 * plan.index_load:.0f} % of them filled",
            ),
            (
                "",
                "a partition (1024 in all) doubles its buckets when they are 1/2 to 3/4 full",
            ),
            *_filter_line(plan),
            ("largest shard", f"{size_text(plan.shard_bytes)}, {plan.shard_rows:,} rows"),
            *_places(plan),
            ("all shards", size_text(plan.total_bytes)),
            ("capacity_max", _capacity(plan)),
            ("one batch", f"{plan.batch_keys:,} distinct keys over all shards"),
            (
                "  pull",
                f"{size_text(plan.pull_request_bytes)} there, {size_text(plan.pull_reply_bytes)} back",
            ),
            ("  push", f"{size_text(plan.push_request_bytes)} there"),
        ]
    )


def _places(plan: Plan) -> list[tuple[str, str]]:
    """Return what of the largest shard lies where, if not all is in memory."""
    if plan.storage == "memory":
        return []
    memory = plan.shard_bytes - plan.shard_file_bytes
    return [
        ("  memory", f"{size_text(memory)} for keys and epochs, and what you give to hot rows"),
        ("  file", f"{size_text(plan.shard_file_bytes)} for weights and state"),
    ]


def _filter_line(plan: Plan) -> list[tuple[str, str]]:
    """Return what admission keeps of keys without a row, if it decides anything."""
    if plan.admission == "always":
        return []
    keys = f" of {plan.waiting_keys:,} keys that wait" if plan.waiting_keys else ""
    return [
        ("admission", f"{size_text(plan.filter_bytes)}{keys} over all shards: {plan.admission}")
    ]


def _capacity(plan: Plan) -> str:
    """Return whether the shards have room for their rows, and what to do if not."""
    text = f"{plan.capacity_max:,} rows a shard: "
    if plan.is_capacity_enough:
        return f"{text}enough, {plan.capacity_needed:,} are needed"
    ways = []
    if plan.capacity_needed <= ROWS_MAX:
        ways.append(f"make it {plan.capacity_needed:,}")
    if plan.shards_needed:
        ways.append(f"take {plan.shards_needed} shards or more")
    return f"{text}too small; {', or '.join(ways) or 'raise it, and take more shards'}"


def _epoch_line(plan: Plan) -> list[tuple[str, str]]:
    """Return what a row has beside weights, state and its share of the index."""
    said = []
    if plan.accessor != "plain":
        share = f"{100 * plan.embedx_share:g} % of the rows have embedx"
        said.append(f"accessor ctr; {share}, {plan.embedx_optimizer}")
    if plan.evict != "none":
        said.append(f"evict {plan.evict}")
    if plan.ttl_days:
        said.append(f"ttl of {plan.ttl_days} days")
    if not said:
        return [("  epoch", f"{plan.epoch_bytes}")]
    return [("  epoch, words", f"{plan.epoch_bytes}: {'; '.join(said)}")]
