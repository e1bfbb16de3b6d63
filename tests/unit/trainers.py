"""Several trainers in one process: a client and a place in the group each, a thread each."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import pserver

WAIT_S = 60.0
"""The longest that a test waits for what must come."""

UNIT = "sgd:lr=1"
"""A step whose result is known by hand: weights lose the gradient."""


def unit_table(name: str = "t", *, dim: int = 1, optimizer: str = UNIT) -> pserver.TableSpec:
    """Return a table whose first weights are 0."""
    return pserver.TableSpec(name=name, dim=dim, optimizer=optimizer, initializer="zeros")


def grads(keys: Any, values: Any) -> tuple[Any, Any, Any]:
    """Return gradients of distinct keys, a row of values each."""
    return (
        np.array(keys, np.uint64),
        np.array(values, np.float32).reshape(-1),
        np.empty(0, np.uint32),
    )


@dataclass
class Trainer:
    """A client and its place in a group."""

    client: pserver.Client
    group: pserver.Group

    def pull(self, keys: Any, *, round_number: int = 0, table: str = "t") -> np.ndarray:
        """Return the rows of some keys."""
        wanted = {table: np.array(keys, np.uint64)}
        return self.group.start_pull(wanted, round_number=round_number).result()[0]

    def push(
        self,
        gradients: Mapping[str, tuple[Any, Any, Any]],
        *,
        round_number: int = 0,
        samples: int = 1,
        dense: Mapping[str, Any] | None = None,
    ) -> pserver.PendingPush:
        """Send one step."""
        step = pserver.Step(dense or {}, {}, round_number, samples, is_everywhere=True)
        return self.group.start_push(gradients, step)


@contextlib.contextmanager
def joined(
    cluster: pserver.Cluster,
    count: int,
    *,
    client: pserver.ClientSettings | None = None,
    **group: Any,
) -> Iterator[list[Trainer]]:
    """Yield trainers 0 to count - 1 of one group; ``group`` are its settings."""
    with contextlib.ExitStack() as stack:
        settings = client or pserver.ClientSettings(timeout_s=30.0)
        clients = [stack.enter_context(cluster.connect(settings=settings)) for _ in range(count)]
        made = []
        for trainer_id, connected in enumerate(clients):
            wanted = {"trainers": count, "trainer_id": trainer_id, **group}
            made.append(Trainer(connected, connected.join(pserver.GroupSettings(**wanted))))
        yield made


def at_once(*works: Callable[[], object]) -> list[Any]:
    """Run functions in threads of their own and return what they returned.

    Raises what the first one raised; all of them have ended then.
    """
    results: list[Any] = [None] * len(works)
    errors: list[BaseException] = []

    def run(place: int, work: Callable[[], object]) -> None:
        try:
            results[place] = work()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in threads), "a trainer did not end"
    if errors:
        raise errors[0]
    return results


def versions(client: pserver.Client) -> list[dict[str, int]]:
    """Return the version of every table of each shard."""
    return [
        {t.table: t.version for t in [*shard.tables, *shard.dense_tables]}
        for shard in client.stats()
    ]
