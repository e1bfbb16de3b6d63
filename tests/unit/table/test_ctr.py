"""Rows of ctr: peers' numbers, what each option changes, embedx that comes and goes, saves."""

import dataclasses
from itertools import product

import numpy as np
import pytest

from pserver.errors import ConfigError
from pserver.occurrences import Occurrences
from pserver.spec import TableSpec
from pserver.table.accessor import KINDS, make_accessor
from pserver.table.ctr import CtrSlab
from pserver.table.dump import blocks_of, columns, filter_state, put_filter_state, put_rows
from pserver.table.optimizer_options import Number
from pserver.table.registry import spelled_out
from pserver.table.sparse import SparseTable

SPEC = TableSpec(
    name="t",
    dim=3,
    optimizer="sgd:lr=0.5",
    accessor="ctr:embedx_threshold=2",
    initializer="uniform:low=-1,high=1",
    capacity_max=500,
)
ONE = np.array([7], np.uint64)


def make(**fields: object) -> SparseTable:
    return SparseTable(spelled_out(dataclasses.replace(SPEC, **fields)))  # type: ignore[arg-type]


def push(table: SparseTable, *, show: float = 1.0, click: float = 0.0, grad: float = 1.0) -> None:
    """Push one gradient of key 7."""
    said = Occurrences(shows=np.array([show], np.float32), clicks=np.array([click], np.float32))
    grads = np.full(table.spec.dim, grad, np.float32)
    table.check_push(ONE, grads, said)
    table.push(ONE, grads, said)
    table.version += 1


def pulled(table: SparseTable) -> list[float]:
    out = np.empty(table.spec.dim, np.float32)
    table.peek(ONE, out)
    return out.tolist()


def embedx_of(table: SparseTable) -> CtrSlab:
    assert isinstance(table.slab, CtrSlab)
    return table.slab


def test_the_score_is_paddles() -> None:
    """paddle-score, and the worked numbers of its documents with the code's sign."""
    assert make_accessor("ctr:nonclk_coeff=0.2,click_coeff=1").score(10.0, 6.0) == 6.8
    assert make_accessor("ctr").score(20.0, 2.0) == 3.8
    assert make_accessor("ctr").score(100.0, 0.0) == 10.0


@pytest.mark.parametrize("k", range(1, 11))
def test_a_push_onto_a_zero_row_is_paddles(k: float) -> None:
    """paddle-accessor-update: fields all k; wide by element AdaGrad of 1, embedx by sgd of 0.1."""
    table = make(
        dim=9,
        optimizer="adagrad:lr=0.1,initial=1,accumulate=after",
        embedx_optimizer="sgd:lr=0.1",
        accessor="ctr:embedx_threshold=-1,click_coeff=1,nonclk_coeff=0.2",
        initializer="zeros",
    )
    table.assign(ONE, np.zeros(9, np.float32))
    push(table, show=0.0, grad=0.0)  # makes the zero row's embedx
    slots = np.array([k], np.uint32)
    said = Occurrences(
        shows=np.array([k], np.float32), clicks=np.array([k], np.float32), slots=slots
    )

    table.push(ONE, np.full(9, k, np.float32), said)

    row = table.row(7)
    assert row is not None
    assert row.fields == {"show": k, "click": k, "delta_score": k, "unseen_days": 0, "slot": k}
    assert row.weights[0] == pytest.approx(-0.1 * k)
    assert row.weights[1:] == pytest.approx(-0.1 * k)
    assert row.state["wide.G"].tolist() == [k * k]


def test_embedx_begins_unstepped_and_is_free_when_its_key_is_erased() -> None:
    """The push that reaches the threshold makes it and does not step it; the next one does."""
    table = make()
    push(table, click=1.0)
    assert pulled(table)[1:] == [0.0, 0.0]
    assert embedx_of(table).num_taken == 0

    push(table, click=1.0)
    first = pulled(table)[1:]
    push(table, click=1.0)

    plain = make(accessor="plain")
    assert first == pulled(plain)[1:]  # the weights that a plain row would begin with
    assert pulled(table)[1:] == pytest.approx([w - 0.5 for w in first])
    assert embedx_of(table).num_embedx == 1
    table.erase(ONE)
    assert embedx_of(table).num_embedx == 0
    assert pulled(table)[1:] == [0.0, 0.0]
    table.check()
    push(table, show=0.0, click=3.0)
    assert pulled(table)[1:] == first
    assert embedx_of(table).num_taken == 1  # the freed one


WALK = {
    "embedx_threshold": ("2", "4"),
    "nonclk_coeff": ("0.1", "0.9"),
    "click_coeff": ("1", "3"),
    "wide_first": ("initializer", "zeros"),
}
"""Options that a push or pull reads; the others are for shrink and saves, which ask by name."""


@pytest.mark.parametrize("option", WALK)
def test_every_option_of_a_push_changes_the_result(option: str) -> None:
    """Two values give two tables."""
    seen = []
    for value in WALK[option]:
        options = {"embedx_threshold": "2", option: value}
        text = "ctr:" + ",".join(f"{name}={given}" for name, given in options.items())
        table = make(accessor=text)
        for _ in range(2):
            push(table, show=1.5, click=1.0)
        row = table.row(7)
        assert row is not None
        seen.append((pulled(table), row.fields, row.score, row.has_embedx))
    assert seen[0] != seen[1]


def test_every_option_is_spelled_out_and_read_back() -> None:
    """The text of an accessor names all options, with Paddle's defaults, and reads as itself."""
    for name, kinds in KINDS.items():
        full = make_accessor(name).text
        assert make_accessor(full).text == full
        assert all(f"{option}=" in full for option in kinds)
    numbers = make_accessor("ctr")
    expected = {
        "base_threshold": 1.5,
        "delta_threshold": 0.25,
        "delta_keep_days": 16,
        "show_click_decay_rate": 0.98,
        "delete_threshold": 0.8,
        "delete_after_unseen_days": 30,
    }
    assert {option: numbers.number(option) for option in expected} == expected
    for option, kind in KINDS["ctr"].items():
        other = kind.high if isinstance(kind, Number) else kind.words[1]
        assert make_accessor(f"ctr:{option}={other}").text != numbers.text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"accessor": "crt"}, "unknown accessor 'crt'; .*ctr"),
        ({"accessor": "ctr:embedx_treshold=3"}, "embedx_threshold"),
        ({"accessor": "plain", "embedx_optimizer": "sgd"}, "embedx_optimizer has no effect"),
        ({"dim": 1, "embedx_optimizer": "sgd"}, "embedx_optimizer has no effect"),
        ({"embedx_optimizer": "sdg"}, "embedx_optimizer: unknown rule 'sdg'; .*sgd"),
    ],
)
def test_what_cannot_work_is_refused_with_the_nearest_name(
    fields: dict[str, object], message: str
) -> None:
    """A rule that is misspelt, or that nothing would read."""
    with pytest.raises(ConfigError, match=message):
        make(**fields)


def test_a_row_of_one_weight_counts_and_has_no_embedx() -> None:
    """Dim 1 is a wide weight and its statistics, whatever the score."""
    table = make(dim=1)

    for _ in range(3):
        push(table, click=5.0)

    row = table.row(7)
    assert row is not None
    assert (row.fields["show"], row.fields["click"], row.has_embedx) == (3, 15, False)
    table.check()


@pytest.mark.parametrize(
    ("accessor", "admission", "row_dtype"),
    list(
        product(
            ("plain", "ctr:embedx_threshold=2"),
            ("always", "count:n=3", "count:n=3,filter=sketch,counters=1e6", "show_click:score=1.5"),
            ("float32", "bfloat16"),
        )
    ),
)
def test_a_table_goes_on_as_before_when_its_columns_are_put_into_another(
    accessor: str, admission: str, row_dtype: str
) -> None:
    """Rows, embedx and what admission counted: the state is whole, bit for bit."""
    fields = {"accessor": accessor, "admission": admission, "row_dtype": row_dtype}
    one, other = make(**fields), make(**fields)
    rng = np.random.default_rng(3)
    keys = np.arange(40, dtype=np.uint64) ** 7

    def step(table: SparseTable, seed: int) -> None:
        draw = np.random.default_rng(seed)
        some = draw.choice(keys, 25, replace=False)
        grads = draw.normal(size=75).astype(np.float32)
        clicks = draw.integers(0, 2, 25).astype(np.float32)
        table.push(some, grads, Occurrences(clicks=clicks))
        table.version += 1

    for seed in range(4):
        step(one, seed)
    one.erase(rng.choice(keys, 5))
    for partition in range(1024):
        there, row_ids = one.entries(partition)
        blocks = blocks_of(one)
        named = columns(blocks, [block.take(row_ids) for block in blocks])
        put_rows(other, there, {name: array.copy() for name, array in named.items()})
        put_filter_state(other, partition, filter_state(one, partition))
    other.version = one.version

    for seed in range(4, 8):
        step(one, seed)
        step(other, seed)

    other.check()
    assert one.num_rows == other.num_rows
    for key in keys.tolist():
        mine, theirs = one.row(key), other.row(key)
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert mine.weights.tobytes() == theirs.weights.tobytes()
            assert mine.fields == theirs.fields
            assert {k: v.tobytes() for k, v in mine.state.items()} == {
                k: v.tobytes() for k, v in theirs.state.items()
            }
