"""Whether a server is the shard, follows the one that is, or was followed and gave its place away.

Rooms before and after: ``servicer`` asks before every request, and hands on Feed and Promote; ``feed``,
``standby`` and ``fence`` do the work.

What always holds: of a server and its standby, one at the most answers requests of trainers; see ``fence``.
Owner: the event loop.
"""

from dataclasses import dataclass
from typing import Final

from pserver.errors import StandbyError
from pserver.server.executor import Executor
from pserver.server.feed import Feed
from pserver.server.fence import Fence
from pserver.server.recording import Recorder
from pserver.server.standby import Standby
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small

STATES: Final = ("ready", "standby", "failed", "cut off", "handed over")
"""What a server may be; ``failed``: a standby that cannot follow any more."""


@dataclass(slots=True)
class Role:
    """The role of one server.

    Attributes:
        feed: tells its standby.
        fence: whether it may be the shard.
        standby: follows another server; None: this one does not.
    """

    feed: Feed
    fence: Fence
    standby: Standby | None = None

    @classmethod
    def of(cls, recorder: Recorder, executor: Executor) -> "Role":
        """Return the role of a shard whose changes go through a recorder."""
        fence = Fence()
        recorder.may_acknowledge = fence.check
        return cls(Feed(recorder, executor, fence), fence)

    @property
    def state(self) -> str:
        """Return what status shows, one of ``STATES``."""
        if self.fence.place.newer:
            return "handed over"
        if self.standby is not None and not self.standby.is_promoted:
            return "failed" if self.standby.failure else "standby"
        return "cut off" if self.fence.is_cut_off else "ready"

    def check(self, method: str) -> None:
        """Refuse a request that is for another server.

        Raises:
            UnavailableError: this one does not answer it, or not yet.
        """
        if method in ("Stats", "Promote"):
            return
        standby = self.standby
        if standby is not None and not standby.is_promoted:
            raise StandbyError(
                f"this is the standby of {standby.primary.endpoint}: it takes no requests until "
                "`pserver promote`"
            )
        if method != "Feed":
            self.fence.check()

    def close(self) -> None:
        """Let a standby's journal go; that of the shard is its recorder's."""
        if self.standby is not None and not self.standby.is_promoted:
            self.standby.journal.close()

    async def answer(self, method: str, message: bytes) -> bytes:
        """Answer Feed or Promote."""
        if method == "Feed":
            return await self.feed.answer(message)
        if self.standby is not None and self.state in ("standby", "failed", "ready"):
            return await self.standby.promote(message)
        await self.fence.go_on_alone()
        position = await self.feed.go_on()
        reply = pb.PromoteReply(position=position, told=position, is_alone=True)
        reply.term = self.fence.place.term
        return build_small(reply)
