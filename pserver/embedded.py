"""Embedded mode: shards that live in this process, reached without sockets.

Rooms before and after: the same client as always; its channels call the servicers directly. All
else is the path of a real cluster, messages included, so this is how tests and one-machine runs
work.
"""

import asyncio
import functools
from collections.abc import Sequence
from concurrent.futures import Future

from typing_extensions import override

from pserver.checkpoint.places import open_store
from pserver.client.channel import Channel, no_answer
from pserver.client.client import Client
from pserver.client.connect import NO_STANDBYS, make_client
from pserver.client.runtime import Runtime
from pserver.config import ClientSettings, ServeSettings
from pserver.deadline import Deadline
from pserver.errors import ConfigError
from pserver.placement import shard_of_partition
from pserver.server.servicer import Servicer
from pserver.table.storage import open_storage
from pserver.trace.call import answered_here


class InProcessChannel:
    """A channel to a shard of this process, which works on the client's event loop."""

    def __init__(self, servicer: Servicer) -> None:
        """Take the shard; closing the channel closes it."""
        self.endpoint = f"embedded shard {servicer.shard}"
        self._servicer = servicer

    def start(
        self, runtime: Runtime, method: str, message: bytes, *, deadline: Deadline
    ) -> "Future[bytes]":
        """Answer one request; see ``Channel.start``."""
        return runtime.submit(self.call(method, message, deadline=deadline))

    async def call(self, method: str, message: bytes, *, deadline: Deadline) -> bytes:
        """Answer one request; see ``Channel.call``."""
        timeout_s = deadline.remaining_s
        try:
            async with asyncio.timeout(timeout_s):
                with answered_here(method, self.endpoint):
                    return await self._answer(method, message)
        except TimeoutError:
            raise no_answer(method, self.endpoint, timeout_s) from None

    async def restore(self, version: str) -> None:
        """Load a version before the first request."""
        await self._servicer.loads.restore(version)

    async def _answer(self, method: str, message: bytes) -> bytes:
        return await self._servicer.call(method, message)

    async def close(self) -> None:
        """Close the shard."""
        await self._servicer.end_saves()
        self._servicer.close()


class Cluster:
    """Shards of this process for several clients: one for each trainer of a group.

    They share an event loop of their own, as those of server processes have.

    >>> with Cluster(2) as cluster, cluster.connect() as one, cluster.connect() as other:
    ...     one.num_shards, other.num_shards
    (2, 2)
    """

    def __init__(
        self,
        num_shards: int = 2,
        *,
        storage_dir: str | None = None,
        checkpoint_dir: str | None = None,
    ) -> None:
        """Start the shards; see ``embedded``."""
        self._runtime = Runtime()
        self.shards = make_shards(
            num_shards, storage_dir=storage_dir, checkpoint_dir=checkpoint_dir
        )

    def __enter__(self) -> "Cluster":
        """Return the cluster."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def connect(self, *, settings: ClientSettings | None = None) -> Client:
        """Return a client; closing it leaves the shards as they are."""
        return make_client(
            lambda: [SharedChannel(shard, self._runtime) for shard in self.shards],
            settings=settings or ClientSettings(),
            connect_s=10.0,
        )

    def close(self) -> None:
        """Drop the tables and end the shards; close the clients first."""

        async def close_all() -> None:
            for shard in self.shards:
                await shard.end_saves()
                shard.close()

        self._runtime.submit(close_all()).result()
        self._runtime.stop()


class SharedChannel(InProcessChannel):
    """A channel to a shard that other clients use too."""

    def __init__(self, servicer: Servicer, runtime: Runtime) -> None:
        """Take the shard and the loop that it lives on."""
        super().__init__(servicer)
        self._runtime = runtime

    @override
    async def _answer(self, method: str, message: bytes) -> bytes:
        return await asyncio.wrap_future(self._runtime.submit(self._servicer.call(method, message)))

    @override
    async def close(self) -> None:
        """Leave the shard as it is."""


def make_shards(
    num_shards: int, *, storage_dir: str | None = None, checkpoint_dir: str | None = None
) -> Sequence[Servicer]:
    """Return the shards of a cluster, in this process.

    Raises:
        ConfigError: ``num_shards`` is out of range, or the folder cannot hold files.
    """
    shard_of_partition(num_shards)  # which checks it
    queue_max = ServeSettings().queue_max
    storage = open_storage(storage_dir, where="storage_dir")
    store = open_store(checkpoint_dir, where="checkpoint_dir", writes=True)
    return [
        Servicer(
            shard=shard,
            num_shards=num_shards,
            queue_max=queue_max,
            storage=storage,
            store=store,
        )
        for shard in range(num_shards)
    ]


def embedded(
    num_shards: int = 2,
    *,
    settings: ClientSettings | None = None,
    storage_dir: str | None = None,
    checkpoint_dir: str | None = None,
    restore: str | None = None,
) -> Client:
    """Return a client of a cluster inside this process. Closing it drops the tables.

    Args:
        num_shards: shards, each with a thread of its own.
        settings: timeouts and limits.
        storage_dir: folder for tables whose storage is ``file``; None: they are refused.
        checkpoint_dir: folder of checkpoints; None: saves and loads are refused.
        restore: the version of it to begin with: latest, a name or a number.

    Raises:
        ConfigError: ``num_shards`` is out of range, a folder cannot hold files, or the settings promote
            standbys.
        CheckpointError: there is no such version, or it is damaged.

    >>> from pserver.spec import TableSpec
    >>> with embedded(2) as client:
    ...     _ = client.create_table(TableSpec(name="t", dim=2, optimizer="sgd:lr=1"))
    ...     _ = client.assign("t", [7], [[1.0, 2.0]])
    ...     _ = client.push("t", [7, 7], [[0.5, 0.5], [0.25, 0.0]])
    ...     client.pull("t", [7])
    array([[0.25, 1.5 ]], dtype=float32)
    """
    chosen = settings or ClientSettings()
    if chosen.promote_after_s is not None:
        raise ConfigError(NO_STANDBYS)
    return make_client(
        lambda: [
            InProcessChannel(shard)
            for shard in make_shards(
                num_shards, storage_dir=storage_dir, checkpoint_dir=checkpoint_dir
            )
        ],
        settings=chosen,
        connect_s=10.0,
        prepare=functools.partial(_restore, version=restore),
    )


async def _restore(channels: Sequence[Channel], *, version: str | None) -> None:
    """Let every shard load its part of a version, if one was named."""
    for channel in channels:
        if version is not None and isinstance(channel, InProcessChannel):
            await channel.restore(version)
