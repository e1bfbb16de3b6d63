"""A journal's folder: its segments by name, its lock, and how it was left.

Rooms before and after: ``reader`` and ``writer`` find files through this.

``SEQUENCE.journal`` is a segment, named by its first record in 20 digits. ``LOCK`` names the process that
has the folder. ``PLACE.json`` see ``place``. ``STATE.json`` says how the last one left it: while a process runs it says so, with the
machine's boot; so what a power failure may have taken is known from what was promised then.

Owner: the process that holds the lock; ``pserver journal`` reads without it.
"""

import contextlib
import fcntl
import getpass
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from pserver.errors import ConfigError, JournalError

Fsync: TypeAlias = Literal["always", "interval", "off"]
"""When what was written is on the disk: before the answer, soon after it, or when the system likes."""

_SUFFIX = ".journal"
_DIGITS = 20
_LOCK = "LOCK"
_STATE = "STATE.json"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def segment_path(folder: Path, first: int) -> Path:
    """Return the file of the segment that begins with a record."""
    return folder / f"{first:0{_DIGITS}d}{_SUFFIX}"


def segments(folder: Path) -> list[tuple[int, Path]]:
    """Return each segment's first sequence and file, in order.

    Raises:
        JournalError: the folder cannot be listed.
    """
    with named(folder, "list"):
        paths = sorted(folder.glob(f"*{_SUFFIX}"))
    return [(int(path.stem), path) for path in paths if path.stem.isdecimal()]


@contextlib.contextmanager
def named(path: Path, verb: str) -> Iterator[None]:
    """Turn what the system refuses into an error that names file and user."""
    try:
        yield
    except OSError as error:
        raise JournalError(f"{path}: user {getpass.getuser()} cannot {verb}: {error}") from error


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def boot_id() -> str:
    """Return what names the time since the machine was started; empty if it cannot be told."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def lock(folder: Path, *, where: str) -> int:
    """Make the folder if need be, take its lock, and return what holds it: a descriptor.

    Raises:
        ConfigError: it cannot be written, or another process has it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(
            f"{where} {folder}: user {getpass.getuser()} cannot write there: {error}"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        who = os.pread(descriptor, 64, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise ConfigError(
            f"{where} {folder}: another process has it (pid {who}); each shard needs a folder of "
            "its own"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


@dataclass(frozen=True, slots=True)
class State:
    """How a journal was left.

    Attributes:
        status: ``open``: a process wrote, and did not close it; ``closed``: all of it was synced;
            ``failed``: the system could not sync what was written.
        fsync: what that process promised.
        boot: of the machine that it ran on.
    """

    status: Literal["open", "closed", "failed"]
    fsync: Fsync
    boot: str

    def may_have_lost(self, boot: str) -> bool:
        """Return whether acknowledged records may be missing, on a machine with this boot.

        What a process wrote outlives the process. It outlives the machine only once it was synced.
        """
        if self.status == "open":
            return self.fsync != "always" and (not boot or boot != self.boot)
        return self.status == "failed"


def read_state(folder: Path) -> State | None:
    """Return how the journal was left; None if nothing says so."""
    try:
        return State(**json.loads((folder / _STATE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_state(folder: Path, state: State) -> None:
    """Say how the journal is left, durably.

    Raises:
        JournalError: the system refused.
    """
    write_json(folder, _STATE, asdict(state))


def write_json(folder: Path, name: str, facts: Mapping[str, object]) -> None:
    """Write a small file whole or not at all, durably.

    Raises:
        JournalError: the system refused.
    """
    moving = folder / f"{name}.new"
    with named(folder / name, "write"):
        with moving.open("w") as file:
            json.dump(facts, file)
            file.flush()
            os.fsync(file.fileno())
        moving.rename(folder / name)
        sync_folder(folder)
