"""Arrays to bytes and back: the messages of Pull, Push and Assign, without a copy.

Rooms before and after: ``client.route`` asks for an empty message and fills its arrays in place;
``client.channel`` carries the bytes; ``server.servicer`` reads views of them.

The format is protobuf, as ``proto/pserver/v1/pserver.proto`` has it. The generated classes copy
each block several times, so the four large messages are written and read here by hand: a message
is allocated once at its full size, and what stands in it are the arrays themselves. The small
messages use the generated classes.

What always holds:
    * Decoding what was built gives it back; the generated classes read the same bytes.
    * Bytes that are cut or otherwise wrong raise ``ShapeError`` and nothing else.
    * Blocks begin at a multiple of 8 bytes, unless another writer made the message: then they
      are copied.

Cost: a pull moves 8 + 4 * dim bytes a key, a push 8 + 4 * dim, and 4 more for each of counts, shows,
clicks and slots that it says; plus about 50 bytes a table.
"""

from pserver.wire.build import build_pull, build_pull_reply, build_push
from pserver.wire.messages import (
    TRAINER_BYTES,
    WIRE_VERSION,
    PullRequest,
    PushId,
    PushRequest,
    Stamp,
    TablePull,
    TablePush,
    TableRows,
    TableSize,
)
from pserver.wire.parse import parse_pull, parse_pull_reply, parse_push

__all__ = [
    "TRAINER_BYTES",
    "WIRE_VERSION",
    "PullRequest",
    "PushId",
    "PushRequest",
    "Stamp",
    "TablePull",
    "TablePush",
    "TableRows",
    "TableSize",
    "build_pull",
    "build_pull_reply",
    "build_push",
    "parse_pull",
    "parse_pull_reply",
    "parse_push",
]
