"""The sum of a round: in the order of trainers, over one D, checked before any of it is applied."""

from collections.abc import Sequence

import numpy as np
import pytest

from pserver.errors import NotFiniteError, TableFullError
from pserver.server.geo import GeoMethods
from pserver.server.merge import Divisor, Merge, Part
from pserver.server.report import Tallies
from pserver.spec import DenseSpec, TableSpec
from pserver.table.registry import Registry
from pserver.wire import TablePush

NO_COUNTS = np.empty(0, np.uint32)


@pytest.fixture
def merge() -> Merge:
    """Tables t and u of dim 1, and a dense table d of 2 floats; weights lose the gradient."""
    registry = Registry()
    for name in "tu":
        registry.create(
            TableSpec(name=name, dim=1, optimizer="sgd:lr=1", initializer="zeros", capacity_max=4)
        )
    registry.create_dense(DenseSpec(name="d", length=2, optimizer="sgd:lr=1"), size=2)
    registry.get_dense("d").init(0, np.zeros(2, np.float32), trainer=b"0" * 16)
    return Merge(registry, Tallies(), GeoMethods(registry, check_incarnation=lambda _: None))


def rows(keys: Sequence[int], grads: Sequence[float], *, table: str = "t") -> TablePush:
    """Return a trainer's gradients of a sparse table."""
    return TablePush(table, np.array(keys, np.uint64), np.array(grads, np.float32), NO_COUNTS)


def dense(grads: Sequence[float]) -> TablePush:
    """Return a trainer's gradients of the dense table."""
    return TablePush("d", np.empty(0, np.uint64), np.array(grads, np.float32), NO_COUNTS, 1)


def weights(merge: Merge, keys: Sequence[int], *, table: str = "t") -> list[float]:
    """Return what some keys have."""
    out = np.empty(len(keys), np.float32)
    merge.registry.get(table).peek(np.array(keys, np.uint64), out)
    return [float(weight) for weight in out]


def test_sums_are_taken_in_the_order_of_the_parts(merge: Merge) -> None:
    """1e8 - 1e8 + 3 is 3, and 3 over 3 is 1; in another order the 3 would be rounded off."""
    merge.apply(
        [Part(1, [rows([7], [value])]) for value in (1e8, -1e8, 3.0)],
        divisor="contributors",
        registered=3,
    )

    assert weights(merge, [7]) == [-1.0]


def test_keys_of_several_trainers_are_one_step_each(merge: Merge) -> None:
    """Keys 1, 2 and 2, 3: key 2 has the sum; all of it is over D, in one version."""
    merge.apply(
        [Part(1, [rows([1, 2], [2.0, 4.0])]), Part(1, [rows([2, 3], [6.0, 8.0])])],
        divisor="contributors",
        registered=2,
    )

    assert weights(merge, [1, 2, 3]) == [-1.0, -5.0, -4.0]
    assert merge.registry.get("t").version == 1


def test_registered_counts_trainers_without_samples(merge: Merge) -> None:
    """8 over 4 trainers, two of which had nothing, is 2, for the dense table too."""
    parts = [Part(5, [rows([7], [8.0]), dense([4.0, 8.0])]), Part(1, [dense([0.0, 0.0])])]
    merge.apply([*parts, Part(0, []), Part(0, [])], divisor="registered", registered=4)

    assert weights(merge, [7]) == [-2.0]
    assert merge.registry.get_dense("d").pull(0).tolist() == [-1.0, -2.0]


def test_versions_rise_when_nobody_had_samples(merge: Merge) -> None:
    """D is 0: no table is stepped, and the round counts all the same."""
    merge.apply([Part(0, [rows([7], [8.0]), dense([1.0, 1.0])])], divisor="samples", registered=1)

    assert weights(merge, [7]) == [0.0]
    assert merge.registry.get("t").version == 1
    assert merge.registry.get_dense("d").version == 1
    assert merge.registry.get_dense("d").pull(0).tolist() == [0.0, 0.0]


def test_one_part_is_not_rounded(merge: Merge) -> None:
    """Of one trainer with 3 samples, 3 * g / 3 is g to the bit."""
    grad = float(np.float32(0.1))
    merge.apply([Part(3, [rows([7], [grad])])], divisor="samples", registered=1)

    assert weights(merge, [7]) == [-grad]


@pytest.mark.parametrize("divisor", ["contributors", "samples"])
def test_one_part_in_several_messages_is_not_rounded(merge: Merge, divisor: Divisor) -> None:
    """The sum of its messages as it is: times 3 samples and over 3 would be off by a bit."""
    one, other = np.float32(1.0), np.float32(1.7747005224227905)
    tables = [rows([7], [float(one)]), rows([7], [float(other)])]

    merge.apply([Part(0, []), Part(3, tables)], divisor=divisor, registered=2)

    assert weights(merge, [7]) == [-float(one + other)]


def test_nothing_is_applied_when_the_rows_of_all_do_not_fit(merge: Merge) -> None:
    """Each part fits the 4 rows, together they do not: no table of the round changes."""
    with pytest.raises(TableFullError, match="6 new rows needed, room for 4"):
        merge.apply(
            [
                Part(1, [rows([9], [1.0], table="u"), rows([1, 2, 3], [1.0] * 3)]),
                Part(1, [rows([4, 5, 6], [1.0] * 3)]),
            ],
            divisor="contributors",
            registered=2,
        )

    assert weights(merge, [9], table="u") == [0.0]
    assert [merge.registry.get(name).version for name in "tu"] == [0, 0]


def test_occurrences_are_summed_and_not_divided(merge: Merge) -> None:
    """A key that 2 trainers saw 3 and 4 times, clicked 1 and 0 times, occurred 7 times, clicked 1."""
    spec = TableSpec(name="c", dim=2, optimizer="sgd:lr=1", initializer="zeros", accessor="ctr")
    table = merge.registry.create(spec)
    parts = []
    for count, clicks in ((3, [1.0]), (4, [])):
        push = TablePush(
            "c",
            np.array([7], np.uint64),
            np.array([2.0, 2.0], np.float32),
            np.array([count], np.uint32),
            clicks=np.array(clicks, np.float32),
        )
        parts.append(Part(1, [push]))
    merge.apply(parts, divisor="contributors", registered=2)

    row = table.row(7)
    assert row is not None
    assert (row.fields["show"], row.fields["click"]) == (7.0, 1.0)
    assert row.weights[0] == -2.0
    assert merge.tallies.occurrences_pushed["c"] == 7


@pytest.mark.parametrize("optimizer", ["sgd:lr=1,show_scale=on", "adagrad:lr=1,show_scale=on"])
def test_a_round_of_many_is_the_push_of_one_with_all_samples(merge: Merge, optimizer: str) -> None:
    """Means of 4 samples each, 6 of 3 shows and 2 of 1: (6 + 2) / 2 / 4 = 1, as one mean of 8 gives."""
    for name, pushes in (
        ("many", [(6.0, 3), (2.0, 1)]),
        ("one", [(4.0, 4)]),
    ):
        merge.registry.create(
            TableSpec(name=name, dim=1, optimizer=optimizer, initializer="zeros", capacity_max=4)
        )
        parts = [
            TablePush(
                name,
                np.array([7], np.uint64),
                np.array([grad], np.float32),
                np.array([shows], np.uint32),
            )
            for grad, shows in pushes
        ]
        merge.apply(
            [Part(4, [part]) for part in parts], divisor="contributors", registered=len(parts)
        )

    assert weights(merge, [7], table="many") == weights(merge, [7], table="one") == [-1.0]


def test_a_sum_that_no_row_can_hold_is_refused_before_anything_is_applied(merge: Merge) -> None:
    """Two gradients of a dense table are finite, their sum is not: the sparse one stays as it is."""
    parts = [Part(1, [rows([7], [1.0]), dense([3e38, 0.0])]) for _ in range(2)]

    with pytest.raises(NotFiniteError):
        merge.apply(parts, divisor="contributors", registered=2)

    assert weights(merge, [7]) == [0.0]
    assert merge.registry.get_dense("d").pull(0).tolist() == [0.0, 0.0]


def test_a_sum_that_no_row_can_hold_is_0_where_the_table_says_so(merge: Merge) -> None:
    """With ``on_nan`` zero the sum of 3e38 and 3e38 is taken as 0, as in a push."""
    spec = TableSpec(
        name="z", dim=1, optimizer="sgd:lr=1", initializer="zeros", on_nan="zero", capacity_max=4
    )
    merge.registry.create(spec)
    parts = [Part(1, [rows([7, 8], [3e38, 2.0], table="z")]) for _ in range(2)]

    merge.apply(parts, divisor="contributors", registered=2)

    assert weights(merge, [7, 8], table="z") == [0.0, -2.0]
