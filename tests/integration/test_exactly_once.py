"""Every push counts once: under cuts, delays, an outage, and many trainers at once."""

import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

import pserver
from tests.integration.proxy import Proxy
from tests.integration.servers import WAIT_S, Server, Start, endpoints, start_cluster

KEYS = np.array([0, 1, 2**64 - 1, 2**63, 12345, 678910], np.uint64)
SPEC = pserver.TableSpec(name="t", dim=8, optimizer="sgd:lr=1", initializer="zeros")


def push_ones(client: pserver.Client, count: int, *, seed: int) -> None:
    """Push +1 to every counter key that often, padded with other keys so that bytes flow."""
    rng = np.random.default_rng(seed)
    none = np.empty(0, np.uint32)
    for _ in range(count):
        padding = rng.integers(10**6, 2**62, 200).astype(np.uint64)
        keys = np.concatenate((KEYS, np.unique(padding)))
        client.start_push({"t": (keys, np.ones(keys.size * 8, np.float32), none)})
    client.flush()


def check_counters(cluster: list[Server], count: int) -> list[int]:
    """Assert what the counters came to, past the proxies; return each shard's duplicates."""
    with pserver.connect(endpoints(cluster)) as client:
        assert client.peek("t", KEYS).tolist() == [[-float(count)] * 8] * KEYS.size
        stats = client.stats()
    assert [s.pushes_applied for s in stats] == [count] * len(cluster)
    return [s.pushes_duplicate for s in stats]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_pushes_count_once_when_connections_are_cut(start: Start, seed: int) -> None:
    """Connections cut in the middle of requests and replies, and delays, lose and repeat none."""
    cluster = start_cluster(start, 2)
    settings = pserver.ClientSettings(timeout_s=WAIT_S, try_timeout_s=5.0)
    with ExitStack() as stack:
        proxies = [
            stack.enter_context(
                Proxy(server.endpoint, seed=10 * seed + i, cut_bytes=15_000, delay_s=0.002)
            )
            for i, server in enumerate(cluster)
        ]
        listed = ",".join(proxy.endpoint for proxy in proxies)
        client = stack.enter_context(pserver.connect(listed, settings=settings, connect_s=WAIT_S))
        client.create_table(SPEC)

        push_ones(client, 60, seed=seed)

        assert all(proxy.num_cuts > 5 for proxy in proxies)
        assert client.retries > 5
    assert sum(check_counters(cluster, 60)) > 0  # some pushes arrived whose replies did not


def test_reply_that_was_lost_is_a_duplicate(start: Start) -> None:
    """When the answer is lost after the push was applied, the retry is known as a repeat."""
    (server,) = start_cluster(start, 1)
    settings = pserver.ClientSettings(timeout_s=WAIT_S, window=1)
    with Proxy(server.endpoint) as proxy:
        client = pserver.connect(proxy.endpoint, settings=settings, connect_s=WAIT_S)
        client.create_table(SPEC)
        client.push("t", [5], np.ones((1, 8)))
        proxy.lose_replies()

        pending = client.start_push(
            {"t": (KEYS, np.ones(KEYS.size * 8, np.float32), np.empty(0, np.uint32))}
        )
        with pserver.connect(server.endpoint) as other:
            limit = time.monotonic() + WAIT_S
            while other.stats()[0].pushes_applied < 2:
                assert time.monotonic() < limit
        assert not pending.is_done
        proxy.shut()
        proxy.heal()
        proxy.open()
        pending.result()
        client.close()

    with pserver.connect(server.endpoint) as other:
        assert other.peek("t", KEYS).tolist() == [[-1.0] * 8] * KEYS.size
        (stats,) = other.stats()
    assert (stats.pushes_applied, stats.pushes_duplicate) == (2, 1)


def test_pushes_go_on_soon_when_the_network_is_back(start: Start) -> None:
    """After an outage of any length, pushes that waited are applied within seconds, once (B4)."""
    (server,) = start_cluster(start, 1)
    settings = pserver.ClientSettings(timeout_s=60.0)
    with Proxy(server.endpoint) as proxy:
        client = pserver.connect(proxy.endpoint, settings=settings, connect_s=WAIT_S)
        client.create_table(SPEC)
        proxy.shut()
        done = threading.Event()

        def push() -> None:
            push_ones(client, 20, seed=0)
            done.set()

        pusher = threading.Thread(target=push)
        pusher.start()
        limit = time.monotonic() + WAIT_S
        never = threading.Event()
        while client.retries < 20:  # the back-off has grown by then
            assert time.monotonic() < limit
            never.wait(0.01)
        begin = time.monotonic()
        proxy.open()

        assert done.wait(WAIT_S)
        assert time.monotonic() - begin < 8.0  # 5 s is what we state; the machine may be busy
        pusher.join(WAIT_S)
        client.close()
    check_counters([server], 20)


TRAINER = """
import sys
import numpy as np
import pserver
from tests.integration.test_exactly_once import push_ones

settings = pserver.ClientSettings(timeout_s=60.0, try_timeout_s=5.0)
with pserver.connect(sys.argv[1], settings=settings, connect_s=30.0) as client:
    push_ones(client, 25, seed=int(sys.argv[2]))
print("done")
"""


def test_counters_are_exact_when_four_trainers_push_at_once(start: Start) -> None:
    """Four processes that push to the same keys over a bad network end with the exact sum."""
    cluster = start_cluster(start, 2)
    with pserver.connect(endpoints(cluster), connect_s=WAIT_S) as client:
        client.create_table(SPEC)
    with ExitStack() as stack:
        proxies = [
            stack.enter_context(Proxy(server.endpoint, seed=i, cut_bytes=50_000))
            for i, server in enumerate(cluster)
        ]
        listed = ",".join(proxy.endpoint for proxy in proxies)
        trainers = [
            subprocess.Popen(
                [sys.executable, "-c", TRAINER, listed, str(i)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for i in range(4)
        ]
        try:
            printed = [trainer.communicate(timeout=3 * WAIT_S)[0] for trainer in trainers]
        finally:
            for trainer in trainers:
                trainer.kill()
                trainer.wait(WAIT_S)

        assert printed == ["done\n"] * 4
        assert sum(proxy.num_cuts for proxy in proxies) > 5
    check_counters(cluster, 100)


def test_counters_are_exact_when_four_clients_share_a_process(start: Start) -> None:
    """Four clients in threads of one process, each with its own id, end with the exact sum."""
    cluster = start_cluster(start, 2)
    settings = pserver.ClientSettings(timeout_s=WAIT_S, send_queue_size=4, window=4)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(pserver.connect(endpoints(cluster), settings=settings))
            for _ in range(4)
        ]
        for client in clients:
            client.create_table(SPEC)
        threads = [
            threading.Thread(target=push_ones, args=(client, 50), kwargs={"seed": i})
            for i, client in enumerate(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    check_counters(cluster, 200)
