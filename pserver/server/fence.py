"""Whether a server may still be the shard: its term, and its standby's promise not to take its place yet.

Rooms before and after: ``role`` asks before every request and ``recording`` before every reply to a change;
``feed`` hands in a standby's questions; ``app`` the terms that clients met; ``journal.place`` keeps what must
outlive the process.

A server that was cut off cannot see that its standby was promoted. So it acknowledges only while the standby
promises not to be: each question of a standby carries the promise for ``PROMISE_S`` seconds from when it heard
the answer before. The server counts from when it sent that answer, which is earlier; and a standby that is
promoted without its server's word waits until the promise is over. A question that was sent long ago names an
old answer and renews nothing.

A standby that is not heard of may be promoted at any time, by somebody who cannot reach this server either. So a
server has one standby, by name: another one follows only when the first said that it ends, or a person that it is
gone for good; that it is silent says neither.

What always holds:
    * Of a server and all that ever followed it one at the most acknowledges changes, whatever the network
      does and however long a process stands still, as long as all clocks run at the same speed and what
      people say of a standby that is gone is true.
    * A server that was ever followed and starts again takes nothing before its standby asks again.
    * A term only rises. What a client says of a term refuses that client's request and changes nothing else.
Owner: the event loop.
"""

import asyncio
import math
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from pserver.errors import RequestError, SupersededError, UnavailableError
from pserver.journal.place import Place, read_place, write_place
from pserver.transport import TERM_KEY
from pserver.v1 import pserver_pb2 as pb

PROMISE_S = 6.0
"""Seconds of a promise: three questions, of which each waits two at the most."""

_PROMISE_S_MAX = 60.0


@dataclass(slots=True)
class Fence:
    """The fence of one server.

    Attributes:
        place: what is known, and on the disk.
    """

    place: Place = field(default_factory=Place)
    _folder: Path | None = None
    _until_s: float = -math.inf  # when the promise ends, on the monotonic clock
    _number: int = field(default_factory=lambda: secrets.randbits(62) | 1)  # of the last answer
    _sent_s: float = -math.inf  # when it was sent

    def open(self, folder: Path) -> None:
        """Read what the folder of the journal says.

        Raises:
            JournalError: it is damaged.
        """
        self._folder, self.place = folder, read_place(folder)

    @property
    def is_cut_off(self) -> bool:
        """Return whether the standby may have taken the place: its promise is over."""
        return self.place.is_followed and time.monotonic() >= self._until_s

    def check(self) -> None:
        """Refuse what only the shard may answer.

        Raises:
            SupersededError: another server has the place.
            UnavailableError: another one may have it.
        """
        if self.place.newer:
            raise SupersededError(
                f"this server has term {self.place.term}, and one with term {self.place.newer} took its "
                "place: it takes no requests; start it with an empty journal folder as that one's standby"
            )
        if self.is_cut_off:
            raise UnavailableError(
                f"this server (term {self.place.term}) does not hear of its standby, which may have taken "
                "its place: it takes no requests until the standby asks again. If that one is gone for "
                "good, `pserver promote` with this server's address"
            )

    def meet(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Refuse a client that met a later term than this server's; asked of a server of a pair.

        Raises:
            SupersededError: it did.
        """
        for key, value in metadata:
            if key == TERM_KEY and str(value).isdecimal() and int(value) > self.place.term:
                raise SupersededError(
                    f"this server has term {self.place.term}, and the client met one with term "
                    f"{int(value)}, which took its place"
                )

    async def asked(self, request: pb.FeedRequest) -> None:
        """Take the promise of a standby's question.

        Raises:
            UnavailableError: this server has another standby, which may be promoted.
        """
        if not (0.0 < request.promise_s <= _PROMISE_S_MAX and request.standby):
            return
        if self.place.followed_by not in (0, request.standby):
            raise UnavailableError(
                "this server has another standby, and may have one: that one can be promoted whenever it is "
                "asked to. End it with SIGTERM; if it is gone for good, `pserver promote` with this "
                "server's address"
            )
        if not self.place.is_followed:
            # From here on it may be promoted: it is not before it heard the answer to this question.
            await self.keep(replace(self.place, followed_by=request.standby))
            self._until_s = time.monotonic() + request.promise_s
        elif request.heard == self._number:
            self._until_s = self._sent_s + request.promise_s

    async def left(self, standby: int) -> None:
        """Go on without a standby that ended: it is not promoted before it heard from this server again."""
        if standby and standby == self.place.followed_by:
            await self.keep(replace(self.place, followed_by=0))
            self._until_s = -math.inf

    def answers(self) -> int:
        """Return the number of an answer that is sent now."""
        self._number += 1
        self._sent_s = time.monotonic()
        return self._number

    async def give_away(self, term: int, standby: int) -> None:
        """Know of the server that takes the place.

        Raises:
            SupersededError: its term is not a later one, or another standby may take the place.
        """
        if term <= self.place.term:
            raise SupersededError(
                f"this server has term {self.place.term}: a standby that knows of term {term - 1} only "
                "cannot take its place"
            )
        if self.place.followed_by not in (0, standby):
            raise SupersededError("another standby follows this server, and may take its place")
        await self.keep(replace(self.place, newer=max(term, self.place.newer)))

    async def go_on_alone(self) -> None:
        """Take a later term, as if this server had been promoted: the standby is gone for good.

        Raises:
            RequestError: it was never followed, or its standby is there.
        """
        if not self.place.is_followed:
            raise RequestError("promote: this server is no standby")
        if not (self.place.newer or self.is_cut_off):
            raise RequestError(
                "promote: this server is no standby; the one that follows it is there"
            )
        term = (
            max(self.place.term + 1, self.place.newer) + 1
        )  # also later than its standby's would be
        await self.keep(Place(term=term, role=self.place.role, name=self.place.name))

    async def keep(self, place: Place) -> None:
        """Know something, once it is on the disk.

        Raises:
            JournalError: the system refused.
        """
        if place != self.place and self._folder is not None:
            await asyncio.to_thread(write_place, self._folder, place)
        self.place = place
