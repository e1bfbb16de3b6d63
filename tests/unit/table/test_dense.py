"""What ``table.dense`` promises: a slice steps as one vector would, whole or not at all."""

import numpy as np
import pytest

from pserver import errors
from pserver.spec import DenseSpec
from pserver.table import dense as room
from pserver.table.dense import DenseTable
from pserver.table.optimizer import RULES, make_optimizer
from tests.reference_optim import Rule

ONE, OTHER = b"1" * 16, b"2" * 16
NAN, INF = float("nan"), float("inf")
COUPLED = ["adagrad:state=row", "shared_adam", "group_adagrad", "lamb"]
RULES_TAKEN = sorted(set(RULES) - {"shared_adam", "group_adagrad", "lamb"})


def floats(*values: float) -> np.ndarray:
    array = np.array(values, np.float32)
    array.flags.writeable = False
    return array


def init(
    table: DenseTable,
    part: int,
    values: np.ndarray,
    *,
    trainer: bytes = ONE,
    force: bool = False,
    is_last: bool = True,
) -> None:
    table.check_init(part, values, trainer=trainer, force=force, is_last=is_last)
    table.init(part, values, trainer=trainer)


def push(table: DenseTable, part: int, grads: np.ndarray, *, is_last: bool = True) -> None:
    table.check_push(part, grads)
    table.push(part, grads)
    table.version += is_last


def make(size: int, optimizer: str = "sgd:lr=1") -> DenseTable:
    return DenseTable(DenseSpec(name="d", length=size, optimizer=optimizer), size=size)


def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut slices into parts of four floats."""

    def parts(size: int) -> list[tuple[int, int]]:
        return [(begin, min(begin + 4, size)) for begin in range(0, max(size, 1), 4)]

    monkeypatch.setattr(room, "parts_of_slice", parts)


@pytest.mark.parametrize("optimizer", [*RULES_TAKEN, "adam:step=table,schedule=step,steps=3"])
def test_parts_step_as_the_whole_when_pushed(
    optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten floats in three parts are to the bit the ten floats of one row, and near the formula."""
    rng = np.random.default_rng(0)
    first, *grads = rng.normal(size=(9, 10)).astype(np.float32)
    whole = make(10, optimizer)
    init(whole, 0, first)
    small_parts(monkeypatch)
    cut = make(10, optimizer)
    for part in range(3):
        init(cut, part, first[4 * part : 4 * part + 4], is_last=part == 2)

    for grad in grads:
        push(whole, 0, grad)
        for part in range(3):
            push(cut, part, grad[4 * part : 4 * part + 4], is_last=part == 2)

    assert np.array_equal(np.concatenate([cut.pull(part) for part in range(3)]), whole.pull(0))
    assert (cut.version, whole.version) == (8, 8)
    if "schedule" not in optimizer:
        rule = Rule(optimizer, 10)
        row = np.concatenate([first, rule.first_state]).astype(np.float64)
        for version, grad in enumerate(grads):
            rule.step(row, grad, version=version)
        np.testing.assert_allclose(whole.pull(0), row[:10], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("optimizer", COUPLED)
def test_a_rule_is_refused_when_its_weights_step_together(optimizer: str) -> None:
    """The error says which rule and why; the same rules serve sparse tables."""
    with pytest.raises(errors.ConfigError, match=r"of the row|over the row") as caught:
        room.spelled_out_dense(DenseSpec(name="d", length=3, optimizer=optimizer))

    assert "would depend on the number of shards" in str(caught.value)
    assert make_optimizer(optimizer, dim=3).dim == 3


def test_values_are_refused_when_they_are_there_already() -> None:
    """A second init tells epoch and version; a forced one begins anew, state included."""
    table = make(2, "momentum:lr=1,momentum=1")
    with pytest.raises(errors.DenseInitError, match="push 'd': it has no values yet"):
        table.check_push(0, floats(1, 1))
    with pytest.raises(errors.DenseInitError, match="pull 'd': it has no values yet"):
        table.pull(0)
    init(table, 0, floats(1, 2))
    push(table, 0, floats(1, 1))

    with pytest.raises(errors.DenseInitError, match=r"values already \(epoch 1, version 1\)"):
        init(table, 0, floats(5, 6))
    assert table.pull(0).tolist() == [0, 1]

    change = table.change
    init(table, 0, floats(5, 6), force=True)
    assert (table.version, table.epoch) == (0, 2)
    assert table.change > change
    push(table, 0, floats(1, 1))
    assert table.pull(0).tolist() == [4, 5]


def test_values_of_two_trainers_never_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of one trainer wait for its others; another's are refused, or take over by force."""
    small_parts(monkeypatch)
    table = make(5)
    init(table, 0, floats(1, 1, 1, 1), is_last=False)
    with pytest.raises(errors.DenseInitError, match="trainer 31313131 is writing"):
        init(table, 1, floats(2), trainer=OTHER)
    assert table.epoch == 0

    init(table, 0, floats(2, 2, 2, 2), trainer=OTHER, force=True, is_last=False)
    with pytest.raises(errors.DenseInitError, match="is writing its first values"):
        init(table, 1, floats(1))
    with pytest.raises(errors.DenseInitError, match="1 of 2 parts are there"):
        init(table, 1, floats(1), force=True)
    init(table, 1, floats(2), trainer=OTHER, force=True)

    assert [table.pull(part).tolist() for part in (0, 1)] == [[2, 2, 2, 2], [2]]


@pytest.mark.parametrize("bad", [NAN, INF, -INF, 2e15])
def test_a_block_is_refused_when_it_would_spoil_the_table(bad: float) -> None:
    """No weight moves for what is not finite or too large, nor for a wrong length or part."""
    table = make(2)
    with pytest.raises(errors.NotFiniteError, match="init 'd': value 1 of part 0"):
        init(table, 0, floats(1, bad))
    init(table, 0, floats(1, 2))

    with pytest.raises(errors.NotFiniteError, match="push 'd': value 0 of part 0"):
        push(table, 0, floats(bad, 1))
    with pytest.raises(errors.ShapeError, match="part 0 has 2 float32, got 3"):
        push(table, 0, floats(1, 2, 3))
    with pytest.raises(errors.ShapeError, match="has 1 parts, there is no part 1"):
        push(table, 1, floats(1, 2))
    with pytest.raises(errors.ShapeError, match="no part 7"):
        table.pull(7)
    assert table.pull(0).tolist() == [1, 2]
    assert (table.version, table.change) == (0, 1)


def test_an_empty_slice_counts_pushes_too() -> None:
    """A shard without floats of the vector takes values and pushes as the others do."""
    table = make(0, "adam")
    assert table.num_bytes == 0
    init(table, 0, floats())
    push(table, 0, floats())

    assert (table.version, table.epoch, table.pull(0).size) == (1, 1, 0)


def test_sum_and_summary_are_what_their_formulas_say() -> None:
    """What is pushed to them are addends; summary forgets a share of what was."""
    total, fading = make(2, "sum"), make(2, "summary:decay=0.5")
    for table in (total, fading):
        init(table, 0, floats(1, 2))
        push(table, 0, floats(10, 20))

    assert total.pull(0).tolist() == [11, 22]
    assert fading.pull(0).tolist() == [10.5, 21]
