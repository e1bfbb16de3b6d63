"""Processes around a client: forked loader workers, subprocesses, and one that is never closed."""

import subprocess
import sys

import pytest

from tests.integration.servers import WAIT_S, Server, endpoints

LOADER = """
import faulthandler, subprocess, sys, warnings

faulthandler.dump_traceback_later({limit_s}, exit=True)
warnings.simplefilter("ignore", DeprecationWarning)  # of Python, about fork beside threads

import numpy as np
import torch
import pserver

client = pserver.connect("{endpoints}", connect_s=30.0)
name = "loader-{rounds}-{uses_client}"
client.create_table(
    pserver.TableSpec(name=name, dim=2, optimizer="sgd:lr=1", initializer="zeros")
)
client.pull(name, [1])


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if {uses_client}:
            client.pull(name, [index])
        return index


steps = 0
for _ in range({rounds}):
    loader = torch.utils.data.DataLoader(
        Samples(), batch_size=4, num_workers=2, multiprocessing_context="fork"
    )
    for batch in loader:
        client.pull(name, batch.numpy())
        client.push(name, batch.numpy(), np.ones((4, 2)))
        subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
        steps += 1
weights = client.peek(name, np.arange(8))
assert (weights == -{rounds}.0).all(), weights
client.close()
print("steps", steps)
"""


def run(code: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh interpreter; one that hangs shows where, and is ended."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=limit_s + WAIT_S,
        check=False,
    )


def load(cluster: list[Server], rounds: int, limit_s: float) -> None:
    """Assert that forked workers and subprocesses do not disturb a training loop."""
    code = LOADER.format(
        endpoints=endpoints(cluster), rounds=rounds, limit_s=limit_s, uses_client=False
    )

    done = run(code, limit_s)

    assert done.returncode == 0, done.stderr
    assert done.stdout == f"steps {2 * rounds}\n"


def test_b7_training_goes_on_when_loaders_fork(pair: list[Server]) -> None:
    """Five rounds of two forked workers, with a subprocess in each step, lose nothing (B7)."""
    load(pair, rounds=5, limit_s=60.0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_b7_training_goes_on_when_loaders_fork_200_times(pair: list[Server]) -> None:
    """The same, 200 times over (B7)."""
    load(pair, rounds=200, limit_s=500.0)


def test_b7_worker_is_told_at_once_when_it_uses_the_client(pair: list[Server]) -> None:
    """A forked worker that uses the parent's client fails at once, and is told what to do (B7)."""
    code = LOADER.format(endpoints=endpoints(pair), rounds=1, limit_s=60.0, uses_client=True)

    done = run(code, 60.0)

    assert done.returncode == 1
    assert "RequestError" in done.stderr
    assert "connect in the child, or use the client in the parent only" in done.stderr


UNCLOSED = """
import numpy as np
import pserver

client = pserver.{make}
client.create_table(pserver.TableSpec(name="t", dim=1))
pending = client.start_push(
    {{"t": (np.arange(9, dtype=np.uint64), np.ones(9, np.float32), np.empty(0, np.uint32))}}
)
{end}
"""


@pytest.mark.parametrize(
    ("make", "end"),
    [
        ("connect({endpoints!r})", "pending.result()"),
        ("connect({endpoints!r})", "raise SystemExit(0)"),
        ("embedded(2)", ""),
    ],
)
def test_process_ends_when_a_client_was_never_closed(
    pair: list[Server], make: str, end: str
) -> None:
    """A script that forgets to close its client ends at its end, in silence."""
    code = UNCLOSED.format(make=make.format(endpoints=endpoints(pair)), end=end)

    done = run(code, WAIT_S)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
