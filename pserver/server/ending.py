"""How a save ends without its client: every shard learns from the place of versions what became of it.

Rooms before and after: ``checkpoint`` waits here once a save is committed; ``save`` has written this
shard's files by then; ``checkpoint.store`` is where the shards meet, and nothing else connects them.

How. A shard that is done leaves its part in the begun version. Shard 0 looks for the parts of all, and
publishes; the others look for the published version. Whoever fails removes what was begun, which tells the
others; one that died is noticed since nothing more of it comes.

What always holds: a wait ends ``IDLE_S`` after the last thing that came. Owner: the event loop.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping

from pserver.checkpoint.manifest import part_name
from pserver.checkpoint.store import Store
from pserver.errors import CheckpointError

IDLE_S = 60.0
"""For how long nothing need happen to a save before it is given up; a file of 32 MiB takes less."""

_LOOK_MIN_S = 0.005
_LOOK_MAX_S = 0.5
_LOOK_SHARE = 0.1  # of the time that the save has taken: what looking adds to it at most


async def parts_of_all(store: Store, version: str, *, num_shards: int) -> None:
    """Return when every shard has left its part.

    Raises:
        CheckpointError: another shard gave up, or does nothing any more.
    """

    def look() -> tuple[bool, int, str]:
        if not store.has_begun(version):
            raise gone(store, version)
        sizes = store.sizes_begun(version)
        late = [shard for shard in range(num_shards) if not _is_left(store, version, shard, sizes)]
        return not late, sum(sizes.values()), f"shards {', '.join(map(str, late))}"

    await _until(look, version)


def _is_left(store: Store, version: str, shard: int, sizes: Mapping[str, int]) -> bool:
    """Return whether a shard's part is there, whole: a file is seen before it is written to its end."""
    if part_name(shard) not in sizes:
        return False
    try:
        json.loads(store.read_begun(version, part_name(shard)))
    except ValueError:
        return False
    return True


async def published(store: Store, version: str) -> None:
    """Return when shard 0 has published a version.

    Raises:
        CheckpointError: another shard gave up, or does nothing any more.
    """

    def look() -> tuple[bool, int, str]:
        # The order matters: a version is published before it is no longer begun.
        if store.has_begun(version):
            num_bytes = 0
            with contextlib.suppress(
                CheckpointError
            ):  # files go while it is published, or given up
                num_bytes = sum(store.sizes_begun(version).values())
            return False, num_bytes, "shard 0, or another one"
        if not store.has(version):
            raise gone(store, version)
        return True, 0, ""

    await _until(look, version)


async def _until(look: Callable[[], tuple[bool, int, str]], version: str) -> None:
    """Look again and again, in another thread: is it so, how many bytes are there, who is late?"""
    begin = moved = time.monotonic()
    most = -1
    while True:
        is_so, num_bytes, late = await asyncio.to_thread(look)
        if is_so:
            return
        now = time.monotonic()
        if num_bytes > most:
            most, moved = num_bytes, now
        if now - moved > IDLE_S:
            raise CheckpointError(
                f"save {version}: nothing came of {late} for {IDLE_S:.0f} s: is it gone? Nothing was "
                "published"
            )
        await asyncio.sleep(min(max(_LOOK_SHARE * (now - begin), _LOOK_MIN_S), _LOOK_MAX_S))


def gone(store: Store, version: str) -> CheckpointError:
    """Return the error of a save that another shard gave up."""
    return CheckpointError(
        f"{store.where}: {version} is not there any more: another shard gave it up, and says why"
    )
