"""What the client lends to the rooms that speak for it: its name and its way to the shards.

Rooms before and after: ``Client`` makes one; ``delivery``, ``group`` and ``geo`` use it.

Owner: immutable; what it holds is thread-safe.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pserver.client.dense import Dense
from pserver.client.membership import ShardInfo
from pserver.client.pending import Reply, Unwaited
from pserver.client.revival import Revival
from pserver.client.route import Router
from pserver.client.runtime import Runtime
from pserver.client.sendqueue import SendQueue
from pserver.client.specs import Ask, Specs
from pserver.config import ClientSettings
from pserver.deadline import Deadline
from pserver.spec import TableSpec
from pserver.wire import PushId


class Put(Protocol):
    """Hands a message to the send queue of a shard; waits while that is full."""

    def __call__(self, shard: int, method: str, message: bytes, deadline: Deadline) -> Reply:
        """Return the future of the reply."""
        ...


@dataclass(frozen=True, slots=True)
class Way:
    """The way to the shards.

    Attributes:
        trainer: the uuid of this client's pushes.
        settings: of the client.
        shards: in order.
        queues: of each shard.
        runtime: the client's loop.
        router: which shard gets which keys.
        dense: the dense tables.
        unwaited: pushes whose outcome nobody asked for yet.
        order: held while a push enters the queues, so that it enters all before the next one does.
        specs: of sparse tables.
        push_id: the name of the next write to a shard.
        put: hands a message to a queue.
        ask: sends small messages and waits for the replies.
        revival: makes shards usable that came back without what they held.
    """

    trainer: bytes
    settings: ClientSettings
    shards: Sequence[ShardInfo]
    queues: Sequence[SendQueue]
    runtime: Runtime
    router: Router
    dense: Dense
    unwaited: Unwaited
    order: threading.Lock
    specs: Specs
    push_id: Callable[[int], PushId]
    put: Put
    ask: Ask
    revival: Revival

    def spec(self, table: str) -> TableSpec:
        """Return the spec of a sparse table; see ``Specs.get``."""
        return self.specs.get(table)

    def deadline(self, more_s: float = 0.0) -> Deadline:
        """Return when a call that begins now is given up."""
        return Deadline.after(self.settings.timeout_s + more_s)
