"""The version that a delta of a shard would be one to, and whether such a delta can be made.

Rooms before and after: ``checkpoint`` asks when a save begins, and remembers one that is published; ``load``
knows one after a load. What always holds: a delta that cannot hold all that changed is refused.
Owner: functions here run in the owner thread, or look at what it made.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pserver.errors import CheckpointError
from pserver.server.save import Save
from pserver.table.history import History
from pserver.table.registry import Registry


@dataclass(frozen=True, slots=True)
class Durable:
    """The version that a delta would be one to: its epoch, and what watched each table then."""

    version: str
    epoch: int
    histories: Mapping[str, History]


def remember(save: Save) -> Durable:
    """Count erased keys from the cut on: the save holds those before it."""
    histories: dict[str, History] = {}
    for name, cut in save.cuts.items():
        if isinstance(cut.table.watch, History):
            histories[name] = cut.table.watch
            cut.table.watch.forget_erased(cut.epoch)
    return Durable(save.version, save.epoch, histories)


def check_delta(durable: Durable | None, registry: Registry, *, shard: int) -> int:
    """Return the epoch since which rows must be saved.

    Raises:
        CheckpointError: it is not known what changed.
    """
    if durable is None:
        raise CheckpointError(
            f"save: shard {shard} has made no full save since it started or loaded; take a full one "
            "first"
        )
    watches = {table.spec.name: table.watch for table in registry}
    for name, history in durable.histories.items():
        if watches.get(name) is not history or history.erased_from != durable.epoch:
            raise CheckpointError(
                f"save: table {name!r} was dropped, or lost track of its erased keys, since "
                f"{durable.version}; take a full save"
            )
    return durable.epoch
