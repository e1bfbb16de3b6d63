"""Two nodes joined by a slow link: network namespaces of this machine, for ``collective``.

Each node has one end of a pair of devices, behind a token bucket of a rate. Ranks of a node reach
each other by the node's own loopback and are not slowed. It takes the right to make namespaces and queueing
disciplines (root); where that is missing ``RefusedError`` says so.

What always holds: what was made is taken away again. Owner: the benchmark's process.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator

RATE = "100mbit"
MASTER_HOST = "10.77.0.1"

_NODES = 2
_PREFIX = f"slow{os.getpid() % 10_000}"


class RefusedError(Exception):
    """Namespaces or token buckets are not permitted here."""


@contextlib.contextmanager
def nodes(rate: str) -> Iterator[list[list[str]]]:
    """Have two nodes; give for each the command that runs another one inside.

    Args:
        rate: of the link, each way, in the words of ``tc``.

    Raises:
        RefusedError: as of the class.
    """
    names = [f"{_PREFIX}n{number}" for number in range(_NODES)]
    devices = [f"{_PREFIX}v{number}" for number in range(_NODES)]
    with contextlib.ExitStack() as stack:
        try:
            for name in names:
                _command("ip", "netns", "add", name)
                stack.callback(_command, "ip", "netns", "del", name)
            _command("ip", "link", "add", devices[0], "type", "veth", "peer", "name", devices[1])
            for number, (name, device) in enumerate(zip(names, devices, strict=True)):
                _command("ip", "link", "set", device, "netns", name)
                address = f"10.77.0.{number + 1}/24"
                _command("ip", "-n", name, "addr", "add", address, "dev", device)
                _command("ip", "-n", name, "link", "set", "lo", "up")
                _command("ip", "-n", name, "link", "set", device, "up")
                bucket = ("tbf", "rate", rate, "burst", "64kb", "latency", "400ms")
                _command("tc", "-n", name, "qdisc", "add", "dev", device, "root", *bucket)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            raise RefusedError(said.strip()) from error
        yield [["ip", "netns", "exec", name] for name in names]


def _command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
