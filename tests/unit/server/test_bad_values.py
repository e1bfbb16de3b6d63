"""What a shard does with NaN in a push: as the table says, counted by table and trainer."""

from collections.abc import Iterator

import pytest

from pserver import errors
from pserver.server.bad_values import OTHERS, TRAINERS_MAX
from pserver.server.servicer import Servicer
from pserver.spec import ON_NAN, TableSpec
from pserver.wire import PushId, TableSize, build_push
from tests.unit.server.messages import TRAINER, call, create, pull, push, stats

BAD = (float("nan"), float("inf"), float("-inf"), 1e38, -1e38)


@pytest.fixture
def servicer() -> Iterator[Servicer]:
    """Return a shard with a table for each policy, named like it, that sgd moves by 1."""
    made = Servicer(shard=0, num_shards=1, queue_max=8)
    for word in ON_NAN:
        spec = TableSpec(name=word, dim=2, optimizer="sgd:lr=1", initializer="zeros", on_nan=word)
        create(made, spec)
    yield made
    made.close()


def weights(servicer: Servicer, table: str, keys: list[int]) -> list[float]:
    """Return weights, and make no row."""
    (rows,) = pull(servicer, {table: keys}, create=False)
    return [float(weight) for weight in rows.weights]


def bad_of(servicer: Servicer, table: str) -> tuple[int, dict[str, int], str]:
    """Return the counts of a table, and why it is stopped."""
    (found,) = [entry for entry in stats(servicer).tables if entry.table == table]
    return (
        found.bad_pushes,
        {bad.trainer: bad.pushes for bad in found.bad_pushes_of},
        found.stopped,
    )


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("table", ["reject", "fail"])
def test_a22_whole_message_is_refused_when_one_value_is_bad(
    servicer: Servicer, table: str, bad: float
) -> None:
    """No key of any table of the message changes, no row is made, and the bad one is named."""
    with pytest.raises(errors.NotFiniteError, match=f"push '{table}': value 1 of key 8"):
        push(servicer, {"zero": ([1], [1, 1]), table: ([7, 8], [1, 1, 1, bad])}, counter=0)

    assert [(t.rows, t.version) for t in stats(servicer).tables] == [(0, 0)] * 3
    assert bad_of(servicer, table)[:2] == (1, {TRAINER.hex(): 1})
    assert bad_of(servicer, "zero")[0] == 0


@pytest.mark.parametrize("bad", BAD)
def test_a22_bad_values_count_as_zero_when_the_table_mends(servicer: Servicer, bad: float) -> None:
    """The other values of the key, and all other keys, are applied; the push counts as bad once."""
    reply = push(servicer, {"zero": ([7, 8], [1, bad, 2, 3])}, counter=0)

    assert (reply.duplicate, list(reply.versions)) == (False, [1])
    assert weights(servicer, "zero", [7, 8]) == [-1, 0, -2, -3]
    assert bad_of(servicer, "zero") == (1, {TRAINER.hex(): 1}, "")


def test_later_pushes_are_refused_when_a_bad_one_stopped_the_table(servicer: Servicer) -> None:
    """The error names the trainer, its push, the table and the key; reads and other tables go on."""
    push(servicer, {"fail": ([7], [1, 1])}, counter=0)
    with pytest.raises(errors.NotFiniteError):
        push(servicer, {"fail": ([8], [1, float("nan")])}, counter=1)

    for counter in (2, 3):
        with pytest.raises(errors.TableStoppedError) as caught:
            push(servicer, {"fail": ([7], [1, 1])}, counter=counter)
        text = str(caught.value)
        assert f"push 1 of trainer {TRAINER.hex()} stopped this table" in text
        assert "push 'fail': value 1 of key 8 is nan" in text
        assert "pserver clear --table fail" in text

    push(servicer, {"reject": ([7], [1, 1])}, counter=4)
    assert weights(servicer, "fail", [7]) == [-1, -1]
    assert "trainer" in bad_of(servicer, "fail")[2]
    assert bad_of(servicer, "fail")[0] == 1


def test_refused_push_may_come_again_mended(servicer: Servicer) -> None:
    """A refused push was not applied, so its push_id is still free."""
    with pytest.raises(errors.NotFiniteError):
        push(servicer, {"reject": ([7], [float("nan"), 1])}, counter=0)

    assert not push(servicer, {"reject": ([7], [1, 1])}, counter=0).duplicate


@pytest.mark.parametrize("table", ON_NAN)
def test_assigned_values_are_refused_whatever_the_policy(servicer: Servicer, table: str) -> None:
    """What somebody writes by hand is never mended, and stops nothing."""
    with pytest.raises(errors.NotFiniteError, match=f"assign '{table}'"):
        push(servicer, {table: ([7], [float("nan"), 1])}, counter=0, method="Assign")

    assert bad_of(servicer, table) == (0, {}, "")


def test_late_trainers_are_counted_together_when_there_are_too_many(servicer: Servicer) -> None:
    """The number of names kept is bounded; no push goes uncounted."""
    for number in range(TRAINERS_MAX + 3):
        trainer = number.to_bytes(16, "big")
        message, (part,) = build_push(
            0, PushId(trainer, 0), [TableSize("zero", 1, 2, 0)], more=False
        )
        part.keys[:], part.values[:] = 1, float("nan")
        call(servicer, "Push", message)

    total, of, _ = bad_of(servicer, "zero")
    assert (total, len(of), of[OTHERS]) == (TRAINERS_MAX + 3, TRAINERS_MAX + 1, 3)
