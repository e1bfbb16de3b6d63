"""Work that has to wait: begun again after progress, and told to ask again after a while."""

import asyncio
from collections.abc import Callable

import pytest

from pserver.errors import NotYetError
from pserver.server.waiting import NotYet, Progress, Waiting


async def run(work: Callable[[], str]) -> str:
    """Give work its turn at once."""
    return work()


def test_work_is_begun_again_after_progress() -> None:
    """Each bump lets it look again; it is done when it need not wait any more."""
    progress = Progress()
    seen: list[int] = []

    def work() -> str:
        seen.append(progress.count)
        if progress.count < 3:
            raise NotYet(progress.count, "two more")
        return "done"

    async def main() -> str:
        waiting = asyncio.ensure_future(Waiting(progress).run(run, work))
        while not waiting.done():
            await asyncio.sleep(0)
            progress.bump()
        return await waiting

    assert asyncio.run(main()) == "done"
    assert seen[0] == 0
    assert seen[-1] >= 3


def test_progress_between_the_look_and_the_wait_is_not_missed() -> None:
    """What was counted when the work looked is compared when it begins to wait."""
    progress = Progress()
    looks: list[int] = []

    def work() -> str:
        looks.append(progress.count)
        if len(looks) == 1:
            seen = progress.count
            progress.bump()  # before anybody waits
            raise NotYet(seen, "one")
        return "done"

    assert asyncio.run(Waiting(progress).run(run, work)) == "done"
    assert looks == [0, 1]


def test_the_sender_is_told_to_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without progress it is held for a while, then refused for now, with what it waits for."""
    monkeypatch.setattr("pserver.server.waiting.HOLD_S", 0.01)
    progress = Progress()

    def work() -> str:
        raise NotYet(progress.count, "round 3 is not applied yet")

    with pytest.raises(NotYetError, match="round 3 is not applied yet"):
        asyncio.run(Waiting(progress).run(run, work))
    assert not progress._waiters


def test_one_that_goes_away_waits_no_more() -> None:
    """A caller that is cancelled leaves nothing behind."""
    progress = Progress()

    def work() -> str:
        raise NotYet(progress.count, "for ever")

    async def main() -> None:
        waiting = asyncio.ensure_future(Waiting(progress).run(run, work))
        for _ in range(5):
            await asyncio.sleep(0)
        assert progress._waiters
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    assert not progress._waiters


def test_what_waits_goes_on_in_the_order_in_which_it_came() -> None:
    """Requests of one trainer that were held back together do not overtake each other."""
    progress = Progress()
    done: list[int] = []

    async def wait(number: int) -> None:
        assert await progress.after(0, until=asyncio.get_running_loop().time() + 30.0)
        done.append(number)

    async def main() -> None:
        waiting = []
        for number in range(50):
            waiting.append(asyncio.ensure_future(wait(number)))
            await asyncio.sleep(0)
        progress.bump()
        await asyncio.gather(*waiting)

    asyncio.run(main())
    assert done == list(range(50))
