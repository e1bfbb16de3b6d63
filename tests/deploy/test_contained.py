"""The server as the image runs it: process 1, nobody, a root that cannot be written to, and no home."""

import os
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from signal import SIGTERM

import numpy as np
import pytest

import pserver
from pserver.server.app import SECOND_SIGNAL_EXIT
from tests.deploy.container import USER, Contained, bake_command, contained, why_not
from tests.integration.proxy import Proxy
from tests.integration.servers import WAIT_S
from tests.integration.test_signals import MIB, connect, gradients, stalled_call

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the compile cache is made anew
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

Run = Callable[..., Contained]
PATIENT = {"timeout_s": 300.0, "try_timeout_s": 300.0}  # the first table compiles its optimizer
ACKNOWLEDGED = 5  # pushes before the signal


def given(folder: Path) -> Path:
    """Return a folder that the user of the image owns."""
    folder.mkdir()
    os.chown(folder, USER, USER)
    return folder


def kernels(folder: Path) -> set[str]:
    """Return the names of what numba compiled there."""
    return {path.name for path in folder.rglob("*.nb[ci]")}


@pytest.fixture(scope="module")
def baked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the compile cache that the image's own step makes, as its user."""
    folder = tmp_path_factory.mktemp("image")
    cache, work = given(folder / "cache"), given(folder / "work")
    subprocess.run(contained(bake_command(), folder=work, cache=cache), check=True, timeout=600)
    assert kernels(cache)
    assert {path.stat().st_uid for path in cache.rglob("*")} == {USER}
    return cache


@pytest.fixture
def run(tmp_path: Path, baked: Path) -> Iterator[Run]:
    """Return a starter of contained servers that end with the test and share their folder."""
    work = given(tmp_path / "work")
    with ExitStack() as stack:

        def start(*flags: str, is_cache_fixed: bool = False) -> Contained:
            server = Contained(*flags, folder=work, cache=baked, is_cache_fixed=is_cache_fixed)
            stack.callback(server.end)
            server.wait_ready()
            return server

        yield start


def push_until_refused(client: pserver.Client, server: Contained) -> int:
    """Push, four at once, and let the server drain meanwhile; return how many were acknowledged."""
    pending: deque[pserver.PendingPush] = deque()
    acknowledged, is_over = 0, False
    while pending or not is_over:
        while not is_over and len(pending) < 4:
            pending.append(client.start_push(gradients(MIB // 4)))
        try:
            pending.popleft().result()
        except pserver.PserverError:
            is_over = True
            continue
        acknowledged += 1
        if acknowledged == ACKNOWLEDGED:
            server.send(SIGTERM)
    return acknowledged


def test_a_root_and_a_cache_that_cannot_be_written_are_enough(run: Run, baked: Path) -> None:
    """Kernels of the baked cache are loaded from a copy, new ones go there too, and it is gone afterwards."""
    before = kernels(baked)

    server = run(is_cache_fixed=True)
    assert server.facts()["Uid"] == [str(USER)] * 4
    assert server.facts()["CapEff"] == ["0" * 16]
    copied = Path("/proc", str(server.process_1), "root", "tmp")  # as process 1 sees it
    assert kernels(copied) == before
    with connect(server.endpoint, **PATIENT) as client:
        client.push("t", [1], [[2.0]])
        assert client.pull("t", [1]).tolist() == [[-2.0]]
    assert kernels(copied) > before  # of the table's optimizer
    server.send(SIGTERM)
    status, text = server.wait_exit()

    assert status == 0, text
    assert "the compile cache cannot be written to" in text
    assert kernels(baked) == before


def test_i3_process_1_drains_under_load(run: Run, baked: Path) -> None:
    """What was in flight is acknowledged and in the journal, exit 0; a second signal ends the next one at once."""
    before = kernels(baked)
    flags = ("--journal=journal", "--restore=latest")
    server = run(*flags)
    assert server.facts()["NSpid"][-1] == "1"
    assert kernels(baked) == before  # nothing was compiled
    connect(server.endpoint, **PATIENT).close()
    with connect(server.endpoint, timeout_s=10.0) as client:
        acknowledged = push_until_refused(client, server)
        status, text = server.wait_exit()
        client.close(flush=False)

    assert status == 0, text
    assert acknowledged >= ACKNOWLEDGED
    server = run(*flags, "--drain-s=3600")
    with pserver.connect(server.endpoint, connect_s=WAIT_S) as client:
        assert client.stats()[0].tables[0].version == acknowledged
        assert np.unique(client.peek("t", [0, 5])).tolist() == [-acknowledged]
    with Proxy(server.endpoint, stall_bytes=MIB) as proxy:
        client = stalled_call(server, proxy)
        server.send(SIGTERM)
        server.wait_line("event='draining'")
        server.send(SIGTERM)
        status, text = server.wait_exit()
        client.close(flush=False)
    assert status == SECOND_SIGNAL_EXIT, text
