"""How a save leaves a shard to its requests."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pserver.checkpoint.local import LocalStore
from pserver.server.executor import Executor
from pserver.server.save import Save, Shard
from pserver.table.registry import Registry

WAIT_S = 30.0


@pytest.fixture
def executor() -> Iterator[Executor]:
    """Return the turns of a shard without tables."""
    executor = Executor(name="paced", queue_max=8)
    yield executor
    executor.close()


def rests_of(
    executor: Executor, folder: Path, monkeypatch: pytest.MonkeyPatch, *, requests: int
) -> tuple[list[float], float]:
    """Return the rests of a save that made a file while requests came, and how long the file took at least."""
    rests: list[float] = []

    async def rest(seconds: float, *_: Any) -> None:
        rests.append(seconds)

    async def run() -> float:
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        shard = Shard(shard=0, num_shards=1, registry=Registry(), executor=executor, parts={})
        save = Save(shard, LocalStore(folder), "id", "v1", since=0)

        def work() -> None:
            loop.call_soon_threadsafe(came.set)
            asyncio.run_coroutine_threadsafe(all_came.wait(), loop).result(WAIT_S)

        all_came = asyncio.Event()
        making = asyncio.ensure_future(save._pace(work))
        await came.wait()
        begin_s = loop.time()
        for _ in range(requests):
            await executor.run_short(lambda: None)
        took_s = loop.time() - begin_s
        all_came.set()
        await making
        return took_s

    monkeypatch.setattr("pserver.server.save.asyncio.sleep", rest)
    took_s = asyncio.run(asyncio.wait_for(run(), WAIT_S))
    return rests, took_s


def test_a_file_is_followed_by_a_rest_when_requests_came(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than the file took, so that training keeps most of the processors."""
    (rest_s,), took_s = rests_of(executor, tmp_path, monkeypatch, requests=3)

    assert rest_s > took_s


def test_a_file_is_followed_by_the_next_one_when_nobody_asks(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save of a shard that has nothing else to do goes as fast as the disk."""
    rests, _ = rests_of(executor, tmp_path, monkeypatch, requests=0)

    assert rests == []
