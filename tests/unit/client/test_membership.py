"""What ``pserver.client.membership`` promises: one cluster, or what is wrong with which endpoint."""

from typing import Any

import pytest

from pserver.client.membership import ShardInfo, check_cluster
from pserver.errors import ClusterError
from pserver.placement import NUM_PARTITIONS, PLACEMENT_VERSION
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import WIRE_VERSION

ENDPOINTS = ["a:1", "b:2", "c:3"]


def server(shard: int, num_shards: int = 3, **other: Any) -> pb.DescribeReply:
    """Return what a server of our release says of itself."""
    said: dict[str, Any] = {
        "wire_version": WIRE_VERSION,
        "package_version": "9.8.7",
        "shard_index": shard,
        "num_shards": num_shards,
        "incarnation": 1000 + shard,
        "num_partitions": NUM_PARTITIONS,
        "placement_version": PLACEMENT_VERSION,
        "state": "ready",
    }
    return pb.DescribeReply(**(said | other))


def refused(endpoints: list[str], *servers: pb.DescribeReply) -> str:
    """Return why a cluster is refused."""
    with pytest.raises(ClusterError) as caught:
        check_cluster(endpoints, servers)
    return str(caught.value)


def test_shards_come_back_in_order_when_all_fits() -> None:
    """A cluster listed in shard order is accepted with each shard's endpoint and incarnation."""
    shards = check_cluster(ENDPOINTS, [server(0), server(1), server(2)])

    assert shards == [ShardInfo(name, i, 1000 + i) for i, name in enumerate(ENDPOINTS)]


def test_order_is_shown_when_endpoints_are_in_the_wrong_order() -> None:
    """Two endpoints that changed places are refused with the right list to paste."""
    message = refused(ENDPOINTS, server(1), server(0), server(2))

    assert message == (
        "a:1 is listed in place 0, so it must be shard 0, but it is shard 1; list them in shard "
        "order: b:2,a:1,c:3"
    )


def test_missing_shard_is_named_when_one_endpoint_is_left_out() -> None:
    """Two endpoints of a cluster of three are refused with the shard that is missing."""
    message = refused(["a:1", "c:3"], server(0), server(2))

    assert message == (
        "a:1 is shard 0 of a cluster of 3, but 2 endpoints are listed; no endpoint for shard 1"
    )


def test_both_are_named_when_two_servers_are_the_same_shard() -> None:
    """Two servers that say they are shard 0 are refused with both endpoints."""
    message = refused(ENDPOINTS, server(0), server(0), server(2))

    assert message == ("a:1 and b:2 both say that they are shard 0 of 3; each shard must run once")


def test_endpoint_is_named_when_a_server_is_of_another_cluster_size() -> None:
    """A server started for two shards among three is refused with both numbers."""
    message = refused(ENDPOINTS, server(0), server(1, num_shards=2), server(2))

    assert message.startswith("b:2 is shard 1 of a cluster of 2, but 3 endpoints are listed")


def test_endpoint_is_named_when_there_are_more_endpoints_than_shards() -> None:
    """A list longer than the cluster is refused though every shard is there."""
    message = refused(ENDPOINTS, server(0, 2), server(1, 2), server(1, 2))

    assert message.startswith("b:2 and c:3 both say that they are shard 1 of 2")


@pytest.mark.parametrize(
    ("field", "what", "ours"),
    [
        ("wire_version", "wire version", WIRE_VERSION),
        ("num_partitions", "number of partitions", NUM_PARTITIONS),
        ("placement_version", "placement version", PLACEMENT_VERSION),
    ],
)
def test_both_versions_are_told_when_a_server_is_of_another_release(
    field: str, what: str, ours: int
) -> None:
    """Another wire version, number of partitions or placement is refused with both values."""
    message = refused(ENDPOINTS, server(0), server(1, **{field: 77}), server(2))

    assert message == (
        f"b:2 has {what} 77, this client has {ours} (server's package 9.8.7); use the same "
        "release on both sides"
    )


def test_version_is_refused_before_order() -> None:
    """What a server of another wire version says of itself is not interpreted."""
    message = refused(["a:1"], server(5, wire_version=2, package_version=""))

    assert "wire version 2" in message
    assert "(server's package unknown)" in message
