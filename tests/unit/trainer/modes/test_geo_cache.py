"""What a trainer's cache does with rows that are on their way while a round reads others."""

from collections.abc import Iterator

import numpy as np
import pytest

import pserver
from tests.clients import clients
from trainer.modes.geo_cache import GeoCache

ONE = np.array([1], np.uint64)
SPEC = pserver.TableSpec(name="t", dim=1, optimizer="sgd:lr=1", initializer="zeros")


class Both:
    """A cache, and another trainer's client."""

    def __init__(self, mine: pserver.Client, other: pserver.Client) -> None:
        """Make the table; from here on the servers note what the other one changes."""
        self.client = mine
        self.cache = GeoCache(mine, rows_max=4, scale=lambda: 1.0)
        self.cache.create(mine.create_table(SPEC))
        self.marks = mine.geo.changed("t", None).marks
        self._other = other

    def other_adds(self, value: float) -> None:
        """Let the other trainer change key 1."""
        self._other.geo.push({"t": (ONE, np.array([value], np.float32))}, {}).deliver()

    def changed(self) -> list[int]:
        """Ask what the other one changed, and return which of it the cache wants to read again."""
        changed = self.client.geo.changed("t", self.marks)
        self.marks = changed.marks
        return [int(key) for key in self.cache.choose("t", changed)]

    def row(self) -> float:
        """Return key 1 as it is here."""
        return float(self.cache.start_pull({"t": ONE}).result()[0].item())


@pytest.fixture
def both() -> Iterator[Both]:
    """Return a cache, and another trainer's client."""
    with clients(2) as (mine, other):
        yield Both(mine, other)


def test_a_row_that_was_on_its_way_when_a_round_chose_is_read_by_the_next(both: Both) -> None:
    """It was read before the other's change and came after the change was passed over."""
    pull = both.cache.start_pull({"t": ONE})
    pull.weights()  # it has come, and has no place yet
    both.other_adds(5.0)
    chosen = both.changed()
    pull.result()

    assert chosen == []
    assert both.cache.take_stale()["t"].tolist() == [1]
    assert both.cache.take_stale()["t"].tolist() == []


def test_a_row_that_came_after_a_round_chose_keeps_its_newer_value(both: Both) -> None:
    """What the round read of it is older than what it came with."""
    assert both.row() == 0.0
    both.other_adds(1.0)
    assert both.changed() == [1]
    read_by_round = both.client.peek("t", ONE)
    both.cache.tables["t"].drop(ONE)  # it leaves, and comes again with a newer value
    both.other_adds(2.0)
    assert both.row() == 3.0

    both.cache.settle("t", ONE, read_by_round)

    assert both.row() == 3.0


def test_a_round_reads_what_is_here_of_what_others_changed(both: Both) -> None:
    """Keys without a row here are not read: they are fetched when they are wanted."""
    both.other_adds(1.0)
    assert both.changed() == []
    assert both.row() == 1.0
    both.other_adds(1.0)
    assert both.changed() == [1]


def test_a_log_that_does_not_reach_back_has_every_row_read(both: Both) -> None:
    """The answer "all" names each row that is here."""
    assert both.row() == 0.0
    both.marks = tuple((incarnation, 10**6) for incarnation, _ in both.marks)

    assert both.changed() == [1]
