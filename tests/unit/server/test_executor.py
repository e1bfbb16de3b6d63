"""What ``pserver.server.executor`` promises: one at a time, in order, bounded, closed in peace."""

import asyncio
import contextlib
import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from pserver.errors import OverloadedError, UnavailableError
from pserver.server.executor import Executor

WAIT_S = 20.0


@dataclass
class Gate:
    """Work that says when it began, and does not end before it may."""

    began: threading.Event = field(default_factory=threading.Event)
    free: threading.Event = field(default_factory=threading.Event)

    def __call__(self) -> str:
        """Be the work."""
        self.began.set()
        assert self.free.wait(WAIT_S)
        return "done"


@pytest.fixture
def executor() -> Iterator[Executor]:
    """Return an executor with room for three."""
    executor = Executor(name="shard-test", queue_max=3)
    yield executor
    executor.close()


async def held(executor: Executor, gate: Gate) -> "asyncio.Task[str]":
    """Return the task of work that is being done now, until the gate is free."""
    task = asyncio.create_task(executor.run(gate))
    assert await asyncio.to_thread(gate.began.wait, WAIT_S)
    return task


async def start(executor: Executor, work: list[int], number: int) -> "asyncio.Task[None]":
    """Return the task of work that is queued: it notes its number."""
    task = asyncio.create_task(executor.run(lambda: work.append(number)))
    await asyncio.sleep(0)  # the task runs up to its wait
    return task


def test_work_runs_in_the_order_of_arrival(executor: Executor) -> None:
    """Pieces are done one after the other, in order, in one thread that is not the loop's."""
    done: list[tuple[int, str]] = []

    def note_thread(number: int) -> None:
        done.append((number, threading.current_thread().name))

    async def main() -> None:
        gate = Gate()
        await held(executor, gate)
        tasks = []
        for i in range(3):
            note = functools.partial(note_thread, i)
            tasks.append(asyncio.create_task(executor.run(note)))
            await asyncio.sleep(0)
        gate.free.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())

    assert done == [(i, "shard-test") for i in range(3)]


def test_outcome_is_handed_back(executor: Executor) -> None:
    """What work returns is returned, and what it raises is raised, where it is awaited."""

    def fail() -> None:
        raise KeyError("mine")

    assert asyncio.run(executor.run(lambda: 6 * 7)) == 42
    with pytest.raises(KeyError, match="mine"):
        asyncio.run(executor.run(fail))
    assert asyncio.run(executor.run(lambda: "goes on")) == "goes on"


def test_an_iteration_that_ends_in_work_is_an_error_and_no_hang(executor: Executor) -> None:
    """A future takes no StopIteration: whoever awaits the work, long or short, hears of it all the same."""

    async def both() -> None:
        for run in (executor.run, executor.run_short):
            with pytest.raises(RuntimeError, match="iteration that it had not begun"):
                await asyncio.wait_for(run(lambda: next(iter(()))), WAIT_S)

    asyncio.run(both())


def test_work_is_refused_when_the_queue_is_full(executor: Executor) -> None:
    """One piece over ``queue_max`` is refused with what to do; nothing that waits is lost."""
    done: list[int] = []

    async def main() -> None:
        gate = Gate()
        first = await held(executor, gate)
        waiting = [await start(executor, done, i) for i in range(3)]
        assert executor.queued == 3

        with pytest.raises(OverloadedError) as caught:
            await executor.run(lambda: done.append(99))

        assert "3 requests wait for this shard's owner thread" in str(caught.value)
        assert "--queue-max" in str(caught.value)
        gate.free.set()
        assert await first == "done"
        await asyncio.gather(*waiting)
        assert executor.queued == 0

    asyncio.run(main())

    assert done == [0, 1, 2]


def test_work_is_not_begun_when_its_caller_went_away(executor: Executor) -> None:
    """A piece whose caller was cancelled before its turn is skipped; the others are done."""
    done: list[int] = []

    async def main() -> None:
        gate = Gate()
        await held(executor, gate)
        tasks = [await start(executor, done, i) for i in range(3)]
        tasks[1].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await tasks[1]
        gate.free.set()
        await asyncio.gather(tasks[0], tasks[2])

    asyncio.run(main())

    assert done == [0, 2]


def test_work_ends_when_its_caller_goes_away_in_the_middle(executor: Executor) -> None:
    """A piece that has begun is finished whole, though nobody waits for it any more."""
    gate = Gate()

    async def main() -> None:
        task = await held(executor, gate)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        gate.free.set()
        assert await executor.run(lambda: "next") == "next"

    asyncio.run(main())


def test_close_finishes_what_waits() -> None:
    """Closing waits until all that was accepted is done, and ends the thread."""
    executor = Executor(name="shard-closing", queue_max=4)
    done: list[int] = []

    async def main() -> None:
        gate = Gate()
        first = await held(executor, gate)
        tasks = [await start(executor, done, i) for i in range(3)]
        short = asyncio.create_task(executor.run_short(lambda: done.append(3)))
        await asyncio.sleep(0)
        gate.free.set()
        executor.close()
        assert done == [0, 1, 2, 3]
        assert await first == "done"
        await asyncio.gather(*tasks, short)

    asyncio.run(main())

    assert "shard-closing" not in {thread.name for thread in threading.enumerate()}


def test_work_is_refused_when_the_executor_is_closed() -> None:
    """What comes after ``close`` is refused as unavailable; closing twice is fine."""
    executor = Executor(name="shard-closed", queue_max=3)
    executor.close()
    executor.close()

    with pytest.raises(UnavailableError, match="the shard is closed"):
        asyncio.run(executor.run(lambda: None))


def test_thread_goes_on_when_a_loop_ended() -> None:
    """Work whose event loop is gone when it is done harms nobody."""
    executor = Executor(name="shard-lone", queue_max=3)
    gate = Gate()

    async def abandon() -> None:
        await held(executor, gate)

    asyncio.run(abandon())  # cancels the task and closes the loop
    gate.free.set()

    assert asyncio.run(executor.run(lambda: "next")) == "next"
    executor.close()


def test_short_work_is_done_by_the_loop(executor: Executor) -> None:
    """Short pieces run in the loop's thread, in order; results and errors are handed back."""

    def fail() -> None:
        raise KeyError("mine")

    async def main() -> None:
        names = [executor.run_short(lambda: threading.current_thread().name) for _ in range(3)]
        assert await asyncio.gather(*names) == [threading.current_thread().name] * 3
        with pytest.raises(KeyError, match="mine"):
            await executor.run_short(fail)

    asyncio.run(main())


def test_short_work_waits_for_long_work_before_it(executor: Executor) -> None:
    """While the thread works the loop begins nothing, so two pieces never run at a time."""
    done: list[tuple[int, str]] = []

    def note(number: int) -> None:
        done.append((number, threading.current_thread().name))

    async def main() -> None:
        gate = Gate()
        first = await held(executor, gate)
        runs = (executor.run_short, executor.run, executor.run_short)
        tasks = [asyncio.create_task(run(functools.partial(note, i))) for i, run in enumerate(runs)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert (done, executor.queued) == ([], 3)
        gate.free.set()
        await asyncio.gather(first, *tasks)

    asyncio.run(main())

    here = threading.current_thread().name
    assert done == [(0, here), (1, "shard-test"), (2, here)]


def test_loop_looks_at_other_things_between_short_pieces(executor: Executor) -> None:
    """A piece is answered before the next one begins; what comes meanwhile is bounded as ever."""
    seen: list[str] = []

    async def ask(name: str) -> None:
        await executor.run_short(lambda: seen.append(f"do {name}"))
        seen.append(f"answer {name}")

    async def main() -> None:
        tasks = [asyncio.create_task(ask(name)) for name in "abc"]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await executor.run_short(lambda: None)
        await asyncio.gather(*tasks)

    asyncio.run(main())

    assert seen == ["do a", "answer a", "do b", "answer b", "do c", "answer c"]


def test_short_work_goes_on_when_a_loop_ended(executor: Executor) -> None:
    """A loop that ended before the turn it had arranged does not hold up the next one."""

    async def abandon() -> None:
        executor._put(lambda: None, is_short=True)

    asyncio.run(abandon())

    assert asyncio.run(executor.run_short(lambda: "next")) == "next"


def counting(done: list[str], steps: int) -> Iterator[None]:
    """Return a walk that notes its slices."""
    for step in range(steps):
        done.append(f"slice {step}")
        yield


def test_a_request_waits_for_one_slice_at_most(executor: Executor) -> None:
    """Requests and slices take turns while requests wait; then the slices follow one another."""
    done: list[str] = []

    async def run() -> None:
        gate = Gate()
        first = await held(executor, gate)
        begin = asyncio.create_task(executor.run(lambda: executor.begin(counting(done, 4))))
        await asyncio.sleep(0)
        second = asyncio.create_task(executor.run(lambda: done.append("request")))
        await asyncio.sleep(0)
        gate.free.set()
        await asyncio.gather(first, begin, second)

    asyncio.run(run())
    executor.close()

    assert done == ["slice 0", "request", *(f"slice {step}" for step in range(1, 4))]


def test_walks_take_turns_and_one_that_fails_stops_no_other(executor: Executor) -> None:
    """A walk that raises ends; the others and the requests go on."""
    done: list[str] = []

    def failing() -> Iterator[None]:
        done.append("fails")
        yield
        raise RuntimeError("on purpose")

    def begin() -> None:
        executor.begin(failing())
        executor.begin(counting(done, 3))

    asyncio.run(executor.run(begin))
    executor.close()

    assert done == ["fails", "slice 0", "slice 1", "slice 2"]


def test_a_walk_is_finished_when_the_executor_closes(executor: Executor) -> None:
    """Closing ends no walk half way."""
    done: list[str] = []

    asyncio.run(executor.run(lambda: executor.begin(counting(done, 50))))
    executor.close()

    assert len(done) == 50
