"""Connect: endpoints to a client, or an error that says what is wrong with which of them.

Rooms before and after: ``pserver.connect`` is this; ``pserver.embedded`` brings channels of its
own to ``make_client``.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from pserver.client.channel import Channel
from pserver.client.client import Client
from pserver.client.credentials import Credentials
from pserver.client.membership import check_cluster
from pserver.client.pair import open_channel
from pserver.client.runtime import Runtime
from pserver.client.sendqueue import SendQueue
from pserver.config import AccessSettings, ClientSettings
from pserver.deadline import Deadline
from pserver.errors import (
    ClusterError,
    ConfigError,
    DeadlineError,
    PserverError,
    TransientError,
    UnavailableError,
)
from pserver.malloc import keep_large_blocks
from pserver.transport import split_endpoints
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import parse_small

log = structlog.get_logger(__name__)

NO_STANDBYS = (
    "promote_after needs servers with standbys, named as HOST:PORT|HOST:PORT: nobody else can take a "
    "server's place"
)
"""Why the setting is refused."""

_RETRY_S = 0.1  # between two tries of the handshake, while servers start

_TELL_EVERY_S = 10.0  # while a server is waited for

_BUSY_S = 300.0
"""How long a server may be busy: the first table that a machine ever has takes a minute of compiling, more if
it is loaded, and what a server is asked meanwhile waits for that."""

_THERE_S = 2.0  # for a busy server to say that it is there


async def _describe(channel: Channel, deadline: Deadline) -> pb.DescribeReply:
    """Return what a server says of itself; wait for one that is still starting, or busy."""
    last, tell = Deadline.after(deadline.remaining_s + _BUSY_S), Deadline.after(_TELL_EVERY_S)
    while True:
        try:
            message = await channel.call("Describe", b"", deadline=deadline)
        except (TransientError, DeadlineError) as error:
            if deadline.remaining_s <= _RETRY_S:
                if isinstance(error, DeadlineError) and await _is_busy(channel, last):
                    deadline = last
                    continue
                raise UnavailableError(
                    f"no pserver answers at {channel.endpoint}; is it running and is the address "
                    f"right? ({error})"
                ) from None
            if tell.is_over:
                tell = Deadline.after(_TELL_EVERY_S)
                left_s = round(deadline.remaining_s)
                log.warning("waits for a server", reason=str(error), seconds_left=left_s)
            await asyncio.sleep(_RETRY_S)
        except ClusterError as error:  # UNIMPLEMENTED: something else listens there
            raise ClusterError(f"{channel.endpoint} is no pserver: {error}") from None
        else:
            return parse_small(pb.DescribeReply, message)


async def _is_busy(channel: Channel, last: Deadline) -> bool:
    """Return whether a server that gave no answer in time is there, and may have more time."""
    if last.is_over:
        return False
    try:
        await channel.call("Stats", b"", deadline=Deadline.after(_THERE_S))
    except PserverError:
        return False
    return True


async def _handshake(channels: Sequence[Channel], deadline: Deadline) -> list[pb.DescribeReply]:
    """Ask all servers at once."""
    return await asyncio.gather(*(_describe(channel, deadline) for channel in channels))


async def _ready(_: Sequence[Channel]) -> None:
    """Servers of their own need nothing before the handshake."""


def make_client(
    channels: Callable[[], Sequence[Channel]],
    *,
    settings: ClientSettings,
    connect_s: float,
    prepare: Callable[[Sequence[Channel]], Coroutine[Any, Any, None]] = _ready,
) -> Client:
    """Return a client of the shards behind some channels.

    Args:
        channels: makes them, called on the client's event loop.
        settings: of the client.
        connect_s: seconds that the servers get to answer the handshake.
        prepare: is awaited before the handshake, on the client's event loop.

    Raises:
        PserverError: as ``connect``, or as ``prepare``.
    """
    keep_large_blocks()
    runtime = Runtime()

    async def make() -> list[Channel]:
        return list(channels())

    opened: list[Channel] = []
    try:
        opened = runtime.submit(make()).result()
        runtime.submit(prepare(opened)).result()
        deadline = Deadline.after(connect_s)
        replies = runtime.submit(_handshake(opened, deadline)).result()
        shards = check_cluster([channel.endpoint for channel in opened], replies)
    except BaseException:
        for channel in opened:
            runtime.submit(channel.close()).result()
        runtime.stop()
        raise
    queues = [SendQueue(channel, runtime, settings) for channel in opened]
    return Client(queues, shards, runtime=runtime, settings=settings)


def connect(
    endpoints: str, *, settings: ClientSettings | None = None, connect_s: float = 10.0
) -> Client:
    """Connect to the servers of one cluster.

    Sets glibc's malloc of this process to keep large blocks, see ``pserver.malloc``.

    Args:
        endpoints: ``HOST:PORT,HOST:PORT``, shard 0 first; ``HOST:PORT|HOST:PORT`` is a server and its standby,
            ``file:PATH`` one whose HOST:PORT stands in a file that is read again when nobody answers.
        settings: timeouts and limits.
        connect_s: seconds to wait for servers that are still starting.

    Returns:
        A client; close it, or use it as a context manager.

    Raises:
        ConfigError: an endpoint is no HOST:PORT, a file of the settings cannot be used, or they promote
            standbys and none is named.
        UnauthenticatedError: the servers want a token, and none of theirs came.
        UnavailableError: a server does not answer; it is named.
        ClusterError: the servers are not shards 0, 1, ... of one cluster of this size and wire
            version; the message names the endpoint, what was expected and what came.
    """
    names = split_endpoints(endpoints, where="servers")
    chosen = settings or ClientSettings()
    if chosen.promote_after_s is not None and "|" not in endpoints:
        raise ConfigError(NO_STANDBYS)
    credentials = Credentials(chosen)
    return make_client(
        lambda: [open_channel(name, credentials, chosen.promote_after_s) for name in names],
        settings=chosen,
        connect_s=connect_s,
    )


def stats_of_each(
    endpoints: Sequence[str], *, settings: AccessSettings, timeout_s: float
) -> list[pb.StatsReply | PserverError]:
    """Return each server's counters, or why it gave none: a look at a cluster that is not whole.

    Args:
        endpoints: HOST:PORT each.
        settings: what the servers are shown.
        timeout_s: seconds that they get.
    """
    credentials = Credentials(settings)

    async def one(name: str) -> pb.StatsReply | PserverError:
        channel = open_channel(name, credentials)
        try:
            reply = await channel.call("Stats", b"", deadline=Deadline.after(timeout_s))
            return parse_small(pb.StatsReply, reply)
        except PserverError as error:
            return error
        finally:
            await channel.close()

    async def each() -> list[pb.StatsReply | PserverError]:
        return await asyncio.gather(*(one(name) for name in endpoints))

    return asyncio.run(each())
