"""What ``pserver.client.connect`` promises of servers that are busy, or mute."""

import threading

import pytest
from typing_extensions import override

import pserver
from pserver.client.connect import make_client
from pserver.deadline import Deadline
from pserver.embedded import SharedChannel
from pserver.errors import UnavailableError

WAIT_S = 30.0


class Asked(SharedChannel):
    """A channel that lets a shard's owner go on once it is asked whether the shard is there."""

    free: threading.Event
    is_mute = False

    @override
    async def call(self, method: str, message: bytes, *, deadline: Deadline) -> bytes:
        if method == "Stats":
            if self.is_mute:
                raise UnavailableError("mute")
            self.free.set()
        return await super().call(method, message, deadline=deadline)


def connect(*, is_mute: bool) -> pserver.Client:
    """Return a client of a shard whose owner works longer than the handshake may take."""
    cluster, free = pserver.Cluster(1), threading.Event()
    begun = threading.Event()

    def work() -> None:
        begun.set()
        assert free.wait(WAIT_S)

    def channels() -> list[Asked]:
        channel = Asked(cluster.shards[0], cluster._runtime)
        channel.free, channel.is_mute = free, is_mute
        return [channel]

    working = cluster._runtime.submit(cluster.shards[0]._executor.run(work))
    try:
        assert begun.wait(WAIT_S)
        return make_client(channels, settings=pserver.ClientSettings(), connect_s=0.3)
    finally:
        free.set()
        working.result(WAIT_S)
        cluster.close()


def test_a_server_that_is_busy_is_waited_for() -> None:
    """Its first table compiles for longer than the handshake may take; it says that it is there."""
    connect(is_mute=False).close()


def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    """One that does not even say that it is there is given up, and named."""
    with pytest.raises(UnavailableError, match="no pserver answers at embedded shard 0"):
        connect(is_mute=True)
