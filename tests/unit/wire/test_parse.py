"""What ``wire.parse`` promises: what was built, whoever built it, or ``ShapeError``."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.errors import ShapeError
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import (
    PullRequest,
    PushId,
    PushRequest,
    Stamp,
    TablePull,
    TablePush,
    TableRows,
    TableSize,
    build_pull,
    build_pull_reply,
    build_push,
    parse_pull,
    parse_pull_reply,
    parse_push,
)
from pserver.wire.build import _varint

UUID = bytes(range(16))
PARSERS: tuple[Callable[[bytes], object], ...] = (parse_pull, parse_pull_reply, parse_push)

numbers = st.integers(0, 2**64 - 1)
uuids = st.binary(min_size=16, max_size=16)
stamps = st.builds(
    Stamp, st.integers(1, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(1, 2**32 - 1)
)
names = st.text(st.characters(codec="utf-8"), max_size=70)
sizes = st.integers(0, 20) | st.sampled_from([15, 16, 17, 31, 32, 33, 2_047, 2_048, 2_049])


def block(size: int, dtype: type, seed: int) -> np.ndarray:
    """Return any bits at all, NaN included."""
    num_bytes = size * np.dtype(dtype).itemsize
    return np.frombuffer(np.random.default_rng(seed).bytes(num_bytes), dtype)


@st.composite
def pulls(draw: st.DrawFn) -> PullRequest:
    tables = draw(st.lists(st.tuples(names, st.booleans(), sizes), max_size=4))
    return PullRequest(
        draw(numbers),
        [TablePull(name, create, block(n, np.uint64, n)) for name, create, n in tables],
        *draw(st.just((b"", 0)) | st.tuples(uuids, numbers)),
    )


@st.composite
def replies(draw: st.DrawFn) -> list[TableRows]:
    tables = draw(st.lists(st.tuples(numbers, sizes), max_size=4))
    return [TableRows(version, block(n, np.float32, n)) for version, n in tables]


@st.composite
def pushes(draw: st.DrawFn) -> PushRequest:
    entry = st.tuples(names, sizes, sizes, st.booleans(), st.integers(0, 2**32 - 1), numbers)
    tables = draw(st.lists(entry, max_size=4))
    return PushRequest(
        draw(numbers),
        PushId(draw(uuids), draw(numbers)),
        draw(st.booleans()),
        [
            TablePush(
                name,
                block(n, np.uint64, n),
                block(values, np.float32, values),
                block(n * has_counts, np.uint32, n),
                dense_part,
                pulled,
            )
            for name, n, values, has_counts, dense_part, pulled in tables
        ],
        draw(st.none() | stamps),
    )


def bytes_of_pull(request: PullRequest) -> bytes:
    message, arrays = build_pull(
        request.incarnation,
        [(t.table, t.create, t.keys.size) for t in request.tables],
        trainer=request.trainer,
        round_number=request.round,
    )
    for array, table in zip(arrays, request.tables, strict=True):
        array[:] = table.keys
    return message


def bytes_of_reply(reply: Sequence[TableRows]) -> bytes:
    message, arrays = build_pull_reply([(t.version, t.weights.size) for t in reply])
    for array, table in zip(arrays, reply, strict=True):
        array.weights.view(np.uint32)[:] = table.weights.view(np.uint32)
    return message


def bytes_of_push(request: PushRequest) -> bytes:
    message, parts = build_push(
        request.incarnation,
        request.push_id,
        [
            TableSize(t.table, t.keys.size, t.values.size, t.counts.size, t.dense_part, t.pulled)
            for t in request.tables
        ],
        more=request.more,
        stamp=request.stamp,
    )
    for part, table in zip(parts, request.tables, strict=True):
        part.keys[:], part.counts[:] = table.keys, table.counts
        part.values.view(np.uint32)[:] = table.values.view(np.uint32)
    return message


def proto_of_pull(request: PullRequest) -> pb.PullRequest:
    tables = [
        pb.TablePull(table=t.table, create=t.create, keys=t.keys.tobytes()) for t in request.tables
    ]
    return pb.PullRequest(
        incarnation=request.incarnation,
        tables=tables,
        trainer=request.trainer,
        round=request.round,
    )


def proto_of_reply(reply: Sequence[TableRows]) -> pb.PullReply:
    tables = [pb.TableRows(version=t.version, weights=t.weights.tobytes()) for t in reply]
    return pb.PullReply(tables=tables)


def proto_of_push(request: PushRequest) -> pb.PushRequest:
    return pb.PushRequest(
        incarnation=request.incarnation,
        trainer=request.push_id.trainer,
        counter=request.push_id.counter,
        more=request.more,
        tables=[
            pb.TablePush(
                table=t.table,
                keys=t.keys.tobytes(),
                values=t.values.tobytes(),
                counts=t.counts.tobytes(),
                dense_part=t.dense_part,
                pulled=t.pulled,
            )
            for t in request.tables
        ],
        **(dataclasses.asdict(request.stamp) if request.stamp else {}),
    )


def plain(value: Any) -> Any:
    """Return a message with bytes for its arrays, so that == compares every bit."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tobytes()
    if isinstance(value, list):
        return [plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return [plain(getattr(value, field)) for field in value.__dataclass_fields__]
    return value


def without_pads(message: pb.PullRequest | pb.PullReply | pb.PushRequest) -> bytes:
    """Return the message as another writer would send it."""
    for table in message.tables:
        table.ClearField("pad")
    return bytes(message.SerializeToString(deterministic=True))


@given(pulls())
def test_a_pull_is_read_back_when_it_was_built(request: PullRequest) -> None:
    """By us, by the generated class, and by us again from the generated class's own bytes."""
    message = bytes_of_pull(request)
    other = without_pads(pb.PullRequest.FromString(message))

    assert plain(parse_pull(message)) == plain(request)
    assert other == without_pads(proto_of_pull(request))
    assert plain(parse_pull(other)) == plain(request)


@given(replies())
def test_a_reply_is_read_back_when_it_was_built(reply: list[TableRows]) -> None:
    """By us, by the generated class, and by us again from the generated class's own bytes."""
    message = bytes_of_reply(reply)
    other = without_pads(pb.PullReply.FromString(message))

    assert plain(parse_pull_reply(message)) == plain(reply)
    assert other == without_pads(proto_of_reply(reply))
    assert plain(parse_pull_reply(other)) == plain(reply)


@given(pushes())
def test_a_push_is_read_back_when_it_was_built(request: PushRequest) -> None:
    """By us, by the generated class, and by us again from the generated class's own bytes."""
    message = bytes_of_push(request)
    other = without_pads(pb.PushRequest.FromString(message))

    assert plain(parse_push(message)) == plain(request)
    assert other == without_pads(proto_of_push(request))
    assert plain(parse_push(other)) == plain(request)


def test_arrays_are_views_when_the_message_is_aligned() -> None:
    """Nothing is copied: the arrays lie in the message, read-only and aligned."""
    message, (part,) = build_push(1, PushId(UUID, 1), [TableSize("ads", 3, 6, 3)])
    part.keys[:], part.values[:], part.counts[:] = 1, 2, 3
    start = np.frombuffer(message, np.uint8).ctypes.data

    (table,) = parse_push(message).tables

    for array in (table.keys, table.values, table.counts):
        assert start <= array.ctypes.data < start + len(message)
        assert array.flags.aligned
        assert not array.flags.writeable


def test_arrays_are_aligned_copies_when_the_message_is_not() -> None:
    """Wherever another writer put a block, what is read is aligned, read-only and equal."""
    for length in range(1, 17):
        keys = block(5, np.uint64, length)
        request = pb.PullRequest(tables=[pb.TablePull(table="n" * length, keys=keys.tobytes())])

        (table,) = parse_pull(request.SerializeToString()).tables

        assert table.keys.flags.aligned
        assert not table.keys.flags.writeable
        assert np.array_equal(table.keys, keys)


def test_the_last_one_counts_when_a_field_comes_twice() -> None:
    """As protobuf has it: the last of repeated scalars and blocks is the value."""
    table = b"\x0a\x01a" + b"\x0a\x01b" + b"\x6a\x08" + b"\x01" * 8 + b"\x6a\x08" + b"\x02" * 8
    message = b"\x12" + _varint(len(table)) + table

    (parsed,) = parse_pull(message).tables

    expected = pb.PullRequest.FromString(message).tables[0]
    assert (parsed.table, parsed.keys.tobytes()) == (expected.table, expected.keys)


def test_unknown_fields_are_skipped_when_a_newer_peer_sends_them() -> None:
    """Fields of any wire type in use that we do not know change nothing."""
    request = PullRequest(5, [TablePull("ads", True, block(3, np.uint64, 0))])
    unknown = b"\xa2\x06\x03abc" + b"\xa8\x06\x07" + b"\xb1\x06" + b"\0" * 8 + b"\xbd\x06" + b"1234"

    message = unknown + bytes_of_pull(request) + unknown

    assert plain(parse_pull(message)) == plain(request)


PUSH = bytes_of_push(
    PushRequest(
        2**60,
        PushId(UUID, 300),
        True,
        [
            TablePush(
                "ads", block(3, np.uint64, 1), block(6, np.float32, 2), np.arange(3, dtype="u4")
            ),
            TablePush("u", block(1, np.uint64, 3), block(0, np.float32, 4), np.empty(0, "u4")),
        ],
    )
)
PULL = bytes_of_pull(PullRequest(2**60, [TablePull("ads", True, block(4, np.uint64, 5))] * 2))
REPLY = bytes_of_reply(
    [TableRows(300, block(8, np.float32, 6)), TableRows(0, block(1, np.float32, 7))]
)
MESSAGES = list(zip((PULL, REPLY, PUSH), PARSERS, strict=True))


def parse_or_refuse(parse: Callable[[bytes], object], message: bytes) -> bool:
    """Return whether the bytes were accepted; any error but ``ShapeError`` gets out."""
    try:
        parse(message)
    except ShapeError:
        return False
    return True


@pytest.mark.parametrize(("message", "parse"), MESSAGES)
def test_bytes_are_refused_when_they_were_cut(
    message: bytes, parse: Callable[[bytes], object]
) -> None:
    """Every cut is refused, unless it falls between two fields, where it cannot be seen."""
    accepted = [cut for cut in range(len(message)) if parse_or_refuse(parse, message[:cut])]

    assert len(accepted) <= 4


@pytest.mark.parametrize(("message", "parse"), MESSAGES)
def test_only_shape_errors_come_when_any_one_bit_is_flipped(
    message: bytes, parse: Callable[[bytes], object]
) -> None:
    """Each single flipped bit is refused with ShapeError, or is a legal message."""
    for position, bit in itertools.product(range(len(message)), range(8)):
        flipped = bytearray(message)
        flipped[position] ^= 1 << bit
        parse_or_refuse(parse, bytes(flipped))


@given(data=st.data(), case=st.sampled_from(MESSAGES))
def test_only_shape_errors_come_when_bytes_are_changed_added_or_removed(
    data: st.DataObject, case: tuple[bytes, Callable[[bytes], object]]
) -> None:
    """Any edit of a message is refused with ShapeError, or is a legal message."""
    message, parse = case
    start = data.draw(st.integers(0, len(message)))
    stop = data.draw(st.integers(start, len(message)))

    parse_or_refuse(parse, message[:start] + data.draw(st.binary(max_size=20)) + message[stop:])


@given(message=st.binary(max_size=80), parse=st.sampled_from(PARSERS))
def test_only_shape_errors_come_when_bytes_are_noise(
    message: bytes, parse: Callable[[bytes], object]
) -> None:
    """Any bytes at all are refused with ShapeError, or are a legal message."""
    parse_or_refuse(parse, message)


def table_of(*pieces: bytes) -> bytes:
    """Return a pull of one table with these fields."""
    table = b"".join(pieces)
    return b"\x12" + _varint(len(table)) + table


@pytest.mark.parametrize("size", [2**31, 2**40, 2**63, 2**64 - 1])
def test_nothing_is_allocated_when_a_length_is_huge(size: int) -> None:
    """A block that claims more bytes than came is refused by its claim."""
    with pytest.raises(ShapeError, match=f"field 13 needs {size} bytes and 3 are left"):
        parse_pull(table_of(b"\x6a" + _varint(size) + b"abc"))
    with pytest.raises(ShapeError, match=f"field 2 needs {size} bytes and 0 are left"):
        parse_pull(b"\x12" + _varint(size))


@pytest.mark.parametrize(
    ("parse", "message", "error"),
    [
        (parse_pull, b"\x10\x05", "field 2 must be bytes, got a number"),
        (parse_pull, b"\x0a\x02ab", "field 1 must be a number, got 2 bytes"),
        (parse_pull, table_of(b"\x08\x01"), "field 1 must be bytes, got a number"),
        (parse_pull, table_of(b"\x12\x01a"), "field 2 must be a number, got 1 bytes"),
        (parse_pull, table_of(b"\x0a\x01\xff"), "field 1 must be UTF-8 text"),
        (parse_pull, table_of(b"\x6a\x07abcdefg"), "keys must be a multiple of 8 bytes, got 7"),
        (parse_pull, table_of(b"\x68\x07"), "field 13 must be bytes, got a number"),
        (parse_pull_reply, b"\x0a\x05\x6a\x03abc", "weights must be a multiple of 4 bytes, got 3"),
        (parse_push, b"", "trainer must be 16 bytes, got 0"),
        (parse_push, b"\x12\x11" + b"x" * 17, "trainer must be 16 bytes, got 17"),
        (parse_push, b"\x10\x01", "field 2 must be bytes, got a number"),
    ],
)
def test_the_field_is_named_when_it_has_another_kind(
    parse: Callable[[bytes], object], message: bytes, error: str
) -> None:
    """The error says which field, what it must be and what came."""
    with pytest.raises(ShapeError, match=error):
        parse(message)


@pytest.mark.parametrize(
    ("table", "error"),
    [
        (pb.TablePush(table="ads", keys=b"x" * 9), "keys of table 'ads' must be a multiple of 8"),
        (
            pb.TablePush(table="ads", values=b"x" * 9),
            "values of table 'ads' must be a multiple of 4",
        ),
        (
            pb.TablePush(table="ads", counts=b"x" * 9),
            "counts of table 'ads' must be a multiple of 4",
        ),
        (
            pb.TablePush(table="ads", keys=b"x" * 16, counts=b"x" * 4),
            "'ads': 2 keys came with 1 counts",
        ),
        (pb.TablePush(table="ads", counts=b"x" * 4), "'ads': 0 keys came with 1 counts"),
    ],
)
def test_the_table_is_named_when_a_push_does_not_fit(table: pb.TablePush, error: str) -> None:
    """The error names table and block, what must hold and what came."""
    message = pb.PushRequest(trainer=UUID, tables=[table]).SerializeToString()

    with pytest.raises(ShapeError, match=error):
        parse_push(message)
