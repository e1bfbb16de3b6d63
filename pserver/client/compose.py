"""The message of a batch for one shard: filled where it stands, with the keys that go there.

Rooms before and after: ``route`` says which positions of a batch go into which message; ``wire``
allocates it; ``Client`` hands it to the shard's queue.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from pserver.arrays import Floats, Keys, RowIds
from pserver.client.gradients import Gradients
from pserver.client.route import cargoes, naming_all_last
from pserver.kernel import rows
from pserver.spec import TableSpec
from pserver.wire import PushId, TableSize, build_pull, build_push


def _is_run(order: RowIds) -> bool:
    """Return whether ascending positions have no gap, as all of them have with one shard."""
    return bool(order.size and order[-1] - order[0] == order.size - 1)


def _copy_keys(keys: Keys, order: RowIds, out: Keys) -> None:
    """Write ``keys[order]``, as one block where that is possible."""
    if _is_run(order):
        np.copyto(out, keys[order[0] : order[0] + order.size])
    else:
        rows.pick(keys, order, out)


def _copy_rows(values: Floats, dim: int, order: RowIds, out: Floats) -> None:
    """Write the rows ``order`` of a block, as one block where that is possible."""
    if _is_run(order):
        start = int(order[0]) * dim
        np.copyto(out, values[start : start + out.size])
    else:
        rows.take(values, dim, order, out)


def pull_message(
    incarnation: int,
    tables: Sequence[tuple[str, RowIds]],
    keys: Mapping[str, Keys],
    *,
    creates: bool,
) -> bytes:
    """Return the bytes of one pull or peek.

    Args:
        incarnation: of the shard that is meant.
        tables: names, each with the (V,) positions of the keys that are asked for.
        keys: the batch's (U,) keys of each table.
        creates: whether keys without a row get one.
    """
    sizes = [(name, creates, order.size) for name, order in tables]
    message, blocks = build_pull(incarnation, sizes)
    for (name, order), block in zip(tables, blocks, strict=True):
        _copy_keys(keys[name], order, block)
    return message


def push_messages(
    shard: int,
    incarnation: int,
    next_id: Callable[[], PushId],
    tables: Sequence[tuple[TableSpec, Sequence[RowIds]]],
    gradients: Mapping[str, Gradients],
) -> Iterator[bytes]:
    """Yield the messages of one push or assign to one shard, in order; none if no key goes there.

    Args:
        shard: who gets them.
        incarnation: of the shard that is meant.
        next_id: gives the push_id of each message.
        tables: specs, each with the positions of its keys by shard.
        gradients: the batch's arrays of each table.
    """
    # A key takes 8 bytes, 4 for its count, and its values.
    parts = [(orders[shard], 12 + 4 * spec.dim) for spec, orders in tables]
    for cargo in naming_all_last(cargoes(parts)):
        named = [(tables[index][0], order) for index, order in cargo.tables]
        yield push_message(incarnation, next_id(), named, gradients, more=not cargo.is_last)


def push_message(
    incarnation: int,
    push_id: PushId,
    tables: Sequence[tuple[TableSpec, RowIds]],
    gradients: Mapping[str, Gradients],
    *,
    more: bool,
) -> bytes:
    """Return the bytes of one push or assign.

    Args:
        incarnation: of the shard that is meant.
        push_id: the same on every retry.
        tables: specs, each with the (V,) positions of the keys that are written.
        gradients: the batch's arrays of each table.
        more: whether further parts of the same push follow.
    """
    sizes = [
        TableSize(
            spec.name,
            order.size,
            order.size * spec.dim,
            order.size if gradients[spec.name][2].size else 0,
        )
        for spec, order in tables
    ]
    message, blocks = build_push(incarnation, push_id, sizes, more=more)
    for (spec, order), block in zip(tables, blocks, strict=True):
        keys, values, counts = gradients[spec.name]
        _copy_keys(keys, order, block.keys)
        _copy_rows(values, spec.dim, order, block.values)
        if counts.size:
            rows.pick_counts(counts, order, block.counts)
    return message
