"""What ``pserver.client.leases`` promises: ranges for a trainer, over a cluster in this process."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import pserver
from pserver.embedded import Cluster

WAIT_S = 20.0


@pytest.fixture
def places() -> Iterator[list[pserver.Group]]:
    """Return the places of two trainers."""
    with Cluster(2) as cluster, cluster.connect() as one, cluster.connect() as other:
        settings = [pserver.GroupSettings(trainer_id=number, trainers=2) for number in (0, 1)]
        yield [client.join(s) for client, s in zip((one, other), settings, strict=True)]


def all_ranges(leases: pserver.Leases, epoch: int) -> list[pserver.RowRange]:
    """Return the ranges of an epoch that one trainer gets, each reported at once."""
    found = []
    while not isinstance(answer := leases.next_range(epoch), str):
        assert leases.report(epoch, answer.number)
        found.append(answer)
    assert answer == "over"
    return found


@pytest.mark.parametrize(("rows", "range_rows"), [(10, 3), (1, 1), (9, 3), (100, 100)])
def test_ranges_of_all_trainers_are_the_rows(
    places: list[pserver.Group], rows: int, range_rows: int
) -> None:
    """Two trainers at once get every row of two epochs exactly once."""
    leases = [place.leases(rows=rows, range_rows=range_rows) for place in places]

    with ThreadPoolExecutor(2) as pool:
        for epoch in (0, 1):
            parts = list(pool.map(lambda lease, e=epoch: all_ranges(lease, e), leases))
            covered = sorted(row for part in parts for r in part for row in range(r.begin, r.end))
            assert covered == list(range(rows))


def test_question_waits_until_the_others_are_done(places: list[pserver.Group]) -> None:
    """With its last range elsewhere an epoch is not over; the question is answered when it is."""
    one, other = (place.leases(rows=2, range_rows=2) for place in places)
    held = one.next_range(0)
    assert held == pserver.RowRange(0, 0, 2)
    assert other.next_range(0, may_wait=False) == "wait"

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(other.next_range, 0)
        assert one.report(0, 0)
        assert answer.result(WAIT_S) == "over"


def test_range_of_a_trainer_that_goes_is_given_to_one_that_waits(
    places: list[pserver.Group],
) -> None:
    """Whoever waits for the others gets the range that one of them leaves behind."""
    one, other = (place.leases(rows=2, range_rows=2) for place in places)
    assert one.next_range(0) == pserver.RowRange(0, 0, 2)

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(other.next_range, 0)
        places[0].leave()
        assert answer.result(WAIT_S) == pserver.RowRange(0, 0, 2)


def test_trainers_that_disagree_are_refused(places: list[pserver.Group]) -> None:
    """Other rows or ranges than the group's are an error that names both."""
    places[0].leases(rows=10, range_rows=5).next_range(0)

    with pytest.raises(pserver.GroupError, match="there are 10 in ranges of 5, and trainer 1"):
        places[1].leases(rows=10, range_rows=2).next_range(0)
