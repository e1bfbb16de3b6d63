"""Eviction and walks while several clients push: no torn row, no row too many, no client that fails."""

import threading
from collections.abc import Callable

import numpy as np
import pytest

import pserver
from pserver.table.eviction import BATCH_MAX
from tests.integration.servers import WAIT_S, Server, endpoints

CLIENTS, TURNS, DIM, LIMIT, HOT, COLD = 4, 30, 8, 3000, 300, 500

FIRST, LR = 0.5, 0.125


def reachable(pushes: int) -> np.ndarray:
    """Return the weights that rows of first weights FIRST have after 0, 1, 2 ... pushes of ones."""
    state = np.arange(1, pushes + 1, dtype=np.float64)  # adagrad: G counts the pushes
    return np.concatenate([[FIRST], FIRST - LR * np.cumsum(1.0 / np.sqrt(state))])


class Pushers:
    """Clients in threads that push hot keys and new ones, and look at every row that they read."""

    def __init__(self, where: str, table: str) -> None:
        """Take the servers and the table."""
        self._where, self._table = where, table
        self._series = reachable(CLIENTS * TURNS)
        self.failures: list[BaseException] = []
        self.stop = threading.Event()

    def run(self, meanwhile: Callable[[], None]) -> None:
        """Let all of them push to the end, and do something meanwhile until they are done."""
        threads = [threading.Thread(target=self._push, args=(n,)) for n in range(CLIENTS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            meanwhile()
        for thread in threads:
            thread.join(WAIT_S)
        if self.failures:
            raise self.failures[0]

    def _push(self, number: int) -> None:
        try:
            rng = np.random.default_rng(number)
            with pserver.connect(self._where) as client:
                for turn in range(TURNS):
                    cold = 10_000 + (turn * CLIENTS + number) * COLD + np.arange(COLD)
                    again = rng.integers(10_000, 10_000 + CLIENTS * TURNS * COLD, 50)
                    keys = np.unique(np.concatenate([np.arange(HOT), cold, again]))
                    self.check(client.pull(self._table, keys))
                    client.push(self._table, keys, np.ones((keys.size, DIM)))
        except BaseException as error:  # noqa: BLE001 - raised again by the main thread
            self.failures.append(error)

    def check(self, rows: np.ndarray) -> None:
        """Assert that each row is of one piece: all its weights after the same number of pushes."""
        assert np.all(rows == rows[:, :1])
        distance = np.abs(rows[:, :1] - self._series[None, :]).min(axis=1)
        assert distance.max() < 1e-4


def spec(**rules: object) -> pserver.TableSpec:
    """Return a table whose rows tell by their weights how often they were pushed."""
    return pserver.TableSpec(
        name="t",
        dim=DIM,
        optimizer=f"adagrad:lr={LR},initial=0,eps=1e-8",
        initializer=f"constant:value={FIRST}",
        **rules,  # type: ignore[arg-type] # of the fields' own types
    )


@pytest.mark.parametrize("rule", ["lru", "lfu"])
def test_c3_rows_are_whole_and_not_too_many_when_four_clients_push(
    pair: list[Server], rule: str
) -> None:
    """Weights and state of each row that is read are of the same age, a row that came back began anew,
    and no shard is ever over its limit between two commands, hot keys included."""
    where = endpoints(pair)
    with pserver.connect(where) as client:
        client.create_table(spec(evict=f"{rule}:rows={LIMIT}"))
        seen: list[int] = []

        def look() -> None:
            seen.extend(stats.tables[0].rows for stats in client.stats())

        pushers = Pushers(where, "t")
        pushers.run(look)

        assert max(seen) <= LIMIT + HOT + COLD + 50  # what one command makes, while it runs
        tables = [stats.tables[0] for stats in client.stats()]
        assert all(LIMIT - 2 * BATCH_MAX < table.rows <= LIMIT for table in tables)
        made = HOT + CLIENTS * TURNS * COLD
        assert sum(table.evicted + table.rows for table in tables) >= made
        hot = client.peek("t", np.arange(HOT))
        pushers.check(hot)
        assert hot.max() <= reachable(CLIENTS * TURNS)[-1] + 1e-4  # none of them ever fell out
        gone = client.peek("t", 10_000 + np.arange(COLD))
        assert np.count_nonzero(gone == FIRST) > 0.5 * gone.size
        client.lifecycle.drop("t")


def test_pushes_go_on_when_a_table_shrinks_and_is_cleared(pair: list[Server]) -> None:
    """Walks and clears in the middle of pushes tear no row, and fail no client."""
    where = endpoints(pair)
    with pserver.connect(where) as client:
        client.create_table(spec(ttl_days=1))
        day = 0

        def keep() -> None:
            nonlocal day
            day += 1
            found = client.lifecycle.shrink("t", day)
            assert not found.is_past
            if day % 5 == 0:
                client.lifecycle.clear("t")

        Pushers(where, "t").run(keep)

        last = client.lifecycle.shrink("t", day + 10)
        rows = sum(stats.tables[0].rows for stats in client.stats())
        assert (last.rows - last.gone, day > 0) == (rows, True)
        client.lifecycle.drop("t")
