"""The sparse tables that a client knows by name: made by it, or found on the servers.

Rooms before and after: ``Client`` asks for a spec with every call and lends its way to the shards;
the servers keep the specs.
"""

from collections.abc import Sequence
from typing import Protocol

from google.protobuf.message import Message

from pserver.client.membership import ShardInfo
from pserver.errors import UnknownTableError, nearest
from pserver.spec import TableSpec
from pserver.table.registry import spelled_out
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import parse_small, proto_of, spec_of


class Ask(Protocol):
    """Sends small messages, each to a shard, and returns the replies once all are here."""

    def __call__(
        self,
        method: str,
        requests: Sequence[tuple[int, Message]],
        *,
        what: str,
        more_s: float = 0.0,
    ) -> list[bytes]:
        """Return the replies in the order of the requests; ``what`` is named in an error.

        They get ``more_s`` seconds beyond the client's timeout, for what waits for other trainers.
        """
        ...


class Specs:
    """Specs by name. Thread-safe, as what it was lent is."""

    def __init__(self, shards: Sequence[ShardInfo], ask: Ask) -> None:
        """Take the way to the shards."""
        self._shards = shards
        self._ask = ask
        self._specs: dict[str, TableSpec] = {}

    def create(self, spec: TableSpec) -> TableSpec:
        """Make the table on every shard; see ``Client.create_table``."""
        proto = proto_of(spelled_out(spec))
        requests = [(info.shard, _creating(proto, info)) for info in self._shards]
        replies = self._ask("CreateTable", requests, what=f"create table {spec.name!r}")
        made = spec_of(parse_small(pb.CreateTableReply, replies[-1]).spec)
        self._specs[spec.name] = made
        return made

    def get(self, table: str) -> TableSpec:
        """Return the spec of a table that was made here or that shard 0 has.

        Raises:
            UnknownTableError: there is none of that name.
        """
        if table not in self._specs:
            (reply,) = self._ask("Describe", [(0, pb.DescribeRequest())], what="describe")
            for message in parse_small(pb.DescribeReply, reply).tables:
                self._specs[message.name] = spec_of(message)
        if table not in self._specs:
            known = nearest(table, self._specs) if self._specs else "the servers have no tables"
            raise UnknownTableError(f"no table {table!r}; {known}")
        return self._specs[table]

    def creating(self, info: ShardInfo) -> list[pb.CreateTableRequest]:
        """Return what makes every table that is known on a shard."""
        return [_creating(proto_of(spec), info) for spec in list(self._specs.values())]

    def forget(self) -> None:
        """Ask the servers again."""
        self._specs.clear()


def _creating(proto: pb.TableSpec, info: ShardInfo) -> pb.CreateTableRequest:
    """Return what makes a table on a shard."""
    return pb.CreateTableRequest(incarnation=info.incarnation, spec=proto)
