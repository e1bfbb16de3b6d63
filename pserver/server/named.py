"""Which tables a message is about, and which of them need more than its method does.

Rooms before and after: ``auth`` asks where roles differ between tables, ``audit`` for what it writes;
``wire`` reads the messages.

What always holds: every method stands here, with its message or as one that names no table.
"""

from collections.abc import Mapping
from typing import Any, Final

from pserver.server.methods import Role
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import parse_pull, parse_push
from pserver.wire.small import parse_small

PUSHES: Final = ("Push", "Assign", "PushDelta")
GRADIENTS: Final = ("Push", "PushDelta")  # what counts as a trainer's step
"""Methods whose message is that of a push."""

BY_SPEC: Final[Mapping[str, Any]] = {
    "CreateTable": pb.CreateTableRequest,
    "CreateDense": pb.CreateDenseRequest,
}
"""Methods whose message has a spec with the name."""

BY_TABLE: Final[Mapping[str, Any]] = {
    "InitDense": pb.DenseWrite,
    "PushDense": pb.DenseWrite,
    "PushDenseDelta": pb.DenseWrite,
    "PullDense": pb.PullDenseRequest,
    "PullChanged": pb.PullChangedRequest,
    "Clear": pb.TableRequest,
    "Drop": pb.TableRequest,
    "Shrink": pb.ShrinkRequest,
    "TopKeys": pb.TopKeysRequest,
    "Inspect": pb.InspectRequest,
}
"""Methods whose message names one table."""

NO_TABLE: Final = (
    "Describe",
    "Stats",
    "Save",
    "Load",
    "Join",
    "Heartbeat",
    "Leave",
    "Lease",
    "Feed",
    "Promote",
)
"""Methods that are about the shard. A role on any table is enough for them, but admin must be on all."""


def tables_of(method: str, message: bytes) -> list[tuple[str, Role]]:
    """Return each table that a message names, and the role that what it wants of it takes.

    Args:
        method: of the service.
        message: of the call.

    Raises:
        ShapeError: the bytes are no message of the method.
    """
    if method == "Pull":
        parts = parse_pull(message).tables
        return [(part.table, Role.TRAIN if part.create else Role.READ) for part in parts]
    if method in PUSHES:
        return [(part.table, Role.TRAIN) for part in parse_push(message).tables]
    if method in BY_SPEC:
        return [(parse_small(BY_SPEC[method], message).spec.name, Role.READ)]
    if method in BY_TABLE:
        return [(parse_small(BY_TABLE[method], message).table, Role.READ)]
    return []
