"""Saves that shards bring to an end without their client."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pserver.checkpoint.local import LocalStore
from pserver.errors import CheckpointError
from pserver.server import ending
from tests.unit.server.saves import committed, shards_of, step, until_failed, until_published


def test_shards_publish_by_themselves_when_the_client_of_a_committed_save_is_gone(
    tmp_path: Path,
) -> None:
    """The last step that a client does is commit; each shard then knows what a delta is one to."""
    shards = shards_of(tmp_path, 3)

    async def save() -> None:
        await committed(shards)
        for shard in shards:
            await until_published(shard)
            assert (await step(shard, "begin", "two", mode="delta", version="v00000002")).base

    try:
        asyncio.run(asyncio.wait_for(save(), 30.0))
        assert LocalStore(tmp_path).versions() == ["v00000001"]
    finally:
        for shard in shards:
            shard.close()


def test_a_committed_save_fails_on_all_shards_when_one_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D2: that shard says why, the other that it was given up; nothing is left, and the next one works."""
    shards = shards_of(tmp_path, 2)
    write = LocalStore.write

    def refuse(store: LocalStore, version: str, name: str, data: Any) -> None:
        if name == "shard-00001.safetensors":
            raise CheckpointError("no room")
        write(store, version, name, data)

    async def save() -> None:
        monkeypatch.setattr(LocalStore, "write", refuse)
        await committed(shards)
        assert await until_failed(shards[1]) == "no room"
        assert "another shard gave it up" in await until_failed(shards[0])
        assert LocalStore(tmp_path).leftovers() == []

        monkeypatch.setattr(LocalStore, "write", write)
        first = await step(shards[0], "begin", "two", mode="full")
        await step(shards[1], "begin", "two", mode="full", version=first.version)

    try:
        asyncio.run(asyncio.wait_for(save(), 30.0))
    finally:
        for shard in shards:
            shard.close()


@pytest.mark.parametrize("gone", [0, 1])
def test_a_committed_save_is_given_up_when_a_shard_does_nothing_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: int
) -> None:
    """The one that is left waits for a limit, names it, and takes away what was begun."""
    shards = shards_of(tmp_path, 2)
    monkeypatch.setattr(ending, "IDLE_S", 0.05)

    async def save() -> None:
        first = await step(shards[0], "begin", mode="full")
        await step(shards[1], "begin", mode="full", version=first.version)
        left = shards[1 - gone]
        await step(left, "cut", epoch=first.epoch)
        await step(left, "commit")
        error = await until_failed(left)
        assert "nothing came of shard" in error
        assert str(gone) in error
        assert LocalStore(tmp_path).leftovers() == []

    try:
        asyncio.run(asyncio.wait_for(save(), 30.0))
    finally:
        for shard in shards:
            shard.close()


def test_parts_of_two_saves_make_no_version(tmp_path: Path) -> None:
    """Shard 1 left its part for a save whose number was given again: it is not taken for this one."""
    shards = shards_of(tmp_path, 2)

    async def save() -> None:
        await committed(shards[:1])
        await step(shards[1], "begin", "other", mode="full", version="v00000001")
        await step(shards[1], "cut", "other", epoch=1)
        assert "the part of shard 1 is of another save" in await until_failed(shards[0])

    try:
        asyncio.run(asyncio.wait_for(save(), 30.0))
        assert LocalStore(tmp_path).versions() == []
    finally:
        for shard in shards:
            shard.close()


def test_a_part_counts_once_it_is_written_to_its_end(tmp_path: Path) -> None:
    """Shard 0 sees the first bytes of another shard's part, and does not take them for the part."""
    store = LocalStore(tmp_path)
    store.begin("v00000001")
    (tmp_path / ".saving-v00000001" / "part-00000.json").write_text('{"shard": 1')

    async def wait() -> bool:
        waiting = asyncio.ensure_future(ending.parts_of_all(store, "v00000001", num_shards=1))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        (tmp_path / ".saving-v00000001" / "part-00000.json").write_text('{"shard": 1}')
        await asyncio.wait_for(waiting, 30.0)
        return bool(done)

    assert not asyncio.run(wait())
