"""Pods for tests: network namespaces of this machine on one bridge, each with an address, a name and a hosts file.

It takes the right to make namespaces (root); where that is missing the test is skipped with what was said.

What always holds: what was made is taken away again, whatever a test did to it. Owner: the test's thread.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

_PREFIX = f"pod{os.getpid() % 100_000}"
_HOSTS = Path("/etc/netns")  # where `ip netns exec` takes files of a namespace from


class Net:
    """A bridge in a namespace of its own, and the pods on it."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        """Make the bridge.

        Args:
            stack: takes everything away when it ends.
        """
        self._stack = stack
        self._num = 0
        self._switch = self._namespace()
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")

    def add(self, address: str, *, host_name: str) -> "Pod":
        """Make a pod."""
        namespace = self._namespace()
        device = f"{namespace}v"
        _ip(
            "-n",
            self._switch,
            "link",
            "add",
            device,
            "type",
            "veth",
            "peer",
            "eth0",
            "netns",
            namespace,
        )
        _ip("-n", self._switch, "link", "set", device, "master", "bridge", "up")
        _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        for each in ("lo", "eth0"):
            _ip("-n", namespace, "link", "set", each, "up")
        return Pod(namespace, host_name)

    def _namespace(self) -> str:
        name = f"{_PREFIX}n{self._num}"
        self._num += 1
        folder = _HOSTS / name
        folder.mkdir(parents=True)
        self._stack.callback(_remove_folder, folder)
        (folder / "hosts").write_text("127.0.0.1 localhost\n", encoding="utf-8")
        _ip("netns", "add", name)
        self._stack.callback(_remove, name)
        return name


class Pod:
    """A namespace with an address.

    Attributes:
        command: that runs another one in it, as the same process.
    """

    def __init__(self, namespace: str, host_name: str) -> None:
        """Name it."""
        self._namespace = namespace
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host_name]
        self.command = ["ip", "netns", "exec", namespace, *named]

    def knows(self, addresses: Mapping[str, str]) -> None:
        """Let names stand for addresses in it, from now on."""
        text = "".join(f"{address} {name}\n" for name, address in addresses.items())
        # Written in place: what runs there sees this very file.
        (_HOSTS / self._namespace / "hosts").write_text(text, encoding="utf-8")

    def remove(self) -> None:
        """Take it away: nothing has its address any more."""
        _remove(self._namespace)


@contextlib.contextmanager
def net() -> Iterator[Net]:
    """Have a net without pods; skip the test where it is not permitted."""
    with contextlib.ExitStack() as stack:
        try:
            made = Net(stack)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            pytest.skip(f"needs the right to make network namespaces: {said.strip()}")
        yield made


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _remove_folder(folder: Path) -> None:
    """Remove the files of a namespace, and the folder of all of them if it is empty then."""
    shutil.rmtree(folder)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def _remove(namespace: str) -> None:
    """Remove a namespace, if it is still there."""
    if Path("/run/netns", namespace).exists():
        _ip("netns", "del", namespace)
