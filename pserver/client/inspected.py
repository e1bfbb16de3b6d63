"""What one key has in a table, as ``Client.inspect`` tells it.

Rooms before and after: the key's shard answers Inspect; ``pserver inspect`` shows what is here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pserver.arrays import Keys
from pserver.client.inputs import as_keys
from pserver.client.membership import ShardInfo
from pserver.client.specs import Ask
from pserver.errors import ShapeError
from pserver.placement import partition_of, shard_of
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import parse_small


@dataclass(frozen=True, slots=True, eq=False)
class Inspected:
    """One key of one table, as it was when its shard was asked.

    Attributes:
        table: name of the table.
        key: in [0, 2^64).
        shard: index of the shard that owns the key.
        endpoint: of that shard.
        partition: of the key, in [0, 1024).
        has_row: whether the table has a row for it.
        weights: (dim,) float32; without a row, the first weights that it would get.
        state: the optimizer's floats by the name of each part, in the row's order; empty without a
            row.
        epoch: in which the row last changed; None without a row.
        table_epoch: in which the table is now.
        version: pushes that the shard has applied to the table.
        would_go: whether the next day's shrink would remove the row as it is now.
        why: the reason, for or against; empty where rows never go by day, and without a row.
        words: what a row keeps beside them, by name; empty without a row.
        counted: what admission counted of a key without a row, by name; None where a key without a
            row needs no admission.
        score: of a row of ctr; None of others.
        has_embedx: whether a row of ctr has its second part; without it, those weights are 0.
    """

    table: str
    key: int
    shard: int
    endpoint: str
    partition: int
    has_row: bool
    weights: NDArray[np.float32]
    state: Mapping[str, NDArray[np.float32]]
    epoch: int | None
    table_epoch: int
    version: int
    would_go: bool
    why: str
    words: Mapping[str, float]
    counted: Mapping[str, float] | None
    score: float | None
    has_embedx: bool


def as_key(value: int | np.integer, *, where: str) -> Keys:
    """Return one key as a (1,) uint64 array.

    Raises:
        ShapeError: no integer of 64 bits, or more than one.

    >>> as_key(-1, where="example")
    array([18446744073709551615], dtype=uint64)
    """
    keys = as_keys(value, where=where)
    if keys.size != 1:
        raise ShapeError(f"{where}: must be asked for one key, got {keys.size}")
    return keys


def inspected(request: pb.InspectRequest, reply: pb.InspectReply, info: ShardInfo) -> Inspected:
    """Return what a shard answered."""
    return Inspected(
        table=request.table,
        key=request.key,
        shard=info.shard,
        endpoint=info.endpoint,
        partition=int(partition_of(np.array([request.key], np.uint64))[0]),
        has_row=reply.has_row,
        weights=np.array(reply.weights, np.float32),
        state={part.name: np.array(part.values, np.float32) for part in reply.state},
        epoch=reply.epoch if reply.has_row else None,
        table_epoch=reply.table_epoch,
        version=reply.version,
        would_go=reply.would_go,
        why=reply.why,
        words={word.name: word.value for word in reply.words},
        counted={word.name: word.value for word in reply.counted} if reply.is_waiting else None,
        score=reply.score if reply.HasField("score") else None,
        has_embedx=reply.has_embedx,
    )


def inspect(shards: Sequence[ShardInfo], ask: Ask, table: str, key: int | np.integer) -> Inspected:
    """Ask the shard of a key what it has for it; see ``Client.inspect``."""
    keys = as_key(key, where=f"inspect {table!r}")
    info = shards[int(shard_of(keys, len(shards))[0])]
    request = pb.InspectRequest(incarnation=info.incarnation, table=table, key=int(keys[0]))
    (reply,) = ask("Inspect", [(info.shard, request)], what=f"inspect {table!r}")
    return inspected(request, parse_small(pb.InspectReply, reply), info)
