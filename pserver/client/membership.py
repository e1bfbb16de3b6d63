"""The handshake: do these endpoints, in this order, form one cluster that speaks our version?

Rooms before and after: ``connect`` asks every server to describe itself; a client is made only
if all of it fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pserver.errors import ClusterError
from pserver.placement import NUM_PARTITIONS, PLACEMENT_VERSION
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import WIRE_VERSION


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One server of the cluster, as the handshake found it."""

    endpoint: str
    shard: int
    incarnation: int


def check_cluster(endpoints: Sequence[str], replies: Sequence[pb.DescribeReply]) -> list[ShardInfo]:
    """Return the shards of the cluster, in order.

    Args:
        endpoints: as the user listed them: shard 0 first.
        replies: what each of them said.

    Raises:
        ClusterError: another wire version, another cluster size, a shard twice, missing or in
            the wrong place; the message names the endpoint, what was expected and what came.
    """
    for endpoint, reply in zip(endpoints, replies, strict=True):
        _check_versions(endpoint, reply)
    first_seen: dict[int, str] = {}
    for endpoint, reply in zip(endpoints, replies, strict=True):
        other = first_seen.setdefault(reply.shard_index, endpoint)
        if other != endpoint:
            raise ClusterError(
                f"{other} and {endpoint} both say that they are shard {reply.shard_index} of "
                f"{reply.num_shards}; each shard must run once"
            )
    for endpoint, reply in zip(endpoints, replies, strict=True):
        if reply.num_shards != len(endpoints):
            missing = sorted(set(range(reply.num_shards)) - set(first_seen))
            hint = f"; no endpoint for shard {', '.join(map(str, missing))}" if missing else ""
            raise ClusterError(
                f"{endpoint} is shard {reply.shard_index} of a cluster of {reply.num_shards}, but "
                f"{len(endpoints)} endpoints are listed{hint}"
            )
    for position, (endpoint, reply) in enumerate(zip(endpoints, replies, strict=True)):
        if reply.shard_index != position:
            ordered = ",".join(first_seen[shard] for shard in sorted(first_seen))
            raise ClusterError(
                f"{endpoint} is listed in place {position}, so it must be shard {position}, but "
                f"it is shard {reply.shard_index}; list them in shard order: {ordered}"
            )
    return [
        ShardInfo(endpoint, reply.shard_index, reply.incarnation)
        for endpoint, reply in zip(endpoints, replies, strict=True)
    ]


def check_place(endpoint: str, reply: pb.DescribeReply, *, shard: int, num_shards: int) -> None:
    """Refuse a server that came back as another shard, or as one of another release.

    Raises:
        ClusterError: the message names the endpoint, what was expected and what came.
    """
    _check_versions(endpoint, reply)
    if (reply.shard_index, reply.num_shards) != (shard, num_shards):
        raise ClusterError(
            f"{endpoint} came back as shard {reply.shard_index} of {reply.num_shards}; it was shard "
            f"{shard} of {num_shards}"
        )


def _check_versions(endpoint: str, reply: pb.DescribeReply) -> None:
    """Refuse a server that we could not talk to, or that counts partitions differently."""
    for what, ours, theirs in (
        ("wire version", WIRE_VERSION, reply.wire_version),
        ("number of partitions", NUM_PARTITIONS, reply.num_partitions),
        ("placement version", PLACEMENT_VERSION, reply.placement_version),
    ):
        if ours != theirs:
            raise ClusterError(
                f"{endpoint} has {what} {theirs}, this client has {ours} (server's package "
                f"{reply.package_version or 'unknown'}); use the same release on both sides"
            )
