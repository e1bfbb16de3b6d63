"""The fields of a push that make it a part of a round."""

import pytest

from pserver.errors import ShapeError
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import parse_push

UUID = bytes(range(16))


def test_a_part_of_a_round_is_refused_when_its_number_of_messages_is_left_out() -> None:
    """A part that says nothing of its size could never be known to be whole."""
    request = pb.PushRequest(trainer=UUID, round=3)

    with pytest.raises(ShapeError, match="number of messages"):
        parse_push(request.SerializeToString())
