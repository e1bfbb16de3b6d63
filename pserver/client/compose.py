"""The message of a batch for one shard: filled where it stands, with the keys that go there.

Rooms before and after: ``route`` says which positions of a batch go into which message; ``wire``
allocates it; ``delivery`` hands it to the shard's queue.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pserver.arrays import Floats, Keys, RowIds
from pserver.client.gradients import Gradients
from pserver.client.route import Cargo, cargoes, naming_all_last
from pserver.client.said import said_of
from pserver.config import PART_BYTES_MAX
from pserver.kernel import rows
from pserver.occurrences import Occurrences
from pserver.spec import TableSpec
from pserver.wire import PushId, Stamp, TablePush, TableSize, build_pull, build_push


@dataclass(frozen=True, slots=True)
class Asker:
    """For whom a pull is.

    Attributes:
        trainer: uuid of a group's trainer; empty: nobody's, and nobody is waited for.
        round: that it is for; 0: none.
    """

    trainer: bytes = b""
    round: int = 0


@dataclass(frozen=True, slots=True)
class DenseBlock:
    """Gradients of one part of a shard's slice of a dense table."""

    table: str
    part: int
    grads: Floats


@dataclass(frozen=True, slots=True)
class Extra:
    """What a push to one shard carries beside its sparse gradients.

    Attributes:
        dense: gradients of dense tables, the parts of each in order.
        pulled: the version + 1 of each table that gradients were computed from.
        round: that it is a part of; 0: applied when it arrives.
        samples: of the batch, in a round.
        is_everywhere: whether it names every table, also if none of its keys goes to this shard.
        is_part: whether further messages of the same push follow that are not made yet.
        position: steps of the trainer's data up to this push; 0: not told.
    """

    dense: Sequence[DenseBlock] = ()
    pulled: Mapping[str, int] = field(default_factory=dict)
    round: int = 0
    samples: int = 0
    is_everywhere: bool = False
    is_part: bool = False
    position: int = 0


@dataclass(frozen=True, slots=True)
class Beside:
    """What one message carries beside its sparse gradients; see ``Extra``."""

    dense: Sequence[DenseBlock] = ()
    pulled: Mapping[str, int] = field(default_factory=dict)
    stamp: Stamp | None = None
    position: int = 0


ALONE = Beside()
NOBODY = Asker()
NOTHING = Extra()


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


def _copy_said(said: Occurrences, order: RowIds, block: TablePush) -> None:
    """Write what is said of the keys ``order``."""
    if said.counts.size:
        rows.pick_counts(said.counts, order, block.counts)
    if said.shows.size:
        _copy_rows(said.shows, 1, order, block.shows)
    if said.clicks.size:
        _copy_rows(said.clicks, 1, order, block.clicks)
    if said.slots.size:
        rows.pick_counts(said.slots, order, block.slots)


def pull_message(
    incarnation: int,
    tables: Sequence[tuple[str, RowIds]],
    keys: Mapping[str, Keys],
    *,
    creates: bool,
    asker: Asker = NOBODY,
    shown: bool = False,
) -> bytes:
    """Return the bytes of one pull or peek.

    Args:
        incarnation: of the shard that is meant.
        tables: names, each with the (V,) positions of the keys that are asked for.
        keys: the batch's (U,) keys of each table.
        creates: whether keys without a row get one.
        asker: for whom.
        shown: whether shows and clicks are asked for too.
    """
    sizes = [(name, creates, order.size, shown) for name, order in tables]
    message, blocks = build_pull(
        incarnation, sizes, trainer=asker.trainer, round_number=asker.round
    )
    for (name, order), block in zip(tables, blocks, strict=True):
        _copy_keys(keys[name], order, block)
    return message


def push_messages(
    shard: int,
    incarnation: int,
    next_id: Callable[[], PushId],
    tables: Sequence[tuple[TableSpec, Sequence[RowIds]]],
    gradients: Mapping[str, Gradients],
    *,
    extra: Extra = NOTHING,
) -> Iterator[bytes]:
    """Yield the messages of one push or assign to one shard, in order; none if nothing goes there.

    Args:
        shard: who gets them.
        incarnation: of the shard that is meant.
        next_id: gives the push_id of each message.
        tables: specs, each with the positions of its keys by shard.
        gradients: the batch's arrays of each table.
        extra: what it carries beside them.
    """
    # A key takes 8 bytes, its values, and 4 for each thing said of it: its count at least.
    num_said = [max(1, said_of(gradients[spec.name][2]).num_said) for spec, _ in tables]
    key_bytes = [
        8 + 4 * spec.dim + 4 * count for (spec, _), count in zip(tables, num_said, strict=True)
    ]
    parts = list(
        cargoes(
            [(orders[shard], size) for (_, orders), size in zip(tables, key_bytes, strict=True)]
        )
    )
    dense: list[list[DenseBlock]] = [[] for _ in parts]
    room = 0
    if parts:
        room = PART_BYTES_MAX - sum(o.size * key_bytes[index] for index, o in parts[-1].tables)
    for block in extra.dense:
        if room < block.grads.nbytes or not parts:
            parts.append(Cargo([], is_last=False))
            dense.append([])
            room = PART_BYTES_MAX
        dense[-1].append(block)
        room -= block.grads.nbytes
    if extra.is_everywhere and not parts:
        parts, dense = [Cargo([], is_last=True)], [[]]
    stamp = Stamp(extra.round, extra.samples, len(parts)) if extra.round else None
    everywhere = range(len(tables)) if extra.is_everywhere else ()
    for number, cargo in enumerate(naming_all_last(parts, everywhere), 1):
        yield push_message(
            incarnation,
            next_id(),
            [(tables[index][0], order) for index, order in cargo.tables],
            gradients,
            more=extra.is_part or number < len(parts),
            beside=Beside(dense[number - 1], extra.pulled, stamp, extra.position),
        )


def push_message(
    incarnation: int,
    push_id: PushId,
    tables: Sequence[tuple[TableSpec, RowIds]],
    gradients: Mapping[str, Gradients],
    *,
    more: bool,
    beside: Beside = ALONE,
) -> bytes:
    """Return the bytes of one push or assign.

    Args:
        incarnation: of the shard that is meant.
        push_id: the same on every retry.
        tables: specs, each with the (V,) positions of the keys that are written.
        gradients: the batch's arrays of each table.
        more: whether further parts of the same push follow.
        beside: what goes with them.
    """
    dense, pulled = beside.dense, beside.pulled
    said = [said_of(gradients[spec.name][2]) for spec, _ in tables]
    sizes = [
        TableSize(
            spec.name,
            order.size,
            order.size * spec.dim,
            order.size * (one.counts.size > 0),
            pulled=pulled.get(spec.name, 0),
            num_shows=order.size * (one.shows.size > 0),
            num_clicks=order.size * (one.clicks.size > 0),
            num_slots=order.size * (one.slots.size > 0),
        )
        for (spec, order), one in zip(tables, said, strict=True)
    ]
    sizes += [
        TableSize(b.table, 0, b.grads.size, 0, b.part + 1, pulled.get(b.table, 0)) for b in dense
    ]
    message, blocks = build_push(
        incarnation, push_id, sizes, more=more, stamp=beside.stamp, position=beside.position
    )
    for (spec, order), one, block in zip(tables, said, blocks, strict=False):
        keys, values, _ = gradients[spec.name]
        _copy_keys(keys, order, block.keys)
        _copy_rows(values, spec.dim, order, block.values)
        _copy_said(one, order, block)
    for given, block in zip(dense, blocks[len(tables) :], strict=True):
        block.values[:] = given.grads
    return message
