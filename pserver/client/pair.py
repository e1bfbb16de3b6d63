"""A server and its standby as one shard: which of both the next call goes to, and what terms they have.

Rooms before and after: ``connect`` makes one for ``HOST:PORT|HOST:PORT``; ``channel`` carries each call.

What always holds:
    * A server is asked for its term before anything else is sent to it. One whose term is lower than that
      of another that was met had its place taken, and gets nothing.
    * Every call carries the highest term that was met, so a server whose place was taken learns of it.
    * A standby is told to take the place only where ``promote_after_s`` asks for that, and once nothing
      answered for so long.
Owner: the client's event loop.
"""

import time
from concurrent.futures import Future

import structlog

from pserver.client.channel import Channel, GrpcChannel
from pserver.client.credentials import OPEN, Credentials
from pserver.client.runtime import Runtime
from pserver.deadline import Deadline
from pserver.errors import (
    DeadlineError,
    PserverError,
    StandbyError,
    SupersededError,
    UnavailableError,
)
from pserver.transport import TERM_KEY
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small, parse_small

log = structlog.get_logger(__name__)


def open_channel(
    endpoint: str, credentials: Credentials, promote_after_s: float | None = None
) -> Channel:
    """Return a channel to ``HOST:PORT``, or to ``HOST:PORT|HOST:PORT``; see ``PairChannel``."""
    if "|" in endpoint:
        return PairChannel(endpoint, credentials, promote_after_s)
    return GrpcChannel(endpoint, credentials)


class PairChannel:
    """A channel to a server and its standby, which works on the client's event loop."""

    def __init__(
        self, endpoints: str, credentials: Credentials = OPEN, promote_after_s: float | None = None
    ) -> None:
        """Name both.

        Args:
            endpoints: ``HOST:PORT|HOST:PORT``; when one cannot be reached, is a standby still, or had its
                place taken, the next try goes to the next.
            credentials: what a server is shown.
            promote_after_s: seconds without an answer until a standby is told to take the place; None: never.
        """
        self._channels = [GrpcChannel(name, credentials) for name in endpoints.split("|")]
        self._promote_after_s = promote_after_s
        self._turn = 0
        self._met = -1  # the channel whose term was asked for since it has the turn
        self._term = 0  # the highest that was met
        self._out_since_s: float | None = None  # since when no call was answered

    @property
    def endpoint(self) -> str:
        """Return the server that the next call goes to."""
        return self._channels[self._turn].endpoint

    def start(
        self, runtime: Runtime, method: str, message: bytes, *, deadline: Deadline
    ) -> "Future[bytes]":
        """Send one request and return the future of the reply; see ``Channel.start``."""
        return runtime.submit(self.call(method, message, deadline=deadline))

    async def call(self, method: str, message: bytes, *, deadline: Deadline) -> bytes:
        """Send one request and return the reply; see ``Channel.call``."""
        turn = self._turn
        try:
            if self._met != turn:
                await self._meet(turn, deadline)
            reply = await self._channels[turn].call(method, message, deadline=deadline)
        except StandbyError:
            if self._is_to_promote():
                await self._promote(turn, deadline)
            else:
                self._pass_on(turn)
            raise
        except (UnavailableError, DeadlineError):
            self._pass_on(turn)
            raise
        except PserverError:
            self._out_since_s = None
            raise
        self._out_since_s = None
        return reply

    async def close(self) -> None:
        """Close every connection."""
        for channel in self._channels:
            await channel.close()

    def _pass_on(self, turn: int) -> None:
        """Let the next try go to the other server."""
        if self._out_since_s is None:
            self._out_since_s = time.monotonic()
        if turn == self._turn:
            self._turn = (turn + 1) % len(self._channels)
            self._met = -1

    def _is_to_promote(self) -> bool:
        """Return whether nothing answered for as long as was asked for."""
        if self._promote_after_s is None or self._out_since_s is None:
            return False
        return time.monotonic() - self._out_since_s >= self._promote_after_s

    async def _meet(self, turn: int, deadline: Deadline) -> None:
        """Ask a server for its term.

        Raises:
            SupersededError: it had its place taken, and may not know.
        """
        channel = self._channels[turn]
        reply = await channel.call("Describe", b"", deadline=deadline)
        term = parse_small(pb.DescribeReply, reply).term or 1
        if term < self._term:
            raise SupersededError(
                f"{channel.endpoint} has term {term}, and a server with term {self._term} took its place"
            )
        self._term, self._met = term, turn
        for each in self._channels:
            each.connection.more_metadata = ((TERM_KEY, str(term)),)

    async def _promote(self, turn: int, deadline: Deadline) -> None:
        """Tell a standby to take the place, and say what that may have lost."""
        channel = self._channels[turn]
        log.warning(
            "no server answers: its standby is told to take its place",
            endpoint=channel.endpoint,
            promote_after_s=self._promote_after_s,
        )
        reply = parse_small(
            pb.PromoteReply,
            await channel.call("Promote", build_small(pb.PromoteRequest()), deadline=deadline),
        )
        log.warning(
            "standby promoted",
            endpoint=channel.endpoint,
            term=reply.term,
            handed_over=reply.handed_over,
            record=reply.position,
            old_server_spoke_of=reply.told,
            seconds_before=round(reply.heard_s, 1),
        )
