"""A shard that serves a version and changes nothing, and takes newer versions as they come.

Rooms before and after: ``app`` starts it, ``servicer`` asks before each request; ``load`` reads versions.

What always holds: a newer version is taken over whole, between two requests, or not at all: one that
cannot be read is told of, and the shard stays with the one that it has. Readers go on: the shard stays the
same incarnation, since nobody has written anything that could be missing.
Owner: the event loop.
"""

import asyncio

import structlog

from pserver.errors import PserverError, RequestError
from pserver.server.load import Loads
from pserver.server.methods import METHODS, Effect

log = structlog.get_logger(__name__)

LOOK_S = 1.0
"""Between two looks at the folder."""


def refuse_change(method: str) -> None:
    """Refuse what would change a read-only shard; a pull reads there and makes no rows.

    Raises:
        RequestError: the method changes something.
    """
    if METHODS[method].effect is not Effect.READS and method != "Pull":
        raise RequestError(
            f"{method}: this shard serves a checkpoint and is read-only; it was started with --read-only"
        )


class Follower:
    """Takes newer versions.

    Attributes:
        failure: why the newest version was not taken, or an empty text.
    """

    def __init__(self, loads: Loads) -> None:
        """Take what loads; ``run`` begins to look."""
        self.failure = ""
        self._loads = loads
        self._refused = ""

    async def run(self) -> None:
        """Look for newer versions until this is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Take the newest version, if there is a newer one that can be read."""
        newest = ""
        try:
            newest = await self._loads.newest()
            if newest in ("", self._refused, self._loads.version):
                return
            await self._loads.follow(newest)
        except PserverError as error:
            self.failure, self._refused = str(error), newest
            log.warning(
                "stays with the older version", version=self._loads.version, error=str(error)
            )
        else:
            self.failure = ""
            log.info("serves a newer version", version=newest)
