"""What ``wire.build`` promises: protobuf that anybody reads, with arrays aligned inside it."""

import numpy as np
import pytest

from pserver.v1 import pserver_pb2 as pb
from pserver.wire import PushId, TableSize, build_pull, build_pull_reply, build_push

UUID = bytes(range(16))
NUM_BYTES = (0, 8, 120, 128, 136, 16_376, 16_384, 16_392, 2_097_144, 2_097_152)
"""Blocks around which the length takes one byte more, 8 bytes a key."""


def address_in(message: bytes, array: np.ndarray) -> int:
    """Return the array's offset in the message, which must hold all of it."""
    start = array.ctypes.data - np.frombuffer(message, np.uint8).ctypes.data
    assert start >= 0
    assert start + array.nbytes <= len(message)
    return start


@pytest.mark.parametrize("num_bytes", NUM_BYTES)
@pytest.mark.parametrize("name", ["a", "seven_c", "eight_ch", "x" * 64])
def test_the_generated_class_reads_a_pull_when_its_blocks_have_edge_sizes(
    num_bytes: int, name: str
) -> None:
    """Name, create and keys arrive whatever number of bytes the lengths take."""
    keys = np.random.default_rng(num_bytes).integers(0, 2**64, num_bytes // 8, np.uint64)

    message, (array, other) = build_pull(2**64 - 1, [(name, True, keys.size), ("b", False, 1)])
    array[:], other[:] = keys, 2**64 - 1

    request = pb.PullRequest.FromString(message)
    assert request.incarnation == 2**64 - 1
    assert [(t.table, t.create) for t in request.tables] == [(name, True), ("b", False)]
    assert request.tables[0].keys == keys.tobytes()
    assert request.tables[1].keys == b"\xff" * 8


@pytest.mark.parametrize("num_bytes", NUM_BYTES)
def test_the_generated_class_reads_a_reply_when_its_blocks_have_edge_sizes(num_bytes: int) -> None:
    """Versions and weights arrive, in order."""
    message, (first, second) = build_pull_reply([(2**64 - 1, num_bytes // 4), (0, 3)])
    first.weights[:], second.weights[:] = 1.5, [1, 2, 3]

    reply = pb.PullReply.FromString(message)

    assert [table.version for table in reply.tables] == [2**64 - 1, 0]
    assert reply.tables[0].weights == np.full(num_bytes // 4, 1.5, np.float32).tobytes()
    assert reply.tables[1].weights == np.array([1, 2, 3], np.float32).tobytes()


@pytest.mark.parametrize("num_keys", [0, 1, 15, 16, 17, 2_047, 2_048, 2_049])
@pytest.mark.parametrize("has_counts", [False, True])
def test_the_generated_class_reads_a_push_when_its_blocks_have_edge_sizes(
    num_keys: int, has_counts: bool
) -> None:
    """Push id, part mark, keys, values and counts arrive; what is empty is left out."""
    num_counts = num_keys if has_counts else 0

    message, (part,) = build_push(
        7,
        PushId(UUID, 2**63),
        [TableSize("ads", num_keys, num_keys * 3, num_counts)],
        more=True,
    )
    part.keys[:], part.values[:], part.counts[:] = 2**63, -0.5, 2**32 - 1

    request = pb.PushRequest.FromString(message)
    table = request.tables[0]
    assert (request.incarnation, request.trainer, request.counter) == (7, UUID, 2**63)
    assert request.more
    assert table.table == "ads"
    assert table.keys == np.full(num_keys, 2**63, np.uint64).tobytes()
    assert table.values == np.full(num_keys * 3, -0.5, np.float32).tobytes()
    assert table.counts == np.full(num_counts, 2**32 - 1, np.uint32).tobytes()


@pytest.mark.parametrize("length", range(1, 20))
def test_blocks_begin_at_a_multiple_of_8_when_names_shift_them(length: int) -> None:
    """Whatever stands before it, each block is aligned in the message and in memory."""
    tables = [
        TableSize("n" * length, 3, 6, 3),
        TableSize("m", 1, 1, 1),
        TableSize("k" * (2 * length), 20, 20, 0),
    ]

    message, parts = build_push(length % 2, PushId(UUID, length**4), tables)

    for part in parts:
        for array in (part.keys, part.values, part.counts):
            assert array.size == 0 or address_in(message, array) % 8 == 0
            assert array.flags.aligned
            assert array.flags.writeable


def test_a_message_has_no_table_when_none_is_asked_for() -> None:
    """Empty requests and replies are empty messages."""
    assert build_pull(0, []) == (b"", [])
    assert build_pull_reply([]) == (b"", [])
    message, parts = build_push(0, PushId(UUID, 0), [])
    assert parts == []
    assert pb.PushRequest.FromString(message) == pb.PushRequest(trainer=UUID)


def test_a_table_without_keys_is_there_when_it_was_asked_for() -> None:
    """A reply has as many tables as the request, empty ones too."""
    message, arrays = build_pull_reply([(0, 0), (3, 0)])

    assert [array.weights.size for array in arrays] == [0, 0]
    assert [table.version for table in pb.PullReply.FromString(message).tables] == [0, 3]


def test_a_pull_costs_50_bytes_a_table_when_it_is_large() -> None:
    """Beside the keys a table costs its name and less than fifty bytes."""
    message, _ = build_pull(1, [("x" * 64, True, 100_000)])

    assert len(message) <= 100_000 * 8 + 64 + 50
