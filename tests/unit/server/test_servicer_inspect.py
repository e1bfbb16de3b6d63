"""What ``Inspect`` of ``pserver.server.servicer`` promises: it tells of a key and leaves no trace."""

from collections.abc import Iterator

import numpy as np
import pytest

from pserver import errors
from pserver.placement import shard_of
from pserver.server.servicer import Servicer
from pserver.spec import TableSpec
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import parse_small
from tests.unit.server.messages import call, create, pull, push, stats

SPEC = TableSpec(name="ads", dim=2, optimizer="momentum:lr=1", capacity_max=4)


@pytest.fixture
def servicer() -> Iterator[Servicer]:
    """Return a cluster of one shard with a table of two floats and room for four rows."""
    servicer = Servicer(shard=0, num_shards=1, queue_max=8)
    create(servicer, SPEC)
    yield servicer
    servicer.close()


def inspect(
    servicer: Servicer, key: int, *, table: str = "ads", incarnation: int = 0
) -> pb.InspectReply:
    """Return what a shard tells of a key."""
    request = pb.InspectRequest(incarnation=incarnation, table=table, key=key)
    return parse_small(pb.InspectReply, call(servicer, "Inspect", request.SerializeToString()))


def trace(servicer: Servicer) -> list[bytes]:
    """Return all that the shard counts of its tables."""
    return [table.SerializeToString() for table in stats(servicer).tables]


def test_row_is_told_with_its_state(servicer: Servicer) -> None:
    """A key with a row: weights, each part of the state, epochs and the table's version."""
    push(servicer, {"ads": ([2**64 - 1], [1, 2])}, counter=0)
    (pulled,) = pull(servicer, {"ads": [2**64 - 1]})

    reply = inspect(servicer, 2**64 - 1, incarnation=servicer.incarnation)

    assert reply.has_row
    assert list(reply.weights) == pulled.weights.tolist()
    assert [(part.name, list(part.values)) for part in reply.state] == [("m", [1.0, 2.0])]
    assert (reply.epoch, reply.table_epoch, reply.version) == (1, 1, 1)


def test_key_without_a_row_is_told_its_first_weights(servicer: Servicer) -> None:
    """A key without a row gets none, and reads as the weights that a pull would give."""
    reply = inspect(servicer, 5)

    assert (reply.has_row, list(reply.state), reply.epoch) == (False, [], 0)
    assert stats(servicer).tables[0].rows == 0
    (pulled,) = pull(servicer, {"ads": [5]})
    assert list(reply.weights) == pulled.weights.tolist()


def test_inspecting_leaves_no_trace(servicer: Servicer) -> None:
    """No row, version or counter of keys moves, with a row or without, in a full table too."""
    push(servicer, {"ads": ([1, 2, 3, 4], [1] * 8)}, counter=0)
    before = trace(servicer)

    for key in range(9):
        inspect(servicer, key)

    assert trace(servicer) == before


def test_unknown_table_is_named(servicer: Servicer) -> None:
    """A table that is not there is refused with the nearest name."""
    with pytest.raises(errors.UnknownTableError, match="no table 'adds'; did you mean 'ads'"):
        inspect(servicer, 1, table="adds")


def test_foreign_key_is_refused() -> None:
    """A key of another shard is a ClusterError that names key and shard."""
    servicer = Servicer(shard=1, num_shards=3, queue_max=8)
    create(servicer, SPEC)
    keys = np.arange(100, dtype=np.uint64)
    foreign = keys[shard_of(keys, 3) == 2][0].item()

    with pytest.raises(errors.ClusterError, match=f"key {foreign} does not belong to shard 1 of 3"):
        inspect(servicer, foreign)

    servicer.close()
