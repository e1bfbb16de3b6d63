"""What a shard does with dense writes: once, for this process only, and told in its facts."""

from collections.abc import Iterator

import numpy as np
import pytest

from pserver import errors
from pserver.server.servicer import Servicer
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import parse_small
from tests.unit.server.messages import TRAINER, call, stats


@pytest.fixture
def servicer() -> Iterator[Servicer]:
    """Return the second of two shards, which holds floats 1 and 2 of three."""
    servicer = Servicer(shard=1, num_shards=2, queue_max=8)
    spec = pb.DenseSpec(name="d", length=3, optimizer="sgd:lr=1")
    call(servicer, "CreateDense", pb.CreateDenseRequest(spec=spec).SerializeToString())
    yield servicer
    servicer.close()


def write(
    servicer: Servicer,
    method: str,
    values: list[float],
    *,
    counter: int,
    incarnation: int = 0,
    more: bool = False,
) -> pb.DenseWriteReply:
    """Write values, and return the reply."""
    block = np.array(values, np.float32).tobytes()
    request = pb.DenseWrite(
        trainer=TRAINER,
        counter=counter,
        table="d",
        values=block,
        incarnation=incarnation,
        more=more,
    )
    return parse_small(pb.DenseWriteReply, call(servicer, method, request.SerializeToString()))


def pull(
    servicer: Servicer, *, part: int = 0, known: int = 0, incarnation: int = 0
) -> pb.PullDenseReply:
    """Pull, and return the reply."""
    request = pb.PullDenseRequest(table="d", part=part, known=known, incarnation=incarnation)
    return parse_small(pb.PullDenseReply, call(servicer, "PullDense", request.SerializeToString()))


def test_a_write_counts_once_when_it_is_sent_again(servicer: Servicer) -> None:
    """Repeats of init and push are answered as such and change nothing."""
    write(servicer, "InitDense", [1, 2], counter=0)
    first = write(servicer, "PushDense", [1, 1], counter=1)
    again = write(servicer, "PushDense", [1, 1], counter=1)
    begin = write(servicer, "InitDense", [1, 2], counter=0)

    assert (first.duplicate, again.duplicate, begin.duplicate) == (False, True, True)
    assert (first.version, again.version, begin.version) == (1, 1, 1)
    assert np.frombuffer(pull(servicer).values, np.float32).tolist() == [0, 1]
    assert (stats(servicer).pushes_applied, stats(servicer).pushes_duplicate) == (2, 2)


def test_a_refused_write_may_be_sent_again(servicer: Servicer) -> None:
    """What was refused was not applied: its push_id is still good."""
    write(servicer, "InitDense", [1, 2], counter=0)
    with pytest.raises(errors.NotFiniteError):
        write(servicer, "PushDense", [1, float("nan")], counter=1)

    assert not write(servicer, "PushDense", [1, 1], counter=1).duplicate


def test_an_unchanged_part_is_a_few_bytes(servicer: Servicer) -> None:
    """The mark of an answer makes the next one empty, until something changes."""
    write(servicer, "InitDense", [1, 2], counter=0)
    first = pull(servicer)
    again = pull(servicer, known=first.change)
    assert (again.is_unchanged, again.values, first.is_unchanged) == (True, b"", False)
    assert again.ByteSize() < 8

    write(servicer, "PushDense", [1, 1], counter=1, more=True)
    assert not pull(servicer, known=first.change).is_unchanged
    assert pull(servicer).version == 0


def test_another_process_is_refused(servicer: Servicer) -> None:
    """Requests for the process that ran here before are refused, each of them."""
    for send in (
        lambda: write(servicer, "InitDense", [1, 2], counter=0, incarnation=1),
        lambda: write(servicer, "PushDense", [1, 2], counter=0, incarnation=1),
        lambda: pull(servicer, incarnation=1),
    ):
        with pytest.raises(errors.RestartedError):
            send()


def test_bytes_that_do_not_fit_are_refused(servicer: Servicer) -> None:
    """Half a float, a short trainer and a table that is not there."""
    for message, kind in (
        (pb.DenseWrite(trainer=TRAINER, table="d", values=b"12345"), errors.ShapeError),
        (pb.DenseWrite(trainer=b"short", table="d"), errors.ShapeError),
        (pb.DenseWrite(trainer=TRAINER, table="x"), errors.UnknownTableError),
    ):
        with pytest.raises(kind):
            call(servicer, "InitDense", message.SerializeToString())


def test_facts_name_the_table(servicer: Servicer) -> None:
    """Stats and the handshake tell the spec, and this shard's share."""
    write(servicer, "InitDense", [1, 2], counter=0)
    reply = stats(servicer)

    (spec,), (table,) = reply.server.dense_tables, reply.dense_tables
    assert (spec.name, spec.length, spec.optimizer) == ("d", 3, "sgd:lr=1.0")
    assert (table.length, table.bytes, table.version, table.epoch) == (2, 8, 0, 1)
    assert b'pserver_dense_floats{table="d"} 2.0' in _page(servicer)


def _page(servicer: Servicer) -> bytes:
    from prometheus_client import generate_latest

    return generate_latest(servicer.metrics.registry)
