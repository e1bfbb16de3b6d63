"""A look at all servers of a cluster, again and again, whether they form one or not.

Rooms before and after: screens (``pserver top``, ``pserver web``) look; ``channel`` asks. Unlike a ``Client`` this
needs no handshake: a server that is down, or is another one than before, is an answer too.
"""

import asyncio
import concurrent.futures
from collections.abc import Sequence
from types import TracebackType
from typing import TypeAlias

from pserver.client.channel import GrpcChannel
from pserver.client.credentials import Credentials
from pserver.client.runtime import Runtime
from pserver.config import AccessSettings
from pserver.deadline import Deadline
from pserver.errors import PserverError
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import parse_small

Answers: TypeAlias = list[pb.StatsReply | PserverError]
"""Each server's counters, or why it gave none."""


class Looker:
    """Connections that are kept between two looks. Use it as a context manager."""

    def __init__(
        self, endpoints: Sequence[str], *, settings: AccessSettings, timeout_s: float
    ) -> None:
        """Name the servers; the connections are made by the first look.

        Args:
            endpoints: HOST:PORT each.
            settings: what the servers are shown.
            timeout_s: seconds that they get for an answer.

        Raises:
            ConfigError: a file of the settings cannot be used.
        """
        self.endpoints = tuple(endpoints)
        self._credentials = Credentials(settings)
        self._timeout_s = timeout_s
        self._runtime = Runtime()
        self._channels: list[GrpcChannel] = []  # the loop's

    def __enter__(self) -> "Looker":
        """Return the looker."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connections."""
        self._runtime.submit(self._close()).result()
        self._runtime.stop()

    def start(self) -> "concurrent.futures.Future[Answers]":
        """Ask all servers at once and do not wait."""
        return self._runtime.submit(self._look())

    def look(self) -> Answers:
        """Ask all servers at once."""
        return self.start().result()

    async def _look(self) -> Answers:
        if not self._channels:
            self._channels = [GrpcChannel(name, self._credentials) for name in self.endpoints]
        return await asyncio.gather(*(self._one(channel) for channel in self._channels))

    async def _one(self, channel: GrpcChannel) -> pb.StatsReply | PserverError:
        try:
            reply = await channel.call("Stats", b"", deadline=Deadline.after(self._timeout_s))
        except PserverError as error:
            return error
        return parse_small(pb.StatsReply, reply)

    async def _close(self) -> None:
        for channel in self._channels:
            await channel.close()
