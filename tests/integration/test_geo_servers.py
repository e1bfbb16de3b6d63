"""Geo mode when a server dies, comes back empty, or stands still while trainers work."""

import functools
import signal

import numpy as np
import pytest

import pserver
from tests.geo_trainers import both, local, step, together
from tests.integration.servers import WAIT_S, Server, Start, endpoints, start_cluster
from tests.unit.trainers import unit_table
from trainer.modes.geo import GeoMode

KEYS = list(range(64))  # some on each shard


def connect(cluster: list[Server], timeout_s: float) -> list[pserver.Client]:
    """Return two clients."""
    settings = pserver.ClientSettings(timeout_s=timeout_s, try_timeout_s=1.0)
    return [
        pserver.connect(endpoints(cluster), settings=settings, connect_s=WAIT_S) for _ in range(2)
    ]


def fails(mode: GeoMode, error: type[Exception], text: str) -> None:
    """Assert how a round ends."""
    with pytest.raises(error, match=text):
        mode.flush()


def test_e2_a_dead_server_is_named_and_an_empty_one_never_taken_for_it(start: Start) -> None:
    """E2, geo: SIGKILL 1 of 3: rounds end and name it; back without its rows, it ends the run."""
    cluster = start_cluster(start, 3)
    pserver.LocalTable(unit_table(), rows_max=1)  # compiles, which takes longer than the timeout
    pair = connect(cluster, timeout_s=5.0)  # over the 2 s of a reconnect
    modes = both(pair, barrier_timeout=0.5)
    for mode in modes:
        step(mode, KEYS, [1.0] * 64)
    cluster[1].send(signal.SIGKILL)
    cluster[1].wait_exit()

    dead = cluster[1].endpoint
    together(*(functools.partial(fails, m, pserver.DeadlineError, dead) for m in modes))
    start("--shard", "1", "--shards", "3", "--bind", dead).wait_ready()
    empty = "shard 1 was restarted"
    together(*(functools.partial(fails, m, pserver.RestartedError, empty) for m in modes))
    for mode in modes:
        with pytest.raises(pserver.RestartedError, match=empty):
            local(mode, list(range(64, 128)))
    for client in pair:
        client.close(flush=False)


def test_training_goes_on_while_a_server_stands_still(start: Start) -> None:
    """Steps on rows that are here need no server; when it goes on, every step of both is counted."""
    cluster = start_cluster(start, 2)
    pair = connect(cluster, timeout_s=60.0)
    modes = both(pair, k_steps=5, geo_average="none")
    for mode in modes:
        step(mode, KEYS, [0.0] * 64)
        mode.flush()
    cluster[1].send(signal.SIGSTOP)
    for mode in modes:  # the fifth step of the window begins a round; the next one is not due yet
        for _ in range(9):
            step(mode, KEYS, [-1.0] * 64)
    cluster[1].send(signal.SIGCONT)
    together(*(mode.flush for mode in modes))
    for mode in modes:
        mode.flush()

    weights = pair[0].peek("t", np.arange(64))
    assert set(weights[:, 0]) == {18.0}
    assert all(set(local(mode, KEYS)) == {18.0} for mode in modes)
    for mode, client in zip(modes, pair, strict=True):
        mode.finish()
        client.close()
