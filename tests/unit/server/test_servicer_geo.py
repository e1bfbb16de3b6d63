"""What a shard does with differences: adds them once, and tells each trainer what others changed."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from pserver import errors
from pserver.config import GroupSettings
from pserver.server.align import Marks
from pserver.server.servicer import Servicer
from pserver.server.waiting import NotYet
from pserver.spec import TableSpec
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import group_proto_of, parse_small
from tests.unit.server.messages import TRAINER, call, create, pull, push, push_bytes, stats

OTHER = b"fedcba9876543210"


@pytest.fixture
def servicer() -> Iterator[Servicer]:
    """Return a shard with a table whose rule is adam, and a dense one."""
    servicer = Servicer(shard=0, num_shards=1, queue_max=8)
    create(servicer, TableSpec(name="t", dim=2, optimizer="adam:lr=1", initializer="zeros"))
    spec = pb.DenseSpec(name="d", length=2, optimizer="sgd:lr=1")
    call(servicer, "CreateDense", pb.CreateDenseRequest(spec=spec).SerializeToString())
    yield servicer
    servicer.close()


def changed(servicer: Servicer, *, ack: int, trainer: bytes = OTHER) -> pb.PullChangedReply:
    """Ask what others changed."""
    request = pb.PullChangedRequest(table="t", trainer=trainer, ack=ack)
    return parse_small(
        pb.PullChangedReply, call(servicer, "PullChanged", request.SerializeToString())
    )


def keys_of(reply: pb.PullChangedReply) -> list[int]:
    """Return the keys of an answer."""
    return [int(key) for key in np.frombuffer(reply.keys, np.uint64)]


def dense_bytes(counter: int, values: list[float]) -> bytes:
    """Return the bytes of a write to the dense table."""
    block = np.array(values, np.float32).tobytes()
    write = pb.DenseWrite(trainer=TRAINER, counter=counter, table="d", values=block)
    message: bytes = write.SerializeToString()
    return message


def dense_write(method: str, counter: int, servicer: Servicer, values: list[float]) -> bytes:
    """Write to the dense table."""
    return call(servicer, method, dense_bytes(counter, values))


def test_differences_are_added_as_they_are_whatever_the_rule(servicer: Servicer) -> None:
    """A difference moves the weights by itself: the table's optimizer has no part in it."""
    push(servicer, {"t": ([1], [1.0, 2.0])}, counter=0, method="PushDelta")
    reply = push(servicer, {"t": ([1, 2], [0.5, 0.5, 4.0, 4.0])}, counter=1, method="PushDelta")

    assert pull(servicer, {"t": [1, 2]})[0].weights.tolist() == [1.5, 2.5, 4.0, 4.0]
    assert (reply.duplicate, list(reply.versions)) == (False, [2])


def test_a_difference_counts_once_when_it_is_sent_again(servicer: Servicer) -> None:
    """A repeat is answered as such, changes no weight and is noted for nobody."""
    changed(servicer, ack=0)
    push(servicer, {"t": ([1], [1.0, 1.0])}, counter=3, method="PushDelta")
    again = push(servicer, {"t": ([1], [1.0, 1.0])}, counter=3, method="PushDelta")

    assert again.duplicate
    assert pull(servicer, {"t": [1]})[0].weights.tolist() == [1.0, 1.0]
    assert changed(servicer, ack=1).position == 2
    assert stats(servicer).pushes_duplicate == 1


def test_a_difference_that_is_no_number_is_refused_whole(servicer: Servicer) -> None:
    """NaN in one row leaves the others as they were too, and the push_id unused."""
    bad = push_bytes({"t": ([1, 2], [1.0, 1.0, np.nan, 1.0])}, counter=0)
    with pytest.raises(errors.NotFiniteError, match="key 2 is nan"):
        call(servicer, "PushDelta", bad)

    good = push(servicer, {"t": ([1], [1.0, 1.0])}, counter=0, method="PushDelta")
    assert not good.duplicate
    assert pull(servicer, {"t": [1, 2]})[0].weights.tolist() == [1.0, 1.0, 0.0, 0.0]


def test_a_dense_difference_is_added_once(servicer: Servicer) -> None:
    """Dense tables take differences as sparse ones do."""
    dense_write("InitDense", 0, servicer, [1.0, 2.0])
    for _ in range(2):
        dense_write("PushDenseDelta", 1, servicer, [0.5, -1.0])

    request = pb.PullDenseRequest(table="d").SerializeToString()
    reply = parse_small(pb.PullDenseReply, call(servicer, "PullDense", request))
    assert np.frombuffer(reply.values, np.float32).tolist() == [1.5, 1.0]
    assert reply.version == 1


def test_the_first_question_begins_the_log(servicer: Servicer) -> None:
    """Who never asked is told "all"; from then on each write is named, the asker's own left out."""
    push(servicer, {"t": ([9], [1.0, 1.0])}, counter=0, method="PushDelta")
    first = changed(servicer, ack=0)
    push(servicer, {"t": ([1, 2], [1.0] * 4)}, counter=1, method="PushDelta")
    push(servicer, {"t": ([2, 3], [1.0] * 4)}, counter=2, method="Assign")
    push(servicer, {"t": ([4], [1.0] * 2)}, counter=3, method="Push")

    theirs, own = (changed(servicer, ack=first.position, trainer=t) for t in (OTHER, TRAINER))

    assert (first.is_all, keys_of(first)) == (True, [])
    assert (theirs.is_all, keys_of(theirs)) == (False, [1, 2, 3, 4])
    assert (own.is_all, keys_of(own)) == (False, [])
    assert own.position == theirs.position == first.position + 5


def test_a_mark_of_the_future_is_not_believed(servicer: Servicer) -> None:
    """A position that the log has not reached is of another log: everything may have changed."""
    assert changed(servicer, ack=changed(servicer, ack=0).position + 1).is_all


def test_questions_that_make_no_sense_are_refused(servicer: Servicer) -> None:
    """An unknown table, a dense one and a nameless trainer are told what is wrong."""
    for request, error, text in (
        (
            pb.PullChangedRequest(table="x", trainer=OTHER),
            errors.UnknownTableError,
            "did you|valid",
        ),
        (pb.PullChangedRequest(table="d", trainer=OTHER), errors.SpecMismatchError, "is dense"),
        (pb.PullChangedRequest(table="t", trainer=b"me"), errors.ShapeError, "is 16 bytes, got 2"),
        (pb.PullChangedRequest(table="t", incarnation=1), errors.RestartedError, "restarted"),
    ):
        with pytest.raises(error, match=text):
            call(servicer, "PullChanged", request.SerializeToString())


def test_dense_and_sparse_differences_of_a_window_are_one_step_of_its_trainer(
    servicer: Servicer,
) -> None:
    """A cut that another shard has the step of lets both pass, and nothing of the next step."""
    settings = GroupSettings(mode="geo", trainers=1, trainer_id=0)
    joining = pb.JoinRequest(
        trainer=TRAINER, group=group_proto_of(settings), lease_s=settings.lease_s
    )
    call(servicer, "Join", joining.SerializeToString())
    dense_write("InitDense", 0, servicer, [0.0, 0.0])
    dense_write("PushDenseDelta", 1, servicer, [1.0, 1.0])
    assert servicer._align.marks().pushes == {TRAINER: 1}

    async def align() -> None:
        limit = Marks(0, {TRAINER: 1})
        servicer._align.set(limit)
        work = servicer._work
        work["PushDenseDelta"](dense_bytes(2, [1.0, 1.0]))
        assert not servicer._align.is_reached(limit)
        work["PushDelta"](push_bytes({"t": ([1], [1.0, 2.0])}, counter=3))
        assert servicer._align.is_reached(limit)
        with pytest.raises(NotYet, match="a checkpoint is being marked"):
            work["PushDenseDelta"](dense_bytes(4, [1.0, 1.0]))
        servicer._align.lift()

    asyncio.run(align())
    assert servicer._registry.get_dense("d").pull(0).tolist() == [2.0, 2.0]
