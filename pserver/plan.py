"""What a table will cost before there is one: bytes a row, a shard, and a batch on the network.

Rooms before and after: ``pserver plan`` shows it; ``table.slab`` and ``kernel.hashmap`` are what it
counts, ``wire`` the blocks of a message.

What always holds: ``total_bytes`` is what ``SparseTable.num_bytes`` would say, on average over which
keys come: within a few percent, since a partition's index is a power of two of buckets.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pserver.arrays import Doubles
from pserver.errors import ConfigError, nearest
from pserver.kernel.hashmap import BUCKETS_MIN, limit_of
from pserver.placement import NUM_PARTITIONS, SHARDS_MAX, partitions_of_shard, shard_of_partition
from pserver.plan_admission import plan_admission
from pserver.spec import DAYS_MAX, DIM_MAX, ROW_DTYPES, ROWS_MAX, STORAGES
from pserver.table.accessor import Accessor, make_accessor
from pserver.table.eviction import make_eviction_rule
from pserver.table.optimizer import Optimizer, make_optimizer

BATCH_KEYS = 27_600
"""Distinct keys of one batch of the standard workload: 4096 samples of 26 slots."""

BUCKET_BYTES = 16
EPOCH_BYTES = 4
KEY_BYTES = 8
COUNT_BYTES = 4
FLOAT_BYTES = 4
HALF_BYTES = 2

_SPREAD = 6.0
"""Standard deviations that a shard may have over its share of the rows: one in 10^9 has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The cost of one table.

    Attributes:
        rows: over all shards.
        dim: weights a row.
        optimizer: the rule, spelled out.
        row_dtype: what weights are kept in.
        storage: where rows are kept.
        num_shards: of the cluster.
        capacity_max: rows that a shard may hold.
        accessor: of the table, spelled out.
        embedx_share: share of the rows that have their second part; 1 where rows have one part.
        embedx_optimizer: the rule of the second part, spelled out; empty where rows have one part.
        evict: which rows fall out, spelled out.
        ttl_days: after which rows go; 0 none.
        admission: which keys get a row, spelled out.
        waiting_keys: over all shards, counted by admission and without a row.
        filter_bytes: what admission counts, over all shards.
        weights_bytes: of a row, on average over those with embedx and those without.
        state_bytes: as above.
        state_parts: floats of a row's state by the name of each part.
        epoch_bytes: of a row, and of the words that accessor, eviction and ttl keep of it.
        index_bytes: of a row, on average over all shards.
        row_bytes: the sum of these four.
        index_buckets: over all shards.
        index_load: rows a bucket.
        shard_rows: the share of the shard with the most partitions.
        shard_bytes: of the largest shard, memory and file.
        shard_file_bytes: of these, what lies on a file.
        total_bytes: of all shards, memory and files.
        capacity_needed: rows (or keys that wait, if more) that a shard must take; with a margin for chance.
        is_capacity_enough: whether ``capacity_max`` is that much.
        shards_needed: the fewest shards for which ``capacity_max`` is enough; None where none are.
        batch_keys: distinct keys of a batch.
        pull_request_bytes: of one batch over all shards, without the heads of messages.
        pull_reply_bytes: as above.
        push_request_bytes: as above.
    """

    rows: int
    dim: int
    optimizer: str
    row_dtype: str
    storage: str
    num_shards: int
    capacity_max: int
    accessor: str
    embedx_share: float
    embedx_optimizer: str
    evict: str
    ttl_days: int
    admission: str
    waiting_keys: int
    filter_bytes: int
    weights_bytes: int
    state_bytes: int
    state_parts: Mapping[str, int]
    epoch_bytes: int
    index_bytes: float
    row_bytes: float
    index_buckets: int
    index_load: float
    shard_rows: int
    shard_bytes: int
    shard_file_bytes: int
    total_bytes: int
    capacity_needed: int
    is_capacity_enough: bool
    shards_needed: int | None
    batch_keys: int
    pull_request_bytes: int
    pull_reply_bytes: int
    push_request_bytes: int


def make_plan(  # noqa: PLR0913 - a table's spec and its cluster, given by name
    *,
    rows: int,
    dim: int,
    optimizer: str,
    num_shards: int,
    capacity_max: int,
    batch_keys: int = BATCH_KEYS,
    row_dtype: str = "float32",
    storage: str = "memory",
    accessor: str = "plain",
    embedx_share: float = 1.0,
    embedx_optimizer: str = "",
    evict: str = "none",
    ttl_days: int = 0,
    admission: str = "always",
    waiting_keys: int = 0,
) -> Plan:
    """Return what a table will cost.

    Args:
        rows: over all shards.
        dim: weights a row.
        optimizer: the rule, as a spec has it.
        num_shards: of the cluster.
        capacity_max: rows that a shard may hold, as a spec has it.
        batch_keys: distinct keys of a batch.
        row_dtype: what weights are kept in, as a spec has it.
        storage: where rows are kept, as a spec has it.
        accessor: as a spec has it.
        embedx_share: share of the rows of ctr that have embedx.
        embedx_optimizer: as a spec has it.
        evict: as a spec has it.
        ttl_days: as a spec has it.
        admission: as a spec has it.
        waiting_keys: over all shards, counted by admission and without a row.

    Raises:
        ConfigError: a number is out of range, or a rule or word is unknown.
    """
    _check_numbers(rows, dim, num_shards, capacity_max, batch_keys, waiting_keys)
    rule = make_optimizer(optimizer, dim=dim, where="--optimizer")
    kept = make_accessor(accessor, where="--accessor")
    rules = (optimizer, _embedx_rule(embedx_optimizer, optimizer, dim, kept))
    going, words = _going(evict, ttl_days, kept)
    row = _row(rules, dim, _weight_bytes(row_dtype), kept, embedx_share, words)
    buckets = _shard_buckets(rows, num_shards)
    waiting = BUCKET_BYTES * _shard_buckets(waiting_keys, num_shards)
    said, counted = plan_admission(admission, waiting_keys, kept, waiting)
    return Plan(
        row_dtype=row_dtype,
        **_rules(rule, rules[1], kept, embedx_share),
        **going,
        **row,
        **_index(rows, buckets, row),
        **_shares(rows, buckets, row, storage, counted),
        **said,
        **_capacity(max(rows, waiting_keys), num_shards, capacity_max),
        **_batch(batch_keys, dim),
    )


def _rules(rule: Optimizer, embedx: str, accessor: Accessor, share: float) -> dict[str, Any]:
    """Return the rules of rows, spelled out."""
    return {
        "dim": rule.dim,
        "embedx_share": share,
        "optimizer": rule.text,
        "state_parts": rule.parts,
        "accessor": accessor.text,
        "embedx_optimizer": embedx if accessor.is_ctr else "",
    }


def _embedx_rule(text: str, optimizer: str, dim: int, accessor: Accessor) -> str:
    """Return the rule of the second part of rows, spelled out, or refuse one where there is none."""
    if text and not accessor.is_ctr:
        raise ConfigError(
            f"--embedx-optimizer has no effect with accessor {accessor.text}; leave it out"
        )
    where = "--embedx-optimizer" if text else "--optimizer"
    return make_optimizer(text or optimizer, dim=max(1, dim - 1), where=where).text


def _going(evict: str, days: int, accessor: Accessor) -> tuple[dict[str, Any], int]:
    """Return what makes rows go, spelled out, and how many words a row has for it.

    Raises:
        ConfigError: a table could not have such a rule, or such days.
    """
    rule = make_eviction_rule(evict, is_ctr=accessor.is_ctr, where="--evict")
    if not 0 <= days <= DAYS_MAX:
        raise ConfigError(f"--ttl-days must be in [0, {DAYS_MAX}], got {days}")
    if days and accessor.is_ctr:
        raise ConfigError(
            "--ttl-days is for the accessor plain; rows of ctr go by its delete_after_unseen_days"
        )
    return {"evict": rule.text, "ttl_days": days}, len(rule.fields) + (days > 0)


def _row(
    rules: tuple[str, str],
    dim: int,
    weight_bytes: int,
    accessor: Accessor,
    share: float,
    words: int,
) -> dict[str, Any]:
    """Return the bytes that a row has beside the index, on average.

    Raises:
        ConfigError: the share of rows with embedx is not in [0, 1], or rows have one part.
    """
    wide, rest = (1, dim - 1) if accessor.is_ctr else (dim, 0)
    wide_state, rest_state = (
        make_optimizer(rule, dim=part).state_dim if part else 0
        for rule, part in zip(rules, (wide, rest), strict=True)
    )
    if accessor.is_ctr:
        if not 0.0 <= share <= 1.0:
            raise ConfigError(f"--embedx-share must be in [0, 1], got {share}")
    elif share != 1.0:
        raise ConfigError(
            f"--embedx-share has no effect with accessor {accessor.text}; leave it out"
        )
    return {
        "weights_bytes": round(weight_bytes * (wide + share * rest)),
        "state_bytes": round(FLOAT_BYTES * (wide_state + share * rest_state)),
        "epoch_bytes": EPOCH_BYTES + FLOAT_BYTES * (len(accessor.fields) + words),
    }


def _index(rows: int, buckets: Doubles, row: Mapping[str, int]) -> dict[str, Any]:
    """Return what the indexes of all shards have, and rows with them; ``buckets`` is (S,)."""
    index_bytes = float(BUCKET_BYTES * buckets.sum() / rows)
    return {
        "rows": rows,
        "row_bytes": sum(row.values()) + index_bytes,
        "index_bytes": index_bytes,
        "index_buckets": round(buckets.sum()),
        "index_load": float(rows / buckets.sum()),
    }


def _capacity(rows: int, num_shards: int, capacity_max: int) -> dict[str, Any]:
    """Return whether the shards have room for their rows."""
    needed = _rows_needed(rows, num_shards)
    return {
        "num_shards": num_shards,
        "capacity_max": capacity_max,
        "capacity_needed": needed,
        "is_capacity_enough": needed <= capacity_max,
        "shards_needed": _shards_needed(rows, capacity_max),
    }


def _shares(
    rows: int, buckets: Doubles, row: Mapping[str, int], storage: str, counted: Doubles
) -> dict[str, Any]:
    """Return what the largest shard and all of them have.

    Args:
        rows: over all shards.
        buckets: (S,) of each shard.
        row: bytes of its parts, beside the index.
        storage: where rows are kept.
        counted: (S,) bytes of what admission counts on each.
    """
    _check_word("--storage", storage, STORAGES)
    slab_bytes = sum(row.values())
    file_bytes = slab_bytes - row["epoch_bytes"] if storage == "file" else 0
    num_shards = buckets.size
    partitions = np.bincount(shard_of_partition(num_shards), minlength=num_shards)
    shares = rows / NUM_PARTITIONS * partitions
    shard_bytes = shares * slab_bytes + BUCKET_BYTES * buckets + counted
    return {
        "storage": storage,
        "shard_rows": math.ceil(shares.max()),
        "shard_bytes": round(shard_bytes.max()),
        "shard_file_bytes": round(shares.max() * file_bytes),
        "total_bytes": round(shard_bytes.sum()),
    }


def _batch(keys: int, dim: int) -> dict[str, Any]:
    """Return what a batch of so many distinct keys takes on the network."""
    return {
        "batch_keys": keys,
        "pull_request_bytes": keys * KEY_BYTES,
        "pull_reply_bytes": keys * FLOAT_BYTES * dim,
        "push_request_bytes": keys * (KEY_BYTES + FLOAT_BYTES * dim + COUNT_BYTES),
    }


def _check_numbers(rows: int, dim: int, shards: int, rows_max: int, keys: int, wait: int) -> None:
    """Refuse a number that no cluster could have."""
    _check_range("--rows", rows, ROWS_MAX * SHARDS_MAX)
    _check_range("--dim", dim, DIM_MAX)
    _check_range("--shards", shards, SHARDS_MAX)
    _check_range("--capacity-max", rows_max, ROWS_MAX)
    _check_range("--batch-keys", keys, ROWS_MAX)
    _check_range("--waiting-keys", wait, ROWS_MAX * SHARDS_MAX, low=0)


def _check_range(flag: str, value: int, high: int, *, low: int = 1) -> None:
    """Refuse a number that is not in [low, high]."""
    if not low <= value <= high:
        raise ConfigError(f"{flag} must be in [{low}, {high}], got {value}")


def _check_word(flag: str, word: str, valid: Sequence[str]) -> None:
    if word not in valid:
        raise ConfigError(f"{flag}: unknown value {word!r}; {nearest(word, valid)}")


def _weight_bytes(row_dtype: str) -> int:
    """Return the bytes of a weight, or refuse a dtype that there is not."""
    _check_word("--row-dtype", row_dtype, ROW_DTYPES)
    return FLOAT_BYTES if row_dtype == "float32" else HALF_BYTES


def expected_buckets(rows: float) -> Doubles:
    """Return the buckets that the region of each partition has on average.

    A partition gets each row with probability 1/1024, whatever the keys are: they are hashed. Its
    region has the smallest power of two of buckets that takes its rows: one more doubling for
    each ``hashmap.limit_of`` that they exceed. How many rows it has is binomial, here normal.

    Args:
        rows: in all 1024 partitions.

    Returns:
        (1024,) float64.

    >>> expected_buckets(0.0).sum().item() / 1024
    8.0
    """
    mean = rows / NUM_PARTITIONS
    deviation = math.sqrt(mean * (1.0 - 1.0 / NUM_PARTITIONS))
    buckets = np.full(NUM_PARTITIONS, float(BUCKETS_MIN))
    count = BUCKETS_MIN
    while count / 2 <= mean + 10.0 * deviation:  # no region doubles at a load below 1/2
        buckets += count * _exceeds(_limits(count), mean, deviation)
        count *= 2
    return buckets


def _limits(count: int) -> NDArray[np.int64]:
    """Return how many rows the region of each partition takes while it has so many buckets."""
    return np.array([limit_of(partition, count) for partition in range(NUM_PARTITIONS)])


def _exceeds(limits: NDArray[np.int64], mean: float, deviation: float) -> Doubles:
    """Return the probability that a partition has more rows than each of the limits."""
    if deviation == 0.0:
        return np.zeros(limits.size)
    scores = (limits + 0.5 - mean) / (deviation * math.sqrt(2.0))
    return np.array([0.5 * math.erfc(score) for score in scores.tolist()])


def _shard_buckets(rows: int, num_shards: int) -> Doubles:
    """Return the buckets of each shard, (S,); partitions of other shards are empty there."""
    buckets = expected_buckets(rows)
    sizes = np.empty(num_shards)
    for shard in range(num_shards):
        begin, end = partitions_of_shard(shard, num_shards)
        sizes[shard] = buckets[begin:end].sum() + BUCKETS_MIN * (NUM_PARTITIONS - end + begin)
    return sizes


def _rows_needed(rows: int, num_shards: int) -> int:
    """Return for how many rows each shard must have room."""
    share = -(-NUM_PARTITIONS // num_shards) / NUM_PARTITIONS
    margin = _SPREAD * math.sqrt(rows * share * (1.0 - share))
    return min(rows, math.ceil(rows * share + margin))


def _shards_needed(rows: int, capacity_max: int) -> int | None:
    """Return the fewest shards whose rows all fit, or None."""
    counts = range(1, SHARDS_MAX + 1)
    return next((n for n in counts if _rows_needed(rows, n) <= capacity_max), None)
