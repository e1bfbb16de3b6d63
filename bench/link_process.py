"""Links in a process of their own, so that what carries bytes takes nothing of the interpreter of a trainer.

Rooms before and after: ``overlap`` starts it and reads where the link listens. The first line on standard input is the
HOST:PORT of the server, each later one a round trip in seconds, and the end of it ends the process.
"""

import contextlib
import dataclasses
import subprocess
import sys
from collections.abc import Iterator

from bench.common import process, wait_ready
from bench.link import Link, Links


class FarLink:
    """The link, from the process that uses it.

    Attributes:
        endpoint: where it listens.
    """

    def __init__(self, child: subprocess.Popen[str], target: str) -> None:
        """Say where it leads, and wait until it listens."""
        self._child = child
        self._say(target)
        self.endpoint = wait_ready(child)

    def set_round_trip(self, seconds: float) -> None:
        """Make it that far, from the next message on."""
        self._say(str(seconds))

    def _say(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{line}\n")
        self._child.stdin.flush()


@contextlib.contextmanager
def far_link(target: str) -> Iterator[FarLink]:
    """Have a link to a server in a process of its own."""
    with process("-m", "bench.link_process", stdin=subprocess.PIPE) as child:
        try:
            yield FarLink(child, target)
        finally:
            assert child.stdin is not None
            child.stdin.close()


def main() -> None:
    """Be the process."""
    with Links([sys.stdin.readline().strip()], Link()) as links:
        print(f"ready on {','.join(links.endpoints)}", flush=True)
        for line in sys.stdin:
            links.shape = dataclasses.replace(links.shape, round_trip_s=float(line))


if __name__ == "__main__":
    main()
