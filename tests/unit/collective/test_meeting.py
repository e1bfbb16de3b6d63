"""Ranks find each other, or an error says who is missing and where it was tried."""

import socket
import threading

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

from collective import GroupError, MissingRanksError, connect, ring_all_reduce


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_h8_ranks_meet_by_the_address_that_reaches_the_master():
    """Two ranks meet and sum, each reached by its address on the way to the meeting place."""
    master, sums = f"127.0.0.1:{free_port()}", {}

    def run(rank: int) -> None:
        group = connect(rank=rank, world_size=2, master=master)
        tensor = torch.tensor([float(rank + 1)])
        ring_all_reduce(tensor, group)
        sums[rank] = tensor.item()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)

    assert sums == {0: 3.0, 1: 3.0}


def test_h8_a_rank_that_does_not_come_is_named_with_the_address():
    """Rank 0 of 3 waits alone: the error names ranks 1 and 2 and the meeting place."""
    master = f"127.0.0.1:{free_port()}"

    with pytest.raises(
        MissingRanksError, match=rf"rank 1, 2 of 3 did not come to {master}"
    ) as caught:
        connect(rank=0, world_size=3, master=master, connect_s=0.5)

    assert caught.value.missing == (1, 2)


def test_h8_a_wrong_address_of_rank_0_is_an_error_that_shows_it():
    """Nobody listens where rank 1 was told to meet."""
    master = f"127.0.0.1:{free_port()}"

    with pytest.raises(MissingRanksError, match=rf"nobody opened the store at {master}"):
        connect(rank=1, world_size=2, master=master, connect_s=1.0)


def test_what_an_earlier_run_left_in_a_launchers_store_is_not_taken_for_a_rank():
    """The store outlives a run. The next one waits for its own rank 1, or names it."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    master, sums = f"127.0.0.1:{store.port}", {}

    def run(rank: int, addend: float) -> None:
        group = connect(rank=rank, world_size=2, master=master, opens_store=False)
        tensor = torch.tensor([addend])
        ring_all_reduce(tensor, group)
        sums[rank] = tensor.item()

    for addend in (1.0, 2.0):
        threads = [
            threading.Thread(target=run, args=(rank, addend), daemon=True) for rank in (0, 1)
        ]
        threads[0].start()
        before = store.check(["words"]) and store.get("words")
        while not store.check(["words"]) or store.get("words") == before:
            assert threads[0].is_alive()  # rank 0 has looked, and waits
        threads[1].start()
        for thread in threads:
            thread.join(60.0)
        assert sums == {0: 2 * addend, 1: 2 * addend}

    with pytest.raises(MissingRanksError, match="rank 1 of 2 did not come"):
        connect(rank=0, world_size=2, master=master, opens_store=False, connect_s=0.5)


@pytest.mark.parametrize(
    ("rank", "world_size", "master", "text"),
    [
        (2, 2, "127.0.0.1:1", r"rank must be in \[0, 1\], got 2"),
        (0, 2, "nowhere", "must be HOST:PORT, got 'nowhere'"),
    ],
)
def test_numbers_that_are_no_groups_are_refused(rank, world_size, master, text):
    """A rank outside the world, or an address without a port, is refused at once."""
    with pytest.raises(GroupError, match=text):
        connect(rank=rank, world_size=world_size, master=master)
