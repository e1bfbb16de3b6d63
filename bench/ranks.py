"""Ranks of a benchmark: a process each, here or in network namespaces; rank 0's figures come back as JSON.

Rooms before and after: ``collective`` names one of its functions, ``links`` says where ranks run.

``python -m bench.ranks WORK RANK WORLD_SIZE MASTER`` is one rank: it runs the function WORK of
``bench.collective`` with its group. Owner: the benchmark's process.
"""

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

_CONNECT_S = 300.0
_LIMIT_S = 1800.0


def free_port() -> int:
    """Return a port of this machine that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(work: str, *, inside: Sequence[Sequence[str]], master: str) -> dict[str, Any]:
    """Run a function in all ranks and return what rank 0 returned.

    Args:
        work: name of a function of ``bench.collective`` that takes the group.
        inside: for each rank, the command that its own stands behind; empty: this machine's own.
        master: HOST:PORT to meet at.
    """
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank, prefix in enumerate(inside):
            own = ["-m", "bench.ranks", work, str(rank), str(len(inside)), master]
            process = subprocess.Popen(
                [*prefix, sys.executable, *own], stdout=subprocess.PIPE, text=True
            )
            stack.callback(process.wait, 30)
            stack.callback(process.kill)
            ranks.append(process)
        told = [rank.communicate(timeout=_LIMIT_S)[0] for rank in ranks]
        if failed := [n for n, rank in enumerate(ranks) if rank.returncode]:
            raise RuntimeError(f"{work}: ranks {failed} failed; see above")
    found: dict[str, Any] = json.loads(told[0].splitlines()[-1])
    return found


def main() -> None:
    """Be a rank."""
    import torch

    from bench import collective as works
    from collective import connect

    work, rank, world_size, master = sys.argv[1:]
    torch.set_num_threads(1)
    group = connect(rank=int(rank), world_size=int(world_size), master=master, connect_s=_CONNECT_S)
    found = getattr(works, work)(group)
    group.barrier()
    if group.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
