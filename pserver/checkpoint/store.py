"""Where versions lie, and what every such place can do; ``local`` and ``remote`` are two of them.

Rooms before and after: every room of ``checkpoint`` reads and writes files through a store.

What always holds: what is listed as a version is whole; nothing outside the place is read or written,
whatever name is asked for.
"""

from collections.abc import Sequence
from typing import Protocol

from pserver.checkpoint.manifest import (
    MANIFEST,
    Manifest,
    read_manifest,
    version_name,
    version_number,
)
from pserver.checkpoint.tensors import Encoded
from pserver.errors import CheckpointError

NO_FOLDER = "this shard has no folder for checkpoints; start it with --checkpoint-dir"

_SHOWN = 5  # versions that an error lists


class Store(Protocol):
    """Versions of one cluster. Thread-safe; several processes may write files of one version.

    Every method raises ``CheckpointError`` where the place refuses: no such file, no room, no right.
    """

    @property
    def where(self) -> str:
        """Return what errors call the place."""
        ...

    def versions(self) -> list[str]:
        """Return the names of the whole versions, oldest first."""
        ...

    def has(self, version: str) -> bool:
        """Return whether there is a whole version of that name."""
        ...

    def leftovers(self) -> list[str]:
        """Return the versions that were begun and not published: being saved, or cut off."""
        ...

    def read(self, version: str, name: str) -> bytes:
        """Return a file of a version."""
        ...

    def begin(self, version: str) -> None:
        """Make room for a new version; what an earlier try left is removed."""
        ...

    def has_begun(self, version: str) -> bool:
        """Return whether somebody began this version here."""
        ...

    def write(self, version: str, name: str, data: Encoded) -> None:
        """Write a file of a version that has begun; durable when this returns."""
        ...

    def read_begun(self, version: str, name: str) -> bytes:
        """Return a file of a version that has begun."""
        ...

    def sizes_begun(self, version: str) -> dict[str, int]:
        """Return the bytes of each file of a version that has begun."""
        ...

    def drop_begun(self, version: str, name: str) -> None:
        """Remove a file of a version that has begun."""
        ...

    def publish(self, version: str, manifest: bytes) -> None:
        """Write the manifest, and make the version one that is listed, and the latest."""
        ...

    def abandon(self, version: str) -> None:
        """Remove what was begun. Nothing happens if nothing was."""
        ...

    def remove(self, version: str) -> None:
        """Remove a whole version."""
        ...


def opened(store: Store | None) -> Store:
    """Return where versions lie.

    Raises:
        CheckpointError: there is no such place.
    """
    if store is None:
        raise CheckpointError(NO_FOLDER)
    return store


def choose_version(store: Store, wanted: str) -> str:
    """Return the version that was asked for.

    Args:
        store: where it lies.
        wanted: ``latest``, the newest that holds all rows; a name such as v00000012, or its number.

    Raises:
        CheckpointError: there is no such version; the message lists the last ones that there are.
    """
    versions = store.versions()
    if not versions:
        raise CheckpointError(f"{store.where}: no checkpoint is there")
    if wanted == "latest":
        # LATEST is moved last: a version that was published just before a crash is whole too.
        return latest_of(store, versions)
    name = version_name(int(wanted)) if wanted.isdecimal() and len(wanted) < 9 else wanted
    if name not in versions:
        raise CheckpointError(
            f"{store.where}: no version {wanted!r}; the last ones are "
            f"{', '.join(versions[-_SHOWN:])}"
        )
    return name


def latest_of(store: Store, versions: Sequence[str]) -> str:
    """Return the newest version that holds all rows.

    Raises:
        CheckpointError: there is none, or a newer one is damaged.
    """
    for version in reversed(versions):
        if manifest_of(store, version).is_whole:
            return version
    raise CheckpointError(
        f"{store.where}: no version there has all rows: those of mode base are for serving; name one"
    )


def manifest_of(store: Store, version: str) -> Manifest:
    """Return the manifest of a version.

    Raises:
        CheckpointError: it is damaged, of another version, or of a newer format.
    """
    where = f"{store.where}/{version}"
    manifest = read_manifest(store.read(version, MANIFEST), where=where)
    if manifest.version != version:
        raise CheckpointError(f"{where}: its manifest is of {manifest.version}; was it renamed?")
    return manifest


def next_version(store: Store) -> str:
    """Return the name of the version after the newest."""
    numbers = [version_number(name) or 0 for name in store.versions()]
    return version_name(max(numbers, default=0) + 1)


def checked_version(version: str) -> str:
    """Return the name of a version.

    Raises:
        CheckpointError: it is none, such as a path that leads elsewhere.
    """
    if version_number(version) is None:
        raise CheckpointError(f"a version is called as v00000001, got {version!r}")
    return version


def checked_file(name: str) -> str:
    """Return the name of a file of a version.

    Raises:
        CheckpointError: it is no plain name.
    """
    if "/" in name or "\0" in name or name in ("", ".", ".."):
        raise CheckpointError(f"a file of a version has a plain name, got {name!r}")
    return name
