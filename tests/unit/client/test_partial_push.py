"""What a client promises of a push that could not be sent whole, and at the end of a program."""

import asyncio
import subprocess
import sys

import numpy as np
import pytest
from typing_extensions import override

import pserver
from pserver.client.connect import make_client
from pserver.config import ClientSettings
from pserver.deadline import Deadline
from pserver.embedded import InProcessChannel, make_shards


class _Stuck(InProcessChannel):
    """A channel whose pushes are never answered."""

    @override
    async def call(self, method: str, message: bytes, *, deadline: Deadline) -> bytes:
        if method == "Push" and self.endpoint.endswith("1"):
            await asyncio.Event().wait()
        return await super().call(method, message, deadline=deadline)


def test_a_push_that_left_in_part_says_so_when_a_queue_stays_full() -> None:
    """With shard 1 stuck and its queue full, the error tells that shard 0's part had left."""
    settings = ClientSettings(timeout_s=0.5, try_timeout_s=0.1, send_queue_size=1, window=1)
    client = make_client(
        lambda: [_Stuck(shard) for shard in make_shards(2)], settings=settings, connect_s=5.0
    )
    client.create_table(pserver.TableSpec(name="t", dim=1, optimizer="sgd:lr=1"))
    keys = np.arange(64, dtype=np.uint64)
    block, counts = np.ones(64, np.float32), np.empty(0, np.uint32)
    assert set(pserver.shard_of(keys, 2).tolist()) == {0, 1}
    client.start_push({"t": (keys, block, counts)})

    with pytest.raises(pserver.DeadlineError, match="a part of it had left and may be applied"):
        client.start_push({"t": (keys, block, counts)})

    with pytest.raises(pserver.DeadlineError):
        client.flush()
    client.close(flush=False)


_FORGETFUL = """
import numpy as np
import pserver

client = pserver.embedded(1)
client.create_table(pserver.TableSpec(name="t", dim=1, optimizer="sgd:lr=1"))
applied = []
client.start_push({"t": (np.array([1], np.uint64), np.ones(1, np.float32), np.empty(0, np.uint32))})
print("end", flush=True)
"""


def test_a_client_is_closed_when_the_program_ends_without_it() -> None:
    """A script that forgets close() ends by itself, without an error."""
    done = subprocess.run(
        [sys.executable, "-c", _FORGETFUL], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "end", "")
