"""Pushes that are on their way when a program ends arrive all the same."""

import subprocess
import sys

import pserver
from tests.integration.servers import Start, start_cluster

FORGETFUL = """
import sys
import numpy as np
import pserver

client = pserver.connect(sys.argv[1])
client.create_table(pserver.TableSpec(name="t", dim=16, optimizer="sgd:lr=1"))
keys = np.arange(20_000, dtype=np.uint64)
for _ in range(20):
    client.start_push({"t": (keys, np.ones(keys.size * 16, np.float32), np.empty(0, np.uint32))})
"""


def test_queued_pushes_arrive_when_a_script_forgets_to_close(start: Start) -> None:
    """A script that ends without close() or flush() has had every push applied once."""
    (server,) = start_cluster(start, 1)

    done = subprocess.run(
        [sys.executable, "-c", FORGETFUL, server.endpoint],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    with pserver.connect(server.endpoint) as client:
        assert client.stats()[0].pushes_applied == 20
