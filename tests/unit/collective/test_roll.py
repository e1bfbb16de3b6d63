"""Roll calls: who went away is named by all, be they waiting for another rank or computing."""

import threading

import torch

from collective import Group, MissingRanksError, ring_all_reduce
from tests.ranks import LIMIT_S, run_ranks


def test_h6_all_name_the_rank_that_went_away_and_nobody_else():
    """Rank 3 goes. 2 waits for it, 1 for 2, 0 computes and comes later: they name 3, long before the limit.

    The group is of no more use: what is asked of it then fails at once, with the same name.
    """
    others_failed = threading.Semaphore(0)

    def work(group: Group) -> list[MissingRanksError]:
        if group.rank == 0:
            for _ in range(2):
                assert others_failed.acquire(timeout=LIMIT_S)
        if group.rank == 3:
            return []
        tensor, errors = torch.zeros(1), []

        def wait_for_the_next() -> None:
            group.wait(group.receive(tensor, group.rank + 1))

        for what in ("first", "second"):
            try:
                if group.rank == 0:
                    ring_all_reduce(tensor, group, what=what)
                else:
                    group.run(what, wait_for_the_next)
            except MissingRanksError as error:
                errors.append(error)
        others_failed.release()
        return errors

    outcomes = run_ranks(4, work, timeout_s=10 * LIMIT_S)

    for outcome in outcomes[:3]:
        assert isinstance(outcome, list), outcome
        first, second = outcome
        assert (first.missing, second.missing) == ((3,), (3,))
        assert "first in group 'world'" in str(first)
        assert "rank 3 of the run went away" in str(first)
        assert "second: the group is of no more use" in str(second)
