"""Every push counts once: under cuts, delays, an outage, and many trainers at once."""

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

import pserver
from tests.integration.forked import Piped
from tests.integration.proxy import Proxy
from tests.integration.servers import WAIT_S, Server, Start, endpoints, start_cluster

KEYS = np.array([0, 1, 2**64 - 1, 2**63, 12345, 678910], np.uint64)
NONE = np.empty(0, np.uint32)


@dataclass
class Counters:
    """A table of counter keys on the shared servers, and what they did before the test."""

    cluster: list[Server]
    spec: pserver.TableSpec
    before: list[tuple[int, int]]

    def check(self, count: int) -> int:
        """Assert that every key counts that many pushes, past the proxies; return the repeats."""
        with pserver.connect(endpoints(self.cluster)) as client:
            weights = client.peek(self.spec.name, KEYS)
        assert weights.tolist() == [[-float(count)] * self.spec.dim] * KEYS.size
        pairs = list(zip(tallies(self.cluster), self.before, strict=True))
        assert [now[0] - then[0] for now, then in pairs] == [count] * len(self.cluster)
        return sum(now[1] - then[1] for now, then in pairs)


def tallies(cluster: list[Server]) -> list[tuple[int, int]]:
    """Return each shard's pushes that it applied, and that it knew as repeats."""
    with pserver.connect(endpoints(cluster)) as client:
        return [(s.pushes_applied, s.pushes_duplicate) for s in client.stats()]


@pytest.fixture
def counters(pair: list[Server], request: pytest.FixtureRequest) -> Counters:
    """Return a table of the test's own that sgd moves by 1."""
    name = re.sub(r"\W", "-", request.node.name)[-60:]
    spec = pserver.TableSpec(name=name, dim=8, optimizer="sgd:lr=1", initializer="zeros")
    with pserver.connect(endpoints(pair), connect_s=WAIT_S) as client:
        client.create_table(spec)
    return Counters(pair, spec, tallies(pair))


def push_ones(client: pserver.Client, table: str, count: int, *, seed: int) -> None:
    """Push +1 to every counter key that often, padded with other keys so that bytes flow."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        padding = rng.integers(10**6, 2**62, 200).astype(np.uint64)
        keys = np.concatenate((KEYS, np.unique(padding)))
        client.start_push({table: (keys, np.ones(keys.size * 8, np.float32), NONE)})
    client.flush()


@contextmanager
def bad_network(
    cluster: list[Server], *, seed: int = 0, cut_bytes: float | None = None, delay_s: float = 0.0
) -> Iterator[tuple[str, list[Proxy]]]:
    """Return the endpoints of proxies before a cluster, and the proxies."""
    with ExitStack() as stack:
        proxies = [
            stack.enter_context(
                Proxy(server.endpoint, seed=10 * seed + i, cut_bytes=cut_bytes, delay_s=delay_s)
            )
            for i, server in enumerate(cluster)
        ]
        yield ",".join(proxy.endpoint for proxy in proxies), proxies


@pytest.mark.parametrize("seed", [1, 2])
def test_pushes_count_once_when_connections_are_cut(counters: Counters, seed: int) -> None:
    """Connections cut in the middle of requests and replies, and delays, lose and repeat none."""
    settings = pserver.ClientSettings(timeout_s=WAIT_S, try_timeout_s=5.0)
    with (
        bad_network(counters.cluster, seed=seed, cut_bytes=15_000, delay_s=0.002) as bad,
        pserver.connect(bad[0], settings=settings, connect_s=WAIT_S) as client,
    ):
        push_ones(client, counters.spec.name, 60, seed=seed)

        assert all(proxy.num_cuts > 5 for proxy in bad[1])
        assert client.retries > 5
    assert counters.check(60) > 0  # some pushes arrived whose replies did not


def test_reply_that_was_lost_is_a_duplicate(start: Start) -> None:
    """When the answer is lost after the push was applied, the retry is known as a repeat."""
    (server,) = start_cluster(start, 1)
    settings = pserver.ClientSettings(timeout_s=WAIT_S)
    with Proxy(server.endpoint) as proxy:
        client = pserver.connect(proxy.endpoint, settings=settings, connect_s=WAIT_S)
        client.create_table(pserver.TableSpec(name="t", dim=1))
        proxy.lose_replies()

        pending = client.start_push({"t": (KEYS, np.ones(KEYS.size, np.float32), NONE)})
        limit = time.monotonic() + WAIT_S
        while tallies([server]) != [(1, 0)]:
            assert time.monotonic() < limit
        assert not pending.is_done
        proxy.shut()
        proxy.heal()
        proxy.open()
        pending.result()
        client.close()

    assert tallies([server]) == [(1, 1)]


def test_pushes_go_on_soon_when_the_network_is_back(counters: Counters) -> None:
    """After an outage, pushes that waited are applied within seconds of its end, once (B4)."""
    settings = pserver.ClientSettings(timeout_s=60.0)
    with (
        bad_network(counters.cluster) as (listed, proxies),
        pserver.connect(listed, settings=settings, connect_s=WAIT_S) as client,
    ):
        client.spec(counters.spec.name)  # while it can be asked for
        for proxy in proxies:
            proxy.shut()
        pusher = threading.Thread(
            target=push_ones, args=(client, counters.spec.name, 20), kwargs={"seed": 0}
        )
        pusher.start()
        limit = time.monotonic() + WAIT_S
        never = threading.Event()
        while client.retries < 40:  # the back-off has grown by then
            assert time.monotonic() < limit
            never.wait(0.01)
        begin = time.monotonic()
        for proxy in proxies:
            proxy.open()

        pusher.join(WAIT_S)
        assert not pusher.is_alive()
        assert time.monotonic() - begin < 8.0  # 5 s is what we state; the machine may be busy
    counters.check(20)


def be_trainer(words: Sequence[str]) -> int:
    """Push 25 times from a process of its own."""
    listed, table, seed = words
    settings = pserver.ClientSettings(timeout_s=60.0, try_timeout_s=5.0)
    with pserver.connect(listed, settings=settings, connect_s=30.0) as client:
        push_ones(client, table, 25, seed=int(seed))
    return 0


def test_counters_are_exact_when_four_trainers_push_at_once(counters: Counters) -> None:
    """Four processes that push to the same keys over a bad network end with the exact sum."""
    with bad_network(counters.cluster, cut_bytes=50_000) as (listed, proxies):
        trainers = [Piped(be_trainer, listed, counters.spec.name, str(i)) for i in range(4)]
        try:
            said = [trainer.communicate(timeout=3 * WAIT_S)[1] for trainer in trainers]
        finally:
            for trainer in trainers:
                trainer.end(WAIT_S)

        assert [trainer.returncode for trainer in trainers] == [0] * 4, said
        assert sum(proxy.num_cuts for proxy in proxies) > 5
    counters.check(100)


def test_counters_are_exact_when_four_clients_share_a_process(counters: Counters) -> None:
    """Four clients in threads of one process, each with its own id, end with the exact sum."""
    settings = pserver.ClientSettings(timeout_s=WAIT_S, send_queue_size=4, window=4)
    with ExitStack() as stack:
        threads = []
        for i in range(4):
            client = pserver.connect(endpoints(counters.cluster), settings=settings)
            stack.enter_context(client)
            args = (client, counters.spec.name, 50)
            threads.append(threading.Thread(target=push_ones, args=args, kwargs={"seed": i}))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    counters.check(200)
