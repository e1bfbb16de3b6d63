"""Versions in a local folder, published by renames.

Rooms before and after: see ``store``.

How a version comes to be. All shards write into ``.saving-VERSION``, each file synced; then the manifest,
synced; then the folder is renamed to its name, and LATEST, which holds that name, is replaced by a
rename. So what is listed is whole at every moment; a save that was cut off leaves a ``.saving-`` folder
that nobody reads and that the next save of that number, or ``prune``, removes.
"""

import contextlib
import errno
import getpass
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pserver.checkpoint.manifest import LATEST, MANIFEST, version_number
from pserver.checkpoint.store import checked_file, checked_version
from pserver.checkpoint.tensors import Encoded
from pserver.errors import CheckpointError, ConfigError

_SAVING = ".saving-"

_REMOVALS = 5  # of a folder in which another shard makes its last file meanwhile


class LocalStore:
    """A folder of this machine, or one that several machines mount."""

    def __init__(self, folder: Path) -> None:
        """Take the folder; see ``open_local``."""
        self._folder = folder

    @property
    def where(self) -> str:
        """Return the folder."""
        return str(self._folder)

    def versions(self) -> list[str]:
        """Return the names of the whole versions, oldest first."""
        with self._named("list"):
            return sorted(
                path.name
                for path in self._folder.iterdir()
                if version_number(path.name) is not None and (path / MANIFEST).is_file()
            )

    def has(self, version: str) -> bool:
        """Return whether there is a whole version of that name."""
        return (self._folder / checked_version(version) / MANIFEST).is_file()

    def leftovers(self) -> list[str]:
        """Return the versions that were begun and not published."""
        with self._named("list"):
            begun = [path.name.removeprefix(_SAVING) for path in self._folder.glob(f"{_SAVING}*")]
        return sorted(name for name in begun if version_number(name) is not None)

    def read(self, version: str, name: str) -> bytes:
        """Return a file of a version."""
        return self._read(self._folder / checked_version(version), name)

    def begin(self, version: str) -> None:
        """Make an empty folder for the version."""
        self.abandon(version)
        with self._named("write"):
            self._saving(version).mkdir()

    def has_begun(self, version: str) -> bool:
        """Return whether the version's folder is there."""
        return self._saving(version).is_dir()

    def write(self, version: str, name: str, data: Encoded) -> None:
        """Write a file and sync it."""
        with self._named("write"):
            _write_synced(self._saving(version) / checked_file(name), *data.blocks)

    def read_begun(self, version: str, name: str) -> bytes:
        """Return a file of a version that has begun."""
        return self._read(self._saving(version), name)

    def sizes_begun(self, version: str) -> dict[str, int]:
        """Return the bytes of each file of a version that has begun."""
        with self._named("list"):
            return {path.name: path.stat().st_size for path in self._saving(version).iterdir()}

    def drop_begun(self, version: str, name: str) -> None:
        """Remove a file of a version that has begun."""
        with self._named("remove"):
            (self._saving(version) / checked_file(name)).unlink(missing_ok=True)

    def publish(self, version: str, manifest: bytes) -> None:
        """Rename the folder, then move LATEST."""
        saving = self._saving(version)
        with self._named("write"):
            _write_synced(saving / MANIFEST, manifest)
            _sync_folder(saving)
            saving.rename(self._folder / version)
            _sync_folder(self._folder)
            moving = self._folder / f"{_SAVING}{LATEST}"
            _write_synced(moving, f"{version}\n".encode())
            moving.rename(self._folder / LATEST)
            _sync_folder(self._folder)

    def abandon(self, version: str) -> None:
        """Remove the folder that was begun; another shard may still be writing there."""
        with self._named("remove"), contextlib.suppress(FileNotFoundError):
            for _ in range(_REMOVALS):
                try:
                    shutil.rmtree(self._saving(version))
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:
                        raise

    def remove(self, version: str) -> None:
        """Remove a version: its manifest first, so that no half of it is ever listed."""
        folder = self._folder / checked_version(version)
        with self._named("remove"):
            (folder / MANIFEST).unlink()
            _sync_folder(folder)
            shutil.rmtree(folder)

    def _read(self, folder: Path, name: str) -> bytes:
        with self._named("read"):
            return (folder / checked_file(name)).read_bytes()

    def _saving(self, version: str) -> Path:
        return self._folder / f"{_SAVING}{checked_version(version)}"

    @contextlib.contextmanager
    def _named(self, verb: str) -> Iterator[None]:
        """Turn what the system refuses into an error that names folder and user."""
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"{self.where}: user {getpass.getuser()} cannot {verb} there: {error}"
            ) from error


def open_local(text: str, *, where: str, writes: bool) -> LocalStore:
    """Return the store of a local folder.

    Args:
        text: the folder.
        where: named in an error, such as ``--checkpoint-dir``.
        writes: make the folder if need be, and prove that files can be written there.

    Raises:
        ConfigError: there is no such folder, or it cannot be written; folder and user are named.
    """
    folder = Path(text)
    if not writes:
        if not folder.is_dir():
            raise ConfigError(f"{where} {folder}: there is no such folder")
        return LocalStore(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f"{_SAVING}probe-{os.getpid()}"
        _write_synced(probe, b"pserver")
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"{where} {folder}: user {getpass.getuser()} cannot write there: {error}"
        ) from error
    return LocalStore(folder)


def _write_synced(path: Path, *blocks: bytes | memoryview) -> None:
    with path.open("wb", buffering=0) as file:
        for block in blocks:
            left = memoryview(block)
            while left:
                left = left[file.write(left) :]
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
