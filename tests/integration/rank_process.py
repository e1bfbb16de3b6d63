"""One rank in a process of its own, of which one ends at a chosen moment: run by ``test_lost_ranks``.

The words are RANK WORLD_SIZE MASTER LOST MOMENT: rank LOST ends without a word at MOMENT. The others
print the error that they get, and which ranks it names.
"""

import os
import sys
from collections.abc import Sequence

import torch

from collective import MissingRanksError, connect, ring_all_reduce
from collective.neighbours import Neighbours

NUMBERS = 25_000_000
"""100 MB of float32."""

LIMIT_S = 600.0
"""Of an operation: no test waits so long."""

_CONNECT_S = 30.0


def end_in_the_middle() -> None:
    """Let the 10th segment that this rank takes be the last thing that it does."""
    fill, taken = Neighbours.fill, 0

    def counted(self: Neighbours, view: memoryview) -> None:
        nonlocal taken
        fill(self, view)
        taken += 1
        if taken == 10:
            os._exit(3)

    Neighbours.fill = counted  # type: ignore[method-assign]  # this process is about to end


def main(words: Sequence[str]) -> int:
    """Be a rank."""
    rank, world_size, master, lost, moment = words
    is_lost = rank == lost
    torch.set_num_threads(1)
    if is_lost and moment == "before_init":
        os._exit(3)
    try:
        group = connect(
            rank=int(rank),
            world_size=int(world_size),
            master=master,
            timeout_s=LIMIT_S,
            connect_s=_CONNECT_S,
        )
        if is_lost and moment == "after_init":
            os._exit(3)
        if is_lost and moment == "in_the_middle":
            end_in_the_middle()
        ring_all_reduce(torch.ones(NUMBERS), group, what="sum of 100 MB")
    except MissingRanksError as error:
        sys.stdout.write(f"missing {list(error.missing)}: {error}\n")
        return 1
    return 0
