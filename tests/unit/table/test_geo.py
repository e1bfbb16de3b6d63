"""A change log against a list of all that was ever written: what each reader is told."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.table import geo
from pserver.table.geo import ChangeLog

CAPACITY = 16
WRITERS = [b"trainer-a-------", b"trainer-b-------", b"other-----------"]

writes_strategy = st.lists(
    st.tuples(
        st.sampled_from(WRITERS), st.lists(st.sampled_from([0, 1, 5, 2**64 - 1]), max_size=9)
    ),
    max_size=8,
)


def noted(
    writes: list[tuple[bytes, list[int]]], capacity: int = CAPACITY
) -> tuple[ChangeLog, list[tuple[int, bytes]]]:
    """Return a log of writes, and all its entries in a list."""
    log = ChangeLog(table="t", capacity=capacity)
    for writer, keys in writes:
        log.note(np.array(keys, np.uint64), writer)
    return log, [(key, writer) for writer, keys in writes for key in keys]


@given(writes_strategy, st.integers(0, 80), st.sampled_from(WRITERS))
def test_a_reader_is_told_what_others_wrote_since_its_mark(
    writes: list[tuple[bytes, list[int]]], since: int, reader: bytes
) -> None:
    """The keys are those of others behind the mark; a mark that is not remembered means all."""
    log, entries = noted(writes)

    changed = log.changed(since, reader)

    is_known = max(1, log.position - CAPACITY) <= since <= log.position
    others = (
        {key for key, writer in entries[since - 1 :] if writer != reader} if is_known else set()
    )
    assert changed.is_all == (not is_known)
    assert sorted(changed.keys.tolist()) == sorted(others)
    assert changed.position == log.position == 1 + len(entries)
    assert not changed.more


@given(writes_strategy)
def test_asking_again_gives_the_same_answer(writes: list[tuple[bytes, list[int]]]) -> None:
    """An answer that was lost is there again: reading changes nothing."""
    log, _ = noted(writes)

    first, again = (log.changed(1, WRITERS[0]) for _ in range(2))

    assert first.keys.tolist() == again.keys.tolist()
    assert (first.position, first.is_all) == (again.position, again.is_all)


def test_one_write_larger_than_the_log_leaves_its_last_keys() -> None:
    """A write of more keys than are remembered fills the log with its end."""
    log, entries = noted([(WRITERS[0], list(range(5))), (WRITERS[1], list(range(100, 140)))])

    changed = log.changed(log.position - CAPACITY, WRITERS[0])

    assert changed.keys.tolist() == [key for key, _ in entries[-CAPACITY:]]
    assert log.changed(log.position - CAPACITY - 1, WRITERS[0]).is_all


def test_a_long_answer_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part goes on where the one before ended, and the last one says that it is."""
    monkeypatch.setattr(geo, "REPLY_KEYS_MAX", 3)
    log, _ = noted([(WRITERS[0], [1, 2]), (WRITERS[1], [3]), (WRITERS[0], [2, 4])])

    parts = [log.changed(1, WRITERS[2])]
    while parts[-1].more:
        parts.append(log.changed(parts[-1].position, WRITERS[2]))

    assert [part.keys.tolist() for part in parts] == [[1, 2, 3], [2, 4]]
    assert [part.position for part in parts] == [4, 6]
