"""What ``pserver.client.route`` promises: who gets which key, in how many messages."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.arrays import RowIds
from pserver.client import route
from pserver.client.route import Cargo, Router, cargoes, naming_all_last
from pserver.config import PART_BYTES_MAX
from pserver.placement import shard_of, shard_of_partition
from tests.reference import EDGE_KEYS

PART = 64
"""Bytes of a part in the tests that make parts small."""


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut into parts of ``PART`` bytes instead of megabytes."""
    monkeypatch.setattr(route, "PART_BYTES_MAX", PART)


def positions(*counts: int) -> list[RowIds]:
    """Return that many positions for each table, all different."""
    ends = np.cumsum(counts)
    return [np.arange(end - n, end, dtype=np.int64) for end, n in zip(ends, counts, strict=True)]


def unpack(parts: Sequence[Cargo], num_tables: int) -> list[list[int]]:
    """Return each table's positions in the order in which the messages carry them."""
    found: list[list[int]] = [[] for _ in range(num_tables)]
    for cargo in parts:
        for index, order in cargo.tables:
            found[index] += order.tolist()
    return found


@given(
    st.lists(st.integers(0, 2**64 - 1) | st.sampled_from(EDGE_KEYS), max_size=200),
    st.integers(1, 40) | st.sampled_from([1023, 1024]),
)
def test_putting_back_is_the_identity_whatever_the_shard_count(
    batch: list[int], num_shards: int
) -> None:
    """Each key goes to ``shard_of`` it, in the batch's order, and each position goes once."""
    keys = np.array(batch, np.uint64)

    orders = Router(shard_of_partition(num_shards), num_shards).split(keys)

    assert len(orders) == num_shards
    back = np.zeros_like(keys)
    for shard, order in enumerate(orders):
        assert np.all(shard_of(keys[order], num_shards) == shard)
        assert np.all(np.diff(order) > 0)
        back[order] = keys[order]
    assert np.array_equal(back, keys)
    assert sorted(np.concatenate(orders).tolist()) == list(range(keys.size))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, PART)), max_size=6))
def test_messages_carry_each_position_once_when_tables_are_packed(
    tables: list[tuple[int, int]],
) -> None:
    """Whatever the tables, no part is over the limit, none is empty, and order is kept."""
    orders = positions(*(count for count, _ in tables))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(route, "PART_BYTES_MAX", PART)
        parts = cargoes([(o, size) for o, (_, size) in zip(orders, tables, strict=True)])

    assert unpack(parts, len(tables)) == [order.tolist() for order in orders]
    for cargo in parts:
        assert 0 < sum(o.size * tables[index][1] for index, o in cargo.tables) <= PART
        assert all(order.size for _, order in cargo.tables)
    assert [cargo.is_last for cargo in parts] == [i == len(parts) - 1 for i in range(len(parts))]


@given(st.integers(0, 300), st.integers(1, PART))
def test_messages_are_as_few_as_possible_for_one_table(count: int, key_bytes: int) -> None:
    """One table takes as many messages as its keys need, and not one more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(route, "PART_BYTES_MAX", PART)
        parts = cargoes([(positions(count)[0], key_bytes)])

    assert len(parts) == math.ceil(count / (PART // key_bytes))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 16)), max_size=6))
def test_messages_are_nearly_full_when_tables_are_packed(tables: list[tuple[int, int]]) -> None:
    """Every message but the last has no room for the next key, so none could be saved."""
    orders = positions(*(count for count, _ in tables))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(route, "PART_BYTES_MAX", PART)
        parts = cargoes([(o, size) for o, (_, size) in zip(orders, tables, strict=True)])

    for cargo, following in itertools.pairwise(parts):
        used = sum(order.size * tables[index][1] for index, order in cargo.tables)
        assert used + tables[following.tables[0][0]][1] > PART


def test_tables_share_a_message_when_they_fit() -> None:
    """Many small tables travel in one message."""
    parts = cargoes([(order, 24) for order in positions(*[10] * 26)])

    assert len(parts) == 1
    assert [index for index, _ in parts[0].tables] == list(range(26))


def test_table_is_cut_exactly_at_the_limit() -> None:
    """As many keys as fill a part travel in one message, one key more in two."""
    count = PART_BYTES_MAX // 64

    assert len(cargoes([(positions(count)[0], 64)])) == 1
    assert [c.tables[0][1].size for c in cargoes([(positions(count + 1)[0], 64)])] == [count, 1]


def test_no_message_is_made_when_there_are_no_keys() -> None:
    """Tables without keys are in no message; no keys at all make none."""
    assert cargoes([]) == []
    assert cargoes([(order, 8) for order in positions(0, 0)]) == []
    (only,) = cargoes([(order, 8) for order in positions(0, 3, 0)])
    assert [index for index, _ in only.tables] == [1]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("counts", [(1, 1), (8, 1), (8, 8, 1), (3, 30, 0, 2), (30,), ()])
def test_last_message_names_every_table_when_a_push_is_cut(counts: tuple[int, ...]) -> None:
    """The last part names each table of the push, so each version rises once, and moves no key."""
    orders = positions(*counts)
    parts = cargoes([(order, 8) for order in orders])

    named = naming_all_last(parts)

    assert unpack(named, len(counts)) == [order.tolist() for order in orders]
    assert len(named) == len(parts)
    if named:
        assert {index for index, _ in named[-1].tables} == {i for i, n in enumerate(counts) if n}
