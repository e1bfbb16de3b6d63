"""Networks that fail: trainers go on soon after they are back, and each acknowledged push counts once."""

import functools
import hashlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

import pserver
from tests.geo_trainers import together
from tests.integration.proxy import Proxy
from tests.integration.rpc_proxy import Faults, RpcProxy
from tests.integration.servers import WAIT_S, Server, Start, servers
from tests.unit.trainers import unit_table
from trainer.modes import Mode, make_mode
from trainer.strategy import Strategy

BACK_S = 5.0
"""Trainers go on within this time of a server's return."""

TIMEOUT_S, SLACK_S = 0.5, 3.0
"""Of calls into a black hole, and what they may take beyond it on a busy machine."""

NONE = np.empty(0, np.uint32)
KEY = np.array([7], np.uint64)
never = threading.Event()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Return a server that the tests of this module share and do not harm."""
    with servers() as starter:
        yield starter().wait_ready()


@pytest.fixture
def table(request: pytest.FixtureRequest) -> str:
    """Return a table's name that no other test has."""
    return hashlib.sha256(request.node.name.encode()).hexdigest()[:16]


def connect(endpoint: str, table: str, **settings: float) -> pserver.Client:
    """Return a client with a table of one float that sgd moves by 1."""
    chosen = {"timeout_s": 120.0, "try_timeout_s": 1.0, **settings}
    client = pserver.connect(
        endpoint, settings=pserver.ClientSettings.make(chosen, origins={}), connect_s=WAIT_S
    )
    client.create_table(unit_table(table))
    return client


class Pusher:
    """A trainer that pushes 1 to the counter key, or adds -1 to it, until it is told to stop."""

    def __init__(self, push: Callable[[], object]) -> None:
        """Start it."""
        self.acknowledged = 0
        self._push = push
        self._moved = threading.Condition()
        self._is_over = False
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Be the trainer."""
        try:
            while not self._is_over:
                self._push()
                with self._moved:
                    self.acknowledged += 1
                    self._moved.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised by ``stop``
            self._errors.append(error)
            with self._moved:
                self._moved.notify_all()

    def wait_for_more(self, count: int = 1, *, limit_s: float = WAIT_S) -> None:
        """Return when that many further pushes are acknowledged."""
        with self._moved:
            goal = self.acknowledged + count
            came = self._moved.wait_for(
                lambda: self.acknowledged >= goal or bool(self._errors), limit_s
            )
        if self._errors:
            raise self._errors[0]
        assert came, f"{self.acknowledged} of {goal} pushes within {limit_s} s"

    def stop(self) -> int:
        """Let it finish, and return how many pushes were acknowledged."""
        self._is_over = True
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self._errors:
            raise self._errors[0]
        return self.acknowledged


def pushing(client: pserver.Client, table: str, mode: str) -> Callable[[], object]:
    """Return one push of an async trainer, or of a geo trainer's round."""
    if mode == "async":
        return lambda: client.push(table, KEY, [[1.0]])
    one = np.full(1, -1.0, np.float32)
    return lambda: client.geo.push({table: (KEY, one)}, {}).deliver()


@contextmanager
def trainer(endpoint: str, table: str, mode: str) -> Iterator[tuple[pserver.Client, Pusher]]:
    """Return a client and the trainer that pushes through it."""
    with connect(endpoint, table) as client:
        pusher = Pusher(pushing(client, table, mode))
        pusher.wait_for_more(3)
        yield client, pusher


def check_counter(server: Server, table: str, acknowledged: int) -> None:
    """Assert that the counter key has each acknowledged push once."""
    with connect(server.endpoint, table) as direct:
        assert direct.peek(table, KEY).item() == -acknowledged


@pytest.mark.parametrize("mode", ["async", "geo"])
@pytest.mark.parametrize(
    "away_s",
    [
        1.0,
        pytest.param(10.0, marks=pytest.mark.slow),
        pytest.param(60.0, marks=[pytest.mark.long, pytest.mark.timeout(240)]),
    ],
)
def test_b4_trainers_go_on_within_5_s_when_the_network_is_back(
    server: Server, table: str, away_s: float, mode: str
) -> None:
    """B4: nobody answers for 1, 10 or 60 s; back-off has not grown beyond its cap; nothing is lost."""
    with Proxy(server.endpoint) as proxy, trainer(proxy.endpoint, table, mode) as (_, pusher):
        proxy.shut()
        never.wait(away_s)
        proxy.open()
        pusher.wait_for_more(limit_s=BACK_S)
        check_counter(server, table, pusher.stop())


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_b6_trainers_go_on_within_5_s_when_a_stopped_server_goes_on(
    start: Start, table: str, mode: str
) -> None:
    """B6: SIGSTOP leaves connections open and answers nothing; SIGCONT, and all is as before."""
    server = start().wait_ready()
    with trainer(server.endpoint, table, mode) as (client, pusher):
        server.send(signal.SIGSTOP)
        before = client.retries
        while client.retries < before + 2:
            never.wait(0.05)
        server.send(signal.SIGCONT)
        pusher.wait_for_more(limit_s=BACK_S)
        check_counter(server, table, pusher.stop())


@pytest.mark.parametrize("mode", ["async", "geo"])
@pytest.mark.parametrize(
    "faults",
    [
        Faults(twice=0.5, late=0.2),
        Faults(lost_requests=0.2, lost_replies=0.2),
        Faults(twice=0.2, late=0.2, lost_requests=0.1, lost_replies=0.1, delay_s=0.01),
    ],
    ids=["repeated", "lost", "all"],
)
def test_each_acknowledged_push_counts_once_when_calls_go_wrong(
    server: Server, table: str, faults: Faults, mode: str
) -> None:
    """Requests that come twice, late or not at all, and replies that are lost, change no count."""
    with (
        RpcProxy(server.endpoint, seed=3) as proxy,
        trainer(proxy.endpoint, table, mode) as (_, pusher),
    ):
        proxy.faults = faults
        pusher.wait_for_more(40)
        proxy.faults = Faults()
        acknowledged = pusher.stop()
    check_counter(server, table, acknowledged)
    assert proxy.num_repeats + proxy.num_lost > 0


def test_a_narrow_link_is_slow_and_no_more(server: Server, table: str) -> None:
    """Messages that take longer than usual to pass are waited for, not sent again."""
    narrow = Proxy(server.endpoint, bytes_per_s=2e6)
    with narrow as proxy, connect(proxy.endpoint, table, try_timeout_s=WAIT_S) as client:
        keys = np.arange(100_000, dtype=np.uint64)  # 1.2 MB
        client.push(table, keys, np.ones((keys.size, 1), np.float32))

        assert client.retries == 0
        assert proxy.num_bytes > 12 * keys.size
        assert client.peek(table, keys).sum() == -keys.size


CALLS: dict[str, Callable[[pserver.Client], object]] = {
    "pull": lambda c: c.pull("t", [1]),
    "peek": lambda c: c.peek("t", [1]),
    "push": lambda c: c.push("t", [1], [[1.0]]),
    "assign": lambda c: c.assign("t", [1], [[1.0]]),
    "start_push": lambda c: c.start_push({"t": (KEY, np.ones(1, np.float32), NONE)}).result(),
    "create_table": lambda c: c.create_table(pserver.TableSpec(name="u", dim=1)),
    "create_dense": lambda c: c.create_dense(pserver.DenseSpec(name="e", length=1)),
    "init_dense": lambda c: c.init_dense("d", [1.0, 2.0]),
    "push_dense": lambda c: c.push_dense("d", [1.0, 2.0]),
    "pull_dense": lambda c: c.pull_dense("d"),
    "geo push": lambda c: c.geo.push({"t": (KEY, np.ones(1, np.float32))}, {}).deliver(),
    "geo changed": lambda c: c.geo.changed("t", None),
    "join": lambda c: c.join(pserver.GroupSettings(barrier_timeout=0.5)),
    "inspect": lambda c: c.inspect("t", 1),
    "stats": lambda c: c.stats(),
}


def test_b5_no_call_outlives_its_deadline_when_connections_lead_nowhere(server: Server) -> None:
    """B5: a black hole accepts and never answers: every public call ends in time, and names it."""
    with Proxy(server.endpoint) as proxy:
        client = connect(proxy.endpoint, "t", timeout_s=TIMEOUT_S)
        client.create_dense(pserver.DenseSpec(name="d", length=2))
        proxy.swallow()
        proxy.cut()
        outcomes: dict[str, BaseException] = {}

        def run(name: str) -> None:
            try:
                CALLS[name](client)
            except BaseException as error:  # noqa: BLE001 - looked at below
                outcomes[name] = error

        begin = time.monotonic()
        threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in CALLS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, begin + 2 * TIMEOUT_S + SLACK_S - time.monotonic()))

        assert [t.is_alive() for t in threads] == [False] * len(threads)
        for name, error in outcomes.items():
            assert isinstance(error, pserver.DeadlineError | pserver.UnavailableError), (
                name,
                error,
            )
            assert proxy.endpoint in str(error), (name, error)
        assert outcomes.keys() == CALLS.keys()
        client.close(flush=False)


def test_b6_a_barrier_may_take_longer_than_a_call(server: Server, table: str) -> None:
    """B6: a trainer that waits three call timeouts for the other one of its round does not fail."""
    strategy = Strategy(mode="sync", barrier_timeout=WAIT_S)

    def step(mode: Mode) -> float:
        (weights,) = mode.start_pull({table: KEY}).result()
        mode.start_push({table: (KEY, np.ones(1, np.float32), NONE)})
        mode.end_step(samples=1)
        return float(weights.item())

    with ExitStack() as stack:
        clients = [
            stack.enter_context(connect(server.endpoint, table, timeout_s=1.2, try_timeout_s=1.2))
            for _ in range(2)
        ]
        modes = [make_mode(c, strategy, trainer_id=i, trainers=2) for i, c in enumerate(clients)]
        seen: list[float] = []

        def early() -> None:
            seen.extend(step(modes[0]) for _ in range(2))

        def late() -> None:
            never.wait(3 * 1.2)
            for _ in range(2):
                step(modes[1])

        together(early, late)
        together(*(functools.partial(mode.finish) for mode in modes))

        assert seen == [0.0, -1.0]
