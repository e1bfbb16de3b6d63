"""A rank that ``trainer launch`` starts: sums twice with the others. Run by ``test_launch_ranks``.

The last rank ends between the sums with status 9, the first time, or always with the word ``always``.
"""

import os
import sys

import torch

from collective import connect, ring_all_reduce


def main() -> None:
    """Be a rank."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    master = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    group = connect(
        rank=rank, world_size=world_size, master=master, opens_store=False, connect_s=120.0
    )
    number = torch.ones(1)
    ring_all_reduce(number, group)
    again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0" and "always" not in sys.argv
    if rank == world_size - 1 and not again:
        sys.stderr.write("this rank ends here\n")
        sys.stderr.flush()
        os._exit(9)
    ring_all_reduce(number, group)
    sys.stdout.write(f"sum {number.item()}\n")


if __name__ == "__main__":
    main()
