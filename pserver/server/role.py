"""Whether a server is the shard, follows the one that is, or was followed and gave its place away.

Rooms before and after: ``servicer`` asks before every request, and hands on Feed and Promote; ``feed`` and
``standby`` do the work.

What always holds: of a server and its standby, one at the most answers requests of trainers once the
standby has asked the server to hand over. Owner: the event loop.
"""

from dataclasses import dataclass

from pserver.errors import RequestError, UnavailableError
from pserver.server.feed import Feed
from pserver.server.standby import Standby


@dataclass(slots=True)
class Role:
    """The role of one server.

    Attributes:
        feed: tells its standby.
        standby: follows another server; None: this one does not.
    """

    feed: Feed
    standby: Standby | None = None

    @property
    def state(self) -> str:
        """Return what status shows."""
        if self.feed.has_handed_over:
            return "handed over"
        return "standby" if self.standby is not None and not self.standby.is_promoted else "ready"

    def check(self, method: str) -> None:
        """Refuse a request that is for another server.

        Raises:
            UnavailableError: this one does not answer it, or not yet.
        """
        if self.state == "standby" and method not in ("Stats", "Promote"):
            assert self.standby is not None
            raise UnavailableError(
                f"this is the standby of {self.standby.primary.endpoint}: it takes no requests until "
                "`pserver promote`"
            )
        if self.state == "handed over" and method not in ("Stats", "Feed"):
            raise UnavailableError("this server has handed over to its standby")

    def close(self) -> None:
        """Let a standby's journal go; that of the shard is its recorder's."""
        if self.state == "standby" and self.standby is not None:
            self.standby.journal.close()

    async def answer(self, method: str, message: bytes) -> bytes:
        """Answer Feed or Promote."""
        if method == "Feed":
            return await self.feed.answer(message)
        if self.standby is None:
            raise RequestError("promote: this server is no standby")
        return await self.standby.promote(message)
