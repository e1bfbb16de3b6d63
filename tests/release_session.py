"""What a client says to one shard, from its tables to its leave, and all that it must get: numbers known by hand.

Golden files hold such sessions of earlier releases: the bytes of each request and reply, and the journal that the
shard wrote. ``session`` is the same today, so a change of either side is seen by the other's bytes of then.
"""

import asyncio
import dataclasses
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import numpy as np

import pserver
from pserver.client.channel import Channel
from pserver.client.connect import make_client
from pserver.client.runtime import Runtime
from pserver.deadline import Deadline
from pserver.server.servicer import Servicer

GOLDEN: Final = Path(__file__).parent / "golden"
INCARNATION: Final = 0x5EED_0001
KEYS: Final = np.array([1, 7, 2**63, 2**64 - 1], np.uint64)
NOT_IN_IT: Final = {"Save", "Load", "Feed", "Promote"}
"""Methods whose replies depend on how far the server's own work is. Tests with old checkpoints and journals are of
what they leave; a standby is upgraded before its server, so these go between equals."""

Say = Callable[[str, bytes], Future[bytes]]


class SaidChannel:
    """A channel to whoever answers."""

    endpoint = "shard of a release"

    def __init__(self, say: Say) -> None:
        """Take what answers a method's message."""
        self._say = say

    def start(
        self, runtime: Runtime, method: str, message: bytes, *, deadline: Deadline
    ) -> "Future[bytes]":
        """Answer one request; see ``Channel.start``."""
        return self._say(method, message)

    async def call(self, method: str, message: bytes, *, deadline: Deadline) -> bytes:
        """Answer one request; see ``Channel.call``."""
        return await asyncio.wrap_future(self._say(method, message))

    async def close(self) -> None:
        """Leave who answers as they are."""


def client_of(say: Say) -> pserver.Client:
    """Return a client of the one shard that answers so."""

    def channels() -> list[Channel]:
        return [SaidChannel(say)]

    settings = pserver.ClientSettings(timeout_s=60.0, try_timeout_s=60.0)
    return make_client(channels, settings=settings, connect_s=60.0)


def shard() -> Servicer:
    """Return the shard of a session; its incarnation is that of all of them."""
    made = Servicer(shard=0, num_shards=1, queue_max=64)
    made._become(INCARNATION)
    return made


def session(client: pserver.Client) -> dict[str, Any]:
    """Speak with the shard, and return what was heard, as JSON has it."""
    heard: dict[str, Any] = {}
    make_tables(client)
    heard["first"] = client.pull("ads", KEYS).tolist()
    heard["version"] = client.push("ads", [7, 7, 1], [[1.0, 0.0], [0.5, 0.0], [0.0, 4.0]])
    client.assign("ads", KEYS[2:3], [[0.25, 0.5]])
    client.push("shown", [7, 1], np.ones((2, 2)), shows=[3.0, 1.0], clicks=[1.0, 0.0])
    shown = client.pull_shown("shown", [7, 1])
    heard["shown"] = [part.tolist() for part in (shown.weights, shown.shows, shown.clicks)]
    client.push_dense("top", [1.0, 0.0, 2.0])
    heard["dense"] = client.pull_dense("top").values.tolist()
    client.geo.push({"far": (KEYS[:2], np.ones(4, np.float32))}, {"top": [0.5, 0.5, 0.5]}).deliver()
    heard["changed"] = client.geo.changed("far", None).is_all
    heard["round"] = one_round(client)
    heard["shrunk"] = client.lifecycle.shrink("ads", day=3).gone
    heard["top"] = client.lifecycle.top_keys("shown", by="show", count=1).keys.tolist()
    heard["cleared"] = client.lifecycle.clear("far").rows
    client.lifecycle.drop("far")
    heard["rows"] = [[table.table, table.rows] for table in client.stats()[0].tables]
    return heard | left(client)


def left(client: pserver.Client) -> dict[str, Any]:
    """Return what the shard has at the end of a session."""
    state = client.inspect("shown", 7)
    return {
        "ads": client.peek("ads", KEYS).tolist(),
        "inspected": [state.has_row, state.weights.tolist()],
        "vector": client.pull_dense("top").values.tolist(),
    }


def one_round(client: pserver.Client) -> list[Any]:
    """Be the one trainer of a group for a step of a leased range; return what it reads afterwards."""
    group = client.join(
        pserver.GroupSettings(trainer_id=0, trainers=1, mode="sync", lease_s=3600.0)
    )
    leases = group.leases(rows=10, range_rows=10)
    held = leases.next_range(0)
    assert isinstance(held, pserver.RowRange)
    first = group.first_round
    gradients = (KEYS[:1], np.full(2, 0.5, np.float32), np.empty(0, np.uint32))
    step = pserver.Step({"top": np.ones(3, np.float32)}, {}, first, 10, is_everywhere=True)
    pushed = group.start_push({"ads": gradients}, step)
    weights = group.start_pull({"ads": KEYS[:1]}, round_number=first + 1).result()[0]
    pushed.result()
    is_ours = leases.report(0, held.number)
    beat = group._beat_once(0, 60.0, (0.75, 100.0))  # the next one by itself is due in an hour
    assert group._way.runtime.submit(beat).result() is None
    group.leave()
    return [first, held.end, is_ours, weights.tolist()]


def make_tables(client: pserver.Client) -> None:
    """Make the tables of a session."""
    spec = pserver.TableSpec(name="ads", dim=2, optimizer="sgd:lr=1", initializer="zeros")
    client.create_table(dataclasses.replace(spec, ttl_days=2))
    client.create_table(
        dataclasses.replace(
            spec, name="shown", optimizer="adagrad:lr=1", accessor="ctr:embedx_threshold=0"
        )
    )
    client.create_table(dataclasses.replace(spec, name="far"))
    client.create_dense(pserver.DenseSpec(name="top", length=3, optimizer="sgd:lr=1"))
    client.init_dense("top", [1.0, 2.0, 3.0])
