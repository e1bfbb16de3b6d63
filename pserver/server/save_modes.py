"""The modes of a save: which rows it writes, and what it does to them once it is durable.

Rooms before and after: ``checkpoint`` asks when a save begins and when its version is published;
``table.choice`` chooses rows and does a slice; ``recovery`` replays the records.

After a delta or a base the rows that Paddle would have chosen begin their delta_score anew. (Paddle's mode 3
also lets a day pass; here the day passes with ``shrink``, which goes before it, and no save changes an age.)

What always holds: nothing is taken away before the version is durable. Each slice is recorded before it is
done, and stands for itself: where it ends early (a crash, a full disk), the rows that were not reached keep
their marks and are chosen again. Owner: the event loop; slices run in the owner thread.
"""

import functools
import json

import structlog

from pserver.checkpoint.manifest import MODES, Mode
from pserver.checkpoint.snapshot import Keep
from pserver.errors import PserverError, RequestError, nearest
from pserver.placement import partitions_of_shard
from pserver.server.methods import Own
from pserver.server.save import Shard
from pserver.table.choice import Choice, keeper, reset_marks
from pserver.table.registry import Registry
from pserver.table.sparse import SparseTable

log = structlog.get_logger(__name__)

SLICE_ROWS = 16_384
"""Rows looked at in one turn: some 0.5 ms."""


def checked_mode(text: str, registry: Registry) -> Mode:
    """Return the mode that a client asked for.

    Raises:
        RequestError: there is none of that name, or it would choose rows and no table has scores.
    """
    for mode in MODES:
        if text != mode:
            continue
        if mode == "base" and not any(table.accessor.is_ctr for table in registry):
            raise RequestError(
                "save: mode base chooses rows by their scores, and no table has accessor ctr; take full"
            )
        return mode
    raise RequestError(f"save: unknown mode {text!r}; {nearest(text, MODES)}")


def keep_of(mode: Mode, table: SparseTable) -> Keep | None:
    """Return what chooses a table's rows; None: all that changed, or that there are, are written."""
    if mode != "base" or not table.accessor.is_ctr:
        return None
    return keeper(table.accessor, "base", where="save")


async def reset_all(shard: Shard, choice: Choice, *, epoch: int) -> None:
    """Reset the marks of all tables with accessor ctr.

    Args:
        shard: whose tables they are.
        choice: base or delta.
        epoch: of the save's cut.
    """
    for table in tuple(shard.registry):
        if not table.accessor.is_ctr:
            continue
        try:
            await _reset(shard, table, choice, epoch)
        except PserverError as error:
            log.warning("marks of saved rows stay", table=table.spec.name, reason=str(error))


async def _reset(shard: Shard, table: SparseTable, choice: Choice, epoch: int) -> None:
    begin, end = partitions_of_shard(shard.shard, shard.num_shards)
    count = max((end - begin) * SLICE_ROWS // max(table.num_rows, 1), 1)
    record = {"table": table.spec.name, "choice": choice, "epoch": epoch}

    def slice_of(first: int) -> None:
        if shard.registry.has(table):
            part = (first, min(first + count, end))
            shard.note(Own.MARKS, json.dumps({**record, "partitions": part}).encode())
            reset_marks(table, choice, epoch=epoch, partitions=part)

    for first in range(begin, end, count):
        await shard.executor.run(functools.partial(slice_of, first))


def replay(registry: Registry, body: bytes) -> None:
    """Do a recorded slice again."""
    record = json.loads(body)
    begin, end = record["partitions"]
    table = registry.get(record["table"])
    reset_marks(table, record["choice"], epoch=record["epoch"], partitions=(begin, end))
