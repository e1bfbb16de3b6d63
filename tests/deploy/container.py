"""Processes as a container engine runs them, without an engine: what ``deploy/Dockerfile`` says, by ``unshare``.

What always holds inside: the process is number 1 of its own namespace and user 10001 without capabilities; nothing
of the file system can be written to but ``/tmp``, ``WORK`` and, if it is said, ``CACHE``; there is no home, and no
variable but those of the image. Checkout and interpreter are there read-only, wherever they lie. The network is
the machine's, so that tests reach what listens on loopback. All of it goes with the process.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from typing_extensions import override

from tests.deploy.manifests import DEPLOY, ROOT, docker_steps
from tests.integration.servers import Server

USER = 10001
CACHE, WORK = "/mnt/cache", "/mnt/work"
STEPS = list(docker_steps((DEPLOY / "Dockerfile").read_text(encoding="utf-8")))
_COVERED = {"/tmp": "1777", "/mnt": "755"}
_UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child")


def why_not() -> str:
    """Return why nothing can be contained here; empty: it can."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "chroot", "mount"))):
        return "needs root, unshare, chroot and mount"
    tried = subprocess.run(
        [*_UNSHARE, "mount", "--make-rprivate", "/"], capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else "namespaces are not allowed here"


def bake_command() -> list[str]:
    """Return the command of the image that makes its compile cache, with this interpreter."""
    (words,) = (
        json.loads(text)
        for stage, word, text in STEPS
        if (stage, word) == ("pserver", "RUN") and text[0] == "["
    )
    assert words[0] == "python"
    return [sys.executable, *words[1:]]


def contained(
    command: Sequence[str], *, folder: Path, cache: Path, is_cache_fixed: bool = False
) -> list[str]:
    """Return the command that runs another one in a container.

    Args:
        command: its process 1.
        folder: what ``WORK`` is there; user 10001 may write to it.
        cache: what ``CACHE`` is there.
        is_cache_fixed: whether it is read-only.
    """
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        **_image_variables(),
        "NUMBA_CACHE_DIR": CACHE,
    }
    settings = [f"{name}={value}" for name, value in variables.items()]
    binds = [(str(folder), WORK, ""), (str(cache), CACHE, "ro" if is_cache_fixed else "")]
    stage = folder.with_name(f"{folder.name}-root")
    stage.mkdir(exist_ok=True)
    script = "\n".join(
        [*_mounts(stage, binds), f'exec chroot --userspec={USER}:{USER} --groups= "$root/new" "$@"']
    )
    inner = ["env", "-i", "-C", WORK, *settings, *command]
    return [*_UNSHARE, "bash", "-euc", script, "bash", *inner]


def _image_variables() -> dict[str, str]:
    (text,) = (arguments for stage, word, arguments in STEPS if (stage, word) == ("base", "ENV"))
    return dict(re.findall(r"(\w+)=(\S+)", text))


def _needed() -> list[str]:
    """Return the folders of interpreter and checkout, none below another."""
    found = {str(Path(path).resolve()) for path in (sys.prefix, sys.base_prefix, ROOT)} | {
        sys.prefix
    }
    return sorted(
        path for path in found if not any(path.startswith(f"{other}/") for other in found)
    )


def _covers(needed: Sequence[str]) -> dict[str, str]:
    """Return the folders that something else lies over, and their modes: some, and those nobody may go through."""
    closed = {
        str(parent): "755"
        for path in needed
        for parent in Path(path).parents
        if not parent.stat().st_mode & 0o001
    }
    found = {**closed, **_COVERED}
    return {
        path: mode
        for path, mode in found.items()
        if not any(path.startswith(f"{other}/") for other in found)
    }


def _mounts(stage: Path, binds: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """Yield the lines of a script that makes a root for the process under ``$root/new``."""
    needed = _needed()
    covers = _covers(needed)
    yield f"root={shlex.quote(str(stage))}; mount --make-rprivate /; mount -t tmpfs tmpfs $root; mkdir $root/new"
    held = [
        (path, path, "ro")
        for path in needed
        if any(path.startswith(f"{cover}/") for cover in covers)
    ]
    for number, (outside, _, _) in enumerate([*held, *binds]):
        yield f"mkdir $root/{number}; mount --bind {shlex.quote(outside)} $root/{number}"
    yield "mount --rbind / $root/new"
    for path, mode in covers.items():
        yield f"mount -t tmpfs -o mode={mode} tmpfs $root/new{path}"
    for number, (_, inside, how) in enumerate([*held, *binds]):
        place = f"$root/new{shlex.quote(inside)}"
        yield f"mkdir -p {place}; mount --bind $root/{number} {place}"
        if how:
            yield f"mount -o remount,bind,{how} {place}"
    yield "mount -o remount,ro $root/new/mnt; mount -t proc proc $root/new/proc; mount -o remount,bind,ro $root/new"


class Contained(Server):
    """``pserver serve`` as process 1 of a container."""

    def __init__(
        self, *flags: str, folder: Path, cache: Path, is_cache_fixed: bool = False
    ) -> None:
        """Start it; see ``contained``."""
        serve = [sys.executable, "-m", "pserver", "serve", "--bind", "127.0.0.1:0", *flags]
        super().__init__(
            command=contained(serve, folder=folder, cache=cache, is_cache_fixed=is_cache_fixed)
        )

    @property
    def process_1(self) -> int:
        """Return the number that this machine has for process 1, which must be there."""
        (child,) = self._children()
        return child

    def _children(self) -> list[int]:
        """Return the processes that ``unshare`` has: none, or process 1."""
        try:
            text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii")
        except FileNotFoundError:
            return []
        return [int(number) for number in text.split()]

    def facts(self) -> dict[str, list[str]]:
        """Return what the system says of process 1."""
        text = Path(f"/proc/{self.process_1}/status").read_text(encoding="ascii")
        return {line.split(":")[0]: line.split(":")[1].split() for line in text.splitlines()}

    @override
    def send(self, number: signal.Signals) -> None:
        """Send a signal to process 1, as an engine does."""
        os.kill(self.process_1, number)

    @override
    def end(self) -> None:
        """End process 1, and with it all of the container: the system lets it outlive ``unshare``, since its user changed."""
        for process in self._children():
            os.kill(process, signal.SIGKILL)
        super().end()
