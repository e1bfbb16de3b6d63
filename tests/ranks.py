"""Ranks as threads of one process: real gloo connections, no process to start."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch._C._distributed_c10d import HashStore

from collective import Group
from collective.roll import Roll

T = TypeVar("T")

_seeding = threading.Lock()

LIMIT_S = 60.0


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make first weights from a seed: ranks are threads, and torch's generator is the process's."""
    with _seeding:
        torch.manual_seed(seed)
        yield


def run_ranks(
    world_size: int, work: Callable[[Group], T], *, timeout_s: float = 30.0
) -> list[T | BaseException]:
    """Run ``work`` in each rank of a group and return what each returned or raised, by rank."""
    store = HashStore()
    outcomes: list[T | BaseException] = [AssertionError("it did not end")] * world_size

    def run(rank: int) -> None:
        try:
            group = Group(
                Roll(store, rank=rank) if world_size > 1 else None,
                rank=rank,
                ranks=range(world_size),
                address="127.0.0.1",
                timeout_s=timeout_s,
            )
            outcomes[rank] = work(group)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            outcomes[rank] = error

    threads = [
        threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    return outcomes


def results(world_size: int, work: Callable[[Group], T]) -> list[T]:
    """Return what ``work`` returned in each rank; raise the first error."""
    found: list[T] = []
    for outcome in run_ranks(world_size, work):
        if isinstance(outcome, BaseException):
            raise outcome
        found.append(outcome)
    return found
