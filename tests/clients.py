"""Several trainers' clients of the same shards, in one process, over channels that can be bad.

A fault is drawn for each call from a seed: the request does not arrive, arrives twice, or its reply is
lost. The client sees what a network would show it: ``UnavailableError``.
"""

import functools
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from typing_extensions import override

import pserver
from pserver.client.connect import make_client
from pserver.client.runtime import Runtime
from pserver.deadline import Deadline
from pserver.embedded import Cluster, SharedChannel
from pserver.server.servicer import Servicer


@dataclass
class Network:
    """How bad it is; may be changed while clients use it.

    Attributes:
        faults: share of the calls that go wrong.
        is_mute: every request arrives, and no reply comes back.
        lose_next: replies that are lost from now on.
        seed: of which calls go wrong, and how.
    """

    faults: float = 0.0
    is_mute: bool = False
    lose_next: int = 0
    seed: int = 0

    def loses_reply(self) -> bool:
        """Return whether the reply that comes now is lost."""
        is_next, self.lose_next = self.lose_next > 0, max(0, self.lose_next - 1)
        return self.is_mute or is_next


class BadCluster(Cluster):
    """Shards whose loop bad channels may use."""

    @property
    def runtime(self) -> Runtime:
        """Return the loop that the shards live on."""
        return self._runtime


class BadChannel(SharedChannel):
    """Loses requests and replies, and delivers some requests twice."""

    def __init__(
        self, servicer: Servicer, runtime: Runtime, network: Network, *, number: int
    ) -> None:
        """Take the shard, and the loop that it lives on."""
        super().__init__(servicer, runtime)
        self._random = random.Random(network.seed * 1000 + number)
        self._network = network

    @override
    async def call(self, method: str, message: bytes, *, deadline: Deadline) -> bytes:
        """Answer, or fail as a network does."""
        fault = None
        if method != "Describe" and self._random.random() < self._network.faults:
            fault = self._random.choice(["request lost", "reply lost", "twice"])
        if fault == "request lost":
            raise pserver.UnavailableError("the request was lost")
        reply = await super().call(method, message, deadline=deadline)
        if fault == "twice":
            reply = await super().call(method, message, deadline=deadline)
        if fault == "reply lost" or self._network.loses_reply():
            raise pserver.UnavailableError("the reply was lost")
        return reply


@contextmanager
def clients(
    count: int,
    *,
    num_shards: int = 2,
    networks: Sequence[Network] | None = None,
    settings: pserver.ClientSettings | None = None,
) -> Iterator[list[pserver.Client]]:
    """Return clients of the same shards.

    Args:
        count: of clients.
        num_shards: of the cluster.
        networks: of each client; none: good ones.
        settings: of each client.
    """
    networks = networks or [Network()] * count
    with ExitStack() as stack:
        cluster = BadCluster(num_shards)
        stack.enter_context(cluster)
        made = []
        for number in range(count):
            channels = [
                BadChannel(shard, cluster.runtime, networks[number], number=number * num_shards + i)
                for i, shard in enumerate(cluster.shards)
            ]
            client = make_client(
                functools.partial(list, channels),
                settings=settings or pserver.ClientSettings(),
                connect_s=10.0,
            )
            made.append(stack.enter_context(client))
        yield made
