"""One log line for each call that only an admin may make: who, from where, what, and how it ended.

Rooms before and after: ``app`` tells of every such call when it is over; lines go where the logs go, at level
info.

A save, a load or a shrink is many messages. Of a save its begin and end are told, of a load its begin and
commit, of a shrink the first message, of a standby that follows nothing; and whatever is refused.

What always holds: a token is never written, its name is. Owner: the event loop.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import structlog

from pserver.errors import PserverError
from pserver.server.methods import METHODS, Role
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import parse_small

log = structlog.get_logger(__name__)

AUDITED = frozenset(name for name, method in METHODS.items() if method.role is Role.ADMIN)
"""Methods of which there is a line."""

_STEPS = {"Save": ("begin", "end"), "Load": ("begin", "commit")}
_WALKS_MAX = 256
_TEXT_MAX = 200  # of what came from outside, in a line


class Peer(Protocol):
    """What gRPC knows of a caller."""

    def peer(self) -> str:
        """Return the address."""
        ...

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return what the handshake showed."""
        ...


class Audit:
    """Writes the lines of one server."""

    def __init__(self) -> None:
        """Begin without a shrink under way."""
        self._walks: OrderedDict[int, None] = OrderedDict()

    def tell(self, method: str, message: bytes, *, token: str, peer: Peer, outcome: str) -> None:
        """Write the line of a call, if it is one of those that have a line.

        Args:
            method: one of ``AUDITED``.
            message: of the call.
            token: the name of its token; empty for none.
            peer: whom the call is from.
            outcome: "OK", or the name of an error.
        """
        what = self._what(method, message, is_refused=outcome != "OK")
        if what is not None:
            log.info(
                "admin call",
                who=token or "-",
                certificate=common_name(peer) or "-",
                peer=peer.peer(),
                method=method,
                **what,
                outcome=outcome,
            )

    def _what(self, method: str, message: bytes, *, is_refused: bool) -> dict[str, Any] | None:
        """Return what a call was about, or None if it goes on what was told before."""
        try:
            if method == "Save":
                save = parse_small(pb.SaveRequest, message)
                return self._step(method, save.step, save.version, is_refused=is_refused)
            if method == "Load":
                load = parse_small(pb.LoadRequest, message)
                return self._step(method, load.step, load.version, is_refused=is_refused)
            if method == "Shrink":
                return self._shrink(parse_small(pb.ShrinkRequest, message), is_refused=is_refused)
            if method in ("Feed", "Promote"):
                is_told = method == "Promote" or is_refused
                return {} if is_told else None
            return {"table": parse_small(pb.TableRequest, message).table[:_TEXT_MAX]}
        except PserverError:
            return {"message": "unreadable"}

    def _step(
        self, method: str, step: str, version: str, *, is_refused: bool
    ) -> dict[str, Any] | None:
        if step not in _STEPS[method] and not is_refused:
            return None
        return {"step": step[:_TEXT_MAX], "version": version[:_TEXT_MAX]}

    def _shrink(self, request: pb.ShrinkRequest, *, is_refused: bool) -> dict[str, Any] | None:
        if request.walk in self._walks and not is_refused:
            return None
        self._walks[request.walk] = None
        while len(self._walks) > _WALKS_MAX:
            self._walks.popitem(last=False)
        return {"table": request.table[:_TEXT_MAX], "day": request.day, "dry": request.dry}


def common_name(peer: Peer) -> str:
    """Return the common name of the certificate that a caller showed, or an empty text."""
    names = peer.auth_context().get("x509_common_name", ())
    return next((bytes(name).decode(errors="replace")[:_TEXT_MAX] for name in names), "")
