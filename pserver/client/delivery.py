"""A batch to and from the shards: split, composed, put into the queues, and what is on its way then.

Rooms before and after: ``Client`` and ``Group`` bring checked arrays; ``route`` and ``compose`` make the
messages; ``sendqueue`` delivers them; ``pending`` waits.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from pserver.arrays import Floats, Keys
from pserver.client.compose import (
    NOBODY,
    NOTHING,
    Asker,
    DenseBlock,
    Extra,
    pull_message,
    push_messages,
)
from pserver.client.gradients import Gradients, check_keys
from pserver.client.pending import PendingPull, PendingPush, Reply
from pserver.client.route import cargoes
from pserver.client.way import Way
from pserver.deadline import Deadline
from pserver.errors import DeadlineError
from pserver.placement import parts_of_slice, slice_of_shard


@dataclass(frozen=True, slots=True)
class Step:
    """What one push carries beside its sparse gradients.

    Attributes:
        dense: each dense table's (length,) contiguous float32 gradients.
        pulled: each table's version of each shard that gradients were computed from.
        round: that it is a part of; 0: applied when it arrives.
        samples: of the batch, in a round.
        is_everywhere: whether each shard gets a message that names every table, keys or not.
        position: steps of the trainer's data up to this push, it included; 0: not told. What a
            checkpoint's cut has of each trainer; in a round its number says it.
    """

    dense: Mapping[str, Floats]
    pulled: Mapping[str, Mapping[int, int]]
    round: int = 0
    samples: int = 0
    is_everywhere: bool = False
    position: int = 0


BARE = Step({}, {})
"""A push that is nothing but gradients."""


def start_read(
    way: Way,
    keys: Mapping[str, Keys],
    *,
    creates: bool,
    deadline: Deadline,
    asker: Asker = NOBODY,
    shown: bool = False,
) -> PendingPull:
    """Ask for rows and do not wait; see ``Client.start_pull``.

    Args:
        way: to the shards.
        keys: table name to (U,) contiguous uint64.
        creates: whether keys without a row get one.
        deadline: when to give up.
        asker: for whom.
        shown: whether shows and clicks are asked for too.
    """
    names = list(keys)
    specs = [way.spec(name) for name in names]
    for name in names:
        check_keys(keys[name], where=f"pull {name!r}")
    sent = []
    shards = []
    orders = [way.router.split(keys[name]) for name in names]
    for shard, info in enumerate(way.shards):
        key_bytes = 16 if shown else 8
        parts = [(o[shard], key_bytes + 4 * s.dim) for o, s in zip(orders, specs, strict=True)]
        for cargo in cargoes(parts):
            tables = [(names[index], order) for index, order in cargo.tables]
            message = pull_message(
                info.incarnation, tables, keys, creates=creates, asker=asker, shown=shown
            )
            sent.append((cargo, way.put(shard, "Pull", message, deadline)))
            shards.append(shard)
    shapes = [(keys[s.name].size, s.dim) for s in specs]
    return PendingPull(shapes, sent, shards, deadline, way.specs.forget)


def start_write(
    way: Way,
    method: str,
    gradients: Mapping[str, Gradients],
    *,
    deadline: Deadline,
    step: Step = BARE,
) -> PendingPush:
    """Split what is written over shards and messages, and put it into the queues.

    Args:
        way: to the shards.
        method: Push or Assign.
        gradients: checked; copied before this returns.
        deadline: when to give up.
        step: what a push carries beside them.

    Raises:
        DeadlineError: there was no room in time; if a part had left, it says so.
    """
    specs = [way.spec(name) for name in gradients]
    orders = [way.router.split(arrays[0]) for arrays in gradients.values()]
    tables = list(zip(specs, orders, strict=True))
    what = f"{method.lower()} {', '.join(map(repr, [*gradients, *step.dense]))}"
    replies: list[Reply] = []
    try:
        with way.order:
            for shard, info in enumerate(way.shards):
                new_id = functools.partial(way.push_id, shard)
                extra = _extra(step, shard, len(way.shards))
                messages = push_messages(
                    shard, info.incarnation, new_id, tables, gradients, extra=extra
                )
                for message in messages:  # one by one: what left must be known if one fails
                    reply = way.put(shard, method, message, deadline)
                    replies.append(reply)
    except DeadlineError as error:
        if not replies:
            raise
        part = PendingPush(what, replies, deadline, way.specs.forget)
        raise way.unwaited.cut_short(part, error) from error
    return PendingPush(what, replies, deadline, way.specs.forget)


def _extra(step: Step, shard: int, num_shards: int) -> Extra:
    """Return what a step carries to one shard beside its sparse gradients."""
    if step is BARE:
        return NOTHING
    blocks = []
    for table, grads in step.dense.items():
        begin, end = slice_of_shard(grads.size, shard, num_shards)
        for part, (first, behind) in enumerate(parts_of_slice(end - begin)):
            blocks.append(DenseBlock(table, part, grads[begin + first : begin + behind]))
    pulled = {
        table: versions[shard] + 1 for table, versions in step.pulled.items() if shard in versions
    }
    return Extra(
        blocks, pulled, step.round, step.samples, step.is_everywhere, position=step.position
    )
