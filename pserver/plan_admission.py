"""What admission will keep of keys without a row, in bytes: a part of ``plan``.

Rooms before and after: ``plan`` adds it to each shard; ``table.admission`` makes the filters,
``table.candidates`` and ``table.sketch`` are what is counted here.

What always holds: as of ``plan``: what the filter's ``num_bytes`` would say, on average over which keys wait.
"""

from typing import Any

import numpy as np

from pserver.arrays import Doubles
from pserver.errors import ConfigError
from pserver.placement import NUM_PARTITIONS, shard_of_partition
from pserver.table.accessor import Accessor
from pserver.table.admission import AdmissionRule, make_admission_rule
from pserver.table.admission_filters import ExactCount, ScoreFilter
from pserver.table.sketch import partition_bytes

_WORD_BYTES = 4


def plan_admission(
    text: str, waiting: int, accessor: Accessor, index_bytes: Doubles
) -> tuple[dict[str, Any], Doubles]:
    """Return what admission counts: spelled out and over all shards, and (S,) its bytes on each.

    Args:
        text: the rule, as a spec has it.
        waiting: keys over all shards that are counted and have no row yet.
        accessor: of the table.
        index_bytes: (S,) of an index of so many keys.

    Raises:
        ConfigError: no table could have the rule, or nothing is kept of each key and ``waiting`` is not 0.
    """
    rule = make_admission_rule(text, accessor, where="--admission")
    if waiting and not _is_by_key(rule):
        raise ConfigError(
            f"--waiting-keys has no effect with admission {rule.text}, which keeps nothing of each key; "
            "leave it out"
        )
    counted = _filter_bytes(rule, waiting, index_bytes)
    said = {"admission": rule.text, "waiting_keys": waiting, "filter_bytes": round(counted.sum())}
    return said, counted


def _is_by_key(rule: AdmissionRule) -> bool:
    """Return whether a rule keeps a record of each key that waits."""
    return rule.name == "show_click" or rule.values.get("filter") == "exact"


def _filter_bytes(rule: AdmissionRule, waiting: int, index_bytes: Doubles) -> Doubles:
    """Return (S,) bytes of what is counted on each shard; a sketch is in use in every partition."""
    num_shards = index_bytes.size
    partitions = np.bincount(shard_of_partition(num_shards), minlength=num_shards).astype(
        np.float64
    )
    if rule.values.get("filter") == "sketch":
        return partitions * partition_bytes(int(rule.values["counters"]))
    if not _is_by_key(rule):
        return np.zeros(num_shards)
    fields = ScoreFilter.FIELDS if rule.name == "show_click" else ExactCount.FIELDS
    record_bytes = _WORD_BYTES * len(fields)
    return waiting / NUM_PARTITIONS * partitions * record_bytes + index_bytes
