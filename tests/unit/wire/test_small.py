"""What ``wire.small`` promises: specs there and back, and ``ShapeError`` for what is no message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.errors import ConfigError, ShapeError
from pserver.spec import (
    DAYS_MAX,
    DIM_MAX,
    ON_NAN,
    ROW_DTYPES,
    ROWS_MAX,
    STORAGES,
    UNKNOWN_READS,
    TableSpec,
)
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import parse_small, proto_of, spec_of


@given(
    st.builds(
        TableSpec,
        name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", fullmatch=True),
        dim=st.integers(1, DIM_MAX),
        optimizer=st.text(max_size=30),
        initializer=st.text(max_size=30),
        seed=st.integers(0, 2**64 - 1),
        capacity_max=st.integers(1, ROWS_MAX),
        on_nan=st.sampled_from(ON_NAN),
        unknown_reads=st.sampled_from(UNKNOWN_READS),
        ttl_days=st.integers(0, DAYS_MAX),
        evict=st.text(min_size=1, max_size=30),
        row_dtype=st.sampled_from(ROW_DTYPES),
        storage=st.sampled_from(STORAGES),
    )
)
def test_a_spec_is_read_back_when_it_was_sent(spec: TableSpec) -> None:
    """Every field crosses the wire, seeds up to 2^64 - 1 included."""
    message = pb.CreateTableRequest(spec=proto_of(spec)).SerializeToString()

    assert spec_of(parse_small(pb.CreateTableRequest, message).spec) == spec


def test_a_spec_has_defaults_when_a_client_does_not_know_a_field() -> None:
    """A message of an older client, which leaves out later fields, is a spec as it meant it."""
    old = pb.TableSpec(name="ads", dim=4, optimizer="sgd", initializer="zeros", capacity_max=9)

    assert spec_of(old) == TableSpec(
        name="ads", dim=4, optimizer="sgd", initializer="zeros", capacity_max=9
    )


def test_a_spec_is_refused_when_a_field_is_missing() -> None:
    """An empty message is a spec out of range, not a table of dim 0."""
    with pytest.raises(ConfigError, match="table name must be"):
        spec_of(pb.TableSpec())
    with pytest.raises(ConfigError, match=r"dim must be an integer in \[1, 4096\], got 0"):
        spec_of(pb.TableSpec(name="ads", capacity_max=1))


def test_a_word_has_its_default_when_an_older_writer_left_it_out() -> None:
    """What a client of before the field sends is the table that it knows."""
    spec = spec_of(pb.TableSpec(name="ads", dim=1, capacity_max=1))

    assert (spec.storage, spec.row_dtype) == ("memory", "float32")


@pytest.mark.parametrize("message", [b"\x0a", b"\x09\x01", b"\x12\x05ab", b"\xff" * 11])
def test_bytes_are_refused_when_they_are_no_message(message: bytes) -> None:
    """What protobuf cannot read is a ShapeError that names the message, with its cause."""
    with pytest.raises(ShapeError, match="bytes are no CreateTableRequest") as caught:
        parse_small(pb.CreateTableRequest, message)

    assert caught.value.__cause__ is not None
