"""What a shard does with pushes: whole or not at all, once, and each version rises by one."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver import errors
from pserver.config import GroupSettings
from pserver.server.once import WINDOW
from pserver.server.servicer import Servicer
from pserver.spec import TableSpec
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import group_proto_of, parse_small
from tests.unit.server.messages import (
    TRAINER,
    Values,
    call,
    create,
    pull,
    push,
    push_bytes,
    stats,
)

NAN = float("nan")
NAMES = ("a", "b", "c")


def make() -> Servicer:
    """Return a shard with three tables that sgd moves by 1, each with room for four rows."""
    servicer = Servicer(shard=0, num_shards=1, queue_max=8)
    for name in NAMES:
        create(
            servicer,
            TableSpec(name=name, dim=1, optimizer="sgd:lr=1", initializer="zeros", capacity_max=4),
        )
    return servicer


@pytest.fixture
def servicer() -> Iterator[Servicer]:
    """Return such a shard."""
    servicer = make()
    yield servicer
    servicer.close()


def facts(servicer: Servicer) -> list[tuple[int, int]]:
    """Return rows and version of each table."""
    return [(table.rows, table.version) for table in stats(servicer).tables]


def weights(servicer: Servicer, key: int = 1) -> list[float]:
    """Return the weight of one key in each table, without making a row."""
    tables = pull(servicer, {name: [key] for name in NAMES}, create=False)
    return [table.weights.item() for table in tables]


def test_versions_rise_by_one_for_each_push(servicer: Servicer) -> None:
    """A push raises the version of each table that it names, and tells the new ones."""
    first = push(servicer, {"a": ([1], [1]), "c": ([1], [1])}, counter=0)
    second = push(servicer, {"c": ([1, 2], [1, 1])}, counter=1)

    assert (list(first.versions), list(second.versions)) == ([1, 1], [2])
    assert [version for _, version in facts(servicer)] == [1, 0, 2]
    assert weights(servicer) == [-1, 0, -2]


def test_versions_rise_once_when_a_push_comes_in_parts(servicer: Servicer) -> None:
    """Parts that say that more follow apply their rows but raise no version; the last one does."""
    part = push(servicer, {"a": ([1], [1]), "b": ([1], [1])}, counter=0, more=True)
    assert (list(part.versions), weights(servicer)) == ([], [-1, -1, 0])
    assert [version for _, version in facts(servicer)] == [0, 0, 0]

    last = push(servicer, {"a": ([], []), "b": ([2], [1]), "c": ([1], [1])}, counter=1)

    assert list(last.versions) == [1, 1, 1]
    assert weights(servicer) == [-1, -1, -1]


def test_retry_changes_nothing(servicer: Servicer) -> None:
    """A push sent twice under one push_id is applied once; the second reply says so (A18)."""
    values = {"a": ([1, 2], [1, 2]), "b": ([1], [3])}

    first = push(servicer, values, counter=5)
    before = facts(servicer)
    second = push(servicer, values, counter=5)

    assert (first.duplicate, second.duplicate) == (False, True)
    assert list(second.versions) == list(first.versions) == [1, 1]
    assert facts(servicer) == before
    assert weights(servicer) == [-1, -3, 0]
    assert (stats(servicer).pushes_applied, stats(servicer).pushes_duplicate) == (1, 1)


def test_assign_is_applied_once_too(servicer: Servicer) -> None:
    """An assign shares the trainer's counters: sent again after a push, it does not undo it."""
    push(servicer, {"a": ([1], [10])}, counter=0, method="Assign")
    push(servicer, {"a": ([1], [1])}, counter=1)

    again = push(servicer, {"a": ([1], [10])}, counter=0, method="Assign")

    assert again.duplicate
    assert weights(servicer)[0] == 9


def test_counters_of_two_trainers_do_not_meet(servicer: Servicer) -> None:
    """The same counter of another trainer is another push."""
    message = push_bytes({"a": ([1], [1])}, counter=0)
    other = message.replace(b"0123456789abcdef", b"fedcba9876543210")

    for sent in (message, other, message, other):
        call(servicer, "Push", sent)

    assert weights(servicer)[0] == -2


def test_push_is_refused_when_it_is_older_than_the_memory(servicer: Servicer) -> None:
    """A push behind the window is a StaleError, never applied a second time."""
    push(servicer, {"a": ([1], [1])}, counter=0)
    push(servicer, {"a": ([1], [1])}, counter=WINDOW)

    with pytest.raises(errors.StaleError, match=f"is {WINDOW} behind its newest"):
        push(servicer, {"a": ([1], [1])}, counter=0)

    assert weights(servicer)[0] == -2


@pytest.mark.parametrize("method", ["Push", "Assign"])
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (([1], [NAN]), errors.NotFiniteError),
        (([1], [1, 2]), errors.ShapeError),
        (([1, 2, 3, 4, 5], [0] * 5), errors.TableFullError),
    ],
)
def test_c6_no_table_is_touched_when_one_is_refused(
    servicer: Servicer, method: str, bad: tuple[list[int], list[float]], error: type[Exception]
) -> None:
    """A message whose second table is refused leaves the first as it was, and may come again."""
    push(servicer, {"a": ([1], [1]), "b": ([1], [1])}, counter=0)
    before = facts(servicer), weights(servicer)

    with pytest.raises(error, match="'b'"):
        push(servicer, {"a": ([1, 2], [5, 5]), "b": bad}, counter=1, method=method)

    assert (facts(servicer), weights(servicer)) == before
    fixed = push(servicer, {"a": ([1], [1]), "b": ([1], [1])}, counter=1)
    assert not fixed.duplicate


@pytest.mark.parametrize(
    ("values", "refusal"),
    [
        ({"a": ([1], [NAN])}, errors.NotFiniteError),
        ({"a": (range(5), [1.0] * 5)}, errors.TableFullError),
    ],
)
def test_a_refused_push_is_one_step_of_its_trainer_however_often_it_comes(
    servicer: Servicer, values: Values, refusal: type[errors.PserverError]
) -> None:
    """Refused twice under one push_id, since the first answer was lost, and then the next one: 2 steps."""
    group = group_proto_of(GroupSettings(mode="async", trainers=1))
    joining = pb.JoinRequest(trainer=TRAINER, group=group, lease_s=10.0)
    call(servicer, "Join", joining.SerializeToString())
    for _ in range(2):
        with pytest.raises(refusal):
            push(servicer, values, counter=1)
    push(servicer, {"a": ([1], [1.0])}, counter=2)

    assert stats(servicer).group.trainers[0].pushes == 2


def test_table_named_twice_is_refused(servicer: Servicer) -> None:
    """A push names each table once: what two parts for one table would mean is not guessed."""
    one = push_bytes({"a": ([1], [1]), "b": ([1], [1])}, counter=0)
    twice = one.replace(b"\x0a\x01b", b"\x0a\x01a")

    with pytest.raises(errors.ShapeError, match=r"names each table once, got \['a', 'a'\]"):
        call(servicer, "Push", twice)

    assert facts(servicer) == [(0, 0)] * 3


def test_counts_that_do_not_fit_their_keys_are_refused(servicer: Servicer) -> None:
    """One count for two keys is refused before anything is applied."""
    message = push_bytes({"a": ([1, 2], [1, 1])}, counter=0, counts={"a": [3]})

    with pytest.raises(errors.ShapeError, match="2 keys came with 1 counts"):
        call(servicer, "Push", message)

    assert facts(servicer)[0] == (0, 0)


def test_stats_add_up(servicer: Servicer) -> None:
    """Stats tell rows, versions, keys, occurrences, pushes and calls as they were."""
    call(servicer, "Push", push_bytes({"a": ([1, 2], [1, 1])}, counter=0, counts={"a": [3, 4]}))
    call(servicer, "Push", push_bytes({"b": ([1], [1])}, counter=1))
    call(servicer, "Push", push_bytes({"b": ([1], [1])}, counter=1))
    pull(servicer, {"a": [1, 2, 3], "b": [1]})
    pull(servicer, {"a": [4]}, create=False)

    reply = stats(servicer)

    a, b, c = reply.tables
    assert (a.table, a.rows, a.version) == ("a", 3, 1)
    assert (a.keys_pulled, a.keys_pushed, a.occurrences_pushed) == (4, 2, 7)
    assert (b.rows, b.version, b.keys_pulled, b.keys_pushed, b.occurrences_pushed) == (
        1,
        1,
        1,
        1,
        0,
    )
    assert (c.rows, c.version, c.keys_pulled, c.keys_pushed) == (0, 0, 0, 0)
    assert a.bytes > 0
    assert (reply.pushes_applied, reply.pushes_duplicate, reply.queued) == (2, 1, 0)
    calls = {method.method: (method.calls, method.errors) for method in reply.methods}
    assert calls == {"CreateTable": (3, 0), "Pull": (2, 0), "Push": (3, 0)}
    pushes = next(method for method in reply.methods if method.method == "Push")
    assert 0.0 < pushes.p50_s <= pushes.p99_s <= pushes.max_s < 10.0
    assert pushes.calls_per_s == pytest.approx(0.3)
    assert reply.memory_bytes > 1 << 20
    assert 0.0 <= reply.uptime_s < 60.0
    assert reply.cpu_s > 0.0


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=30))
def test_each_push_counts_once_when_any_of_them_is_repeated(sent: list[tuple[int, bool]]) -> None:
    """However pushes are repeated and mixed, each counter moves its key once."""
    servicer = make()
    seen: set[int] = set()
    for counter, other in sent:
        reply = parse_small(
            pb.PushReply,
            call(servicer, "Push", push_bytes({"ab"[other]: ([1], [1])}, counter=counter)),
        )
        assert reply.duplicate == (counter in seen)
        seen.add(counter)

    assert sum(weights(servicer)) == -len(seen)
    assert stats(servicer).pushes_applied == len(seen)
    servicer.close()


def test_gradients_are_read_where_they_are_in_the_message(servicer: Servicer) -> None:
    """A push from another writer, whose blocks are not aligned, gives the same rows."""
    keys = np.array([1, 2], np.uint64)
    request = pb.PushRequest(
        trainer=b"t" * 16,
        counter=1,
        tables=[
            pb.TablePush(
                table="a", keys=keys.tobytes(), values=np.array([1, 2], np.float32).tobytes()
            )
        ],
    )

    call(servicer, "Push", request.SerializeToString())

    assert pull(servicer, {"a": [1, 2]})[0].weights.tolist() == [-1, -2]
