"""Servers that are killed while trainers push: every acknowledged push is in, once, to the bit."""

import functools
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pserver
from tests.integration.families import NONE, make, rows_of, train
from tests.integration.killed import WAIT_S, Killed, until
from tests.unit.table.test_optimizer_curve import LOSSES, ROWS, curve

pytestmark = pytest.mark.integration

CLIENT = pserver.ClientSettings(timeout_s=WAIT_S, try_timeout_s=5.0)
TRAINERS = 2


class Run:
    """Two trainers of a sync group, that train until they are told the last round."""

    def __init__(self, connect: Callable[[], pserver.Client], last: int | None = None) -> None:
        """Begin to train.

        Args:
            connect: to the servers.
            last: round; None: see ``end_soon``.
        """
        self.at = [0] * TRAINERS
        self.last = last
        self.errors: list[BaseException] = []
        self._connect = connect
        with connect() as client:
            make(client)
        self._threads = [
            threading.Thread(target=self._train, args=(i,), daemon=True) for i in range(TRAINERS)
        ]
        for thread in self._threads:
            thread.start()

    def _train(self, trainer: int) -> None:
        def goes_on(number: int) -> bool:
            self.at[trainer] = number
            return self.last is None or number <= self.last

        try:
            with self._connect() as client:
                settings = pserver.GroupSettings(
                    mode="sync", trainers=TRAINERS, trainer_id=trainer, barrier_timeout=WAIT_S
                )
                group = client.join(settings)
                train(client, group, trainer=trainer, goes_on=goes_on)
                group.leave()
        except BaseException as error:  # noqa: BLE001 - raised by ``rows``
            self.errors.append(error)

    def has_reached(self, number: int) -> bool:
        """Return whether a round was begun, or will not be."""
        return self.at[0] >= number or bool(self.errors)

    def end_soon(self) -> None:
        """Let this round, and those that may be open by now, be the last."""
        self.last = max(self.at) + 2

    def rows(self) -> dict[str, list[object]]:
        """Return all rows once the trainers are done."""
        for thread in self._threads:
            thread.join(2 * WAIT_S)
        if self.errors:
            raise self.errors[0]
        assert not any(thread.is_alive() for thread in self._threads)
        with self._connect() as client:
            return rows_of(client)


def check_kills(folder: Path, kills: int, *flags: str) -> None:
    """Kill a server at random moments of a sync run, and compare with a run without kills."""
    rng = np.random.default_rng(20)
    pause = threading.Event().wait
    with Killed(folder, *flags) as server:
        run = Run(lambda: pserver.connect(server.endpoint, settings=CLIENT, connect_s=WAIT_S))
        while server.kills < kills:
            wanted = run.at[0] + int(rng.integers(0, 4))
            until(functools.partial(run.has_reached, wanted), pause)
            if run.errors:
                raise run.errors[0]
            pause(float(rng.uniform(0.0, 0.02)))
            server.kill()
        run.end_soon()
        killed = run.rows()
    with pserver.Cluster(1) as cluster:
        undisturbed = Run(lambda: cluster.connect(settings=CLIENT), last=run.last).rows()

    assert killed == undisturbed
    log = server.log.read_text()
    assert "refused as before" in log
    assert run.last is not None
    assert run.last > kills // 4


@pytest.mark.parametrize("kills", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_sync_run_is_the_same_to_the_bit_when_its_server_is_killed(
    tmp_path: Path, kills: int
) -> None:
    """Rows and state of every optimizer family are those of an undisturbed run after some kills."""
    check_kills(tmp_path, kills)


@pytest.mark.skipif(not ROWS.exists(), reason="the data lies outside the repository")
def test_the_curve_of_difacto_goes_on_when_its_server_is_killed_and_restored(
    tmp_path: Path,
) -> None:
    """difacto-ftrl-20 with a kill before the 6th and the 13th update: the same 20 losses."""
    with Killed(tmp_path) as server:

        def kill_at(number: int) -> None:
            if number in (5, 12):
                server.kill()

        with pserver.connect(server.endpoint, settings=CLIENT, connect_s=WAIT_S) as client:
            losses = curve(client, kill_at)

    assert server.kills == 2
    np.testing.assert_allclose(losses, LOSSES, rtol=0, atol=5e-5)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fsync", ["always", "interval", "off"])
def test_sync_run_is_the_same_to_the_bit_when_its_server_is_killed_200_times(
    tmp_path: Path, fsync: str
) -> None:
    """As with few kills, with every promise of syncing."""
    check_kills(tmp_path, 200, "--fsync", fsync)


def test_async_pushes_count_once_when_the_server_is_killed(tmp_path: Path) -> None:
    """With 8 kills under two clients that have four pushes in flight, every push counts exactly once."""
    keys, ones = np.arange(50, dtype=np.uint64), np.ones(100, np.float32)
    spec = pserver.TableSpec(name="t", dim=2, optimizer="sgd:lr=1", initializer="zeros")
    counts, is_over = [0, 0], threading.Event()
    pause = threading.Event().wait

    with Killed(tmp_path) as server:

        def connect() -> pserver.Client:
            return pserver.connect(server.endpoint, settings=CLIENT, connect_s=WAIT_S)

        def push(trainer: int) -> None:
            with connect() as client:
                while not is_over.is_set():
                    client.start_push({"t": (keys, ones, NONE)})
                    counts[trainer] += 1
                client.flush()

        with connect() as client:
            client.create_table(spec)
        threads = [threading.Thread(target=push, args=(i,), daemon=True) for i in (0, 1)]
        for thread in threads:
            thread.start()
        while server.kills < 8:
            before = sum(counts)
            until(functools.partial(lambda least: sum(counts) > least, before + 20), pause)
            server.kill()
        is_over.set()
        for thread in threads:
            thread.join(WAIT_S)
        assert not any(thread.is_alive() for thread in threads)
        with connect() as client:
            weights = client.peek("t", keys)

    assert weights.tolist() == [[-float(sum(counts))] * 2] * keys.size
