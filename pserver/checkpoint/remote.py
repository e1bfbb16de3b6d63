"""Versions at a URL that fsspec knows, such as ``s3://bucket/run``: the extra ``remote``, and ``s3`` for S3.

Rooms before and after: see ``store``.

Object stores rename nothing at once, so a version is written under its name, and is one when its manifest is
there, which is written last; LATEST is written after that. What a save that was cut off left has no
manifest: nobody reads it, and the next save of that number, or ``prune``, removes it.

What always holds: a bucket is never made, so a name that was mistyped is an error. Whatever the place refuses
becomes an error that names the URL, the bucket, and as whom the place was asked.
"""

import contextlib
import getpass
from collections.abc import Iterator
from typing import Any

from pserver.checkpoint.manifest import LATEST, MANIFEST, version_number
from pserver.checkpoint.store import checked_file, checked_version
from pserver.checkpoint.tensors import Encoded
from pserver.errors import CheckpointError, ConfigError, PserverError

_BEGUN = "BEGUN"
"""The mark of a version that is being saved."""


class RemoteStore:
    """A folder of a file system of fsspec's."""

    def __init__(self, url: str, files: Any, root: str) -> None:
        """Take the file system; see ``open_remote``.

        Args:
            url: as it was given.
            files: a file system of fsspec's.
            root: the folder in it.
        """
        self._url, self._files, self._root = url, files, root.rstrip("/")
        # Where paths begin with a bucket, it has no folders, and only the bucket could be made.
        self._bucket = "" if root.startswith("/") else root.split("/", 1)[0]

    @property
    def where(self) -> str:
        """Return the URL."""
        return self._url

    def versions(self) -> list[str]:
        """Return the names of the whole versions, oldest first."""
        with self._named("list"):
            return [name for name in self._names() if self._exists(name, MANIFEST)]

    def has(self, version: str) -> bool:
        """Return whether there is a whole version of that name."""
        with self._named("list"):
            self._files.invalidate_cache()
            return self._exists(version, MANIFEST)

    def leftovers(self) -> list[str]:
        """Return the versions that were begun and not published."""
        with self._named("list"):
            return [name for name in self._names() if not self._exists(name, MANIFEST)]

    def read(self, version: str, name: str) -> bytes:
        """Return a file of a version."""
        with self._named("read"):
            data: bytes = self._files.cat_file(self._path(version, name))
        return data

    def begin(self, version: str) -> None:
        """Begin a version with a mark, which tells the other shards that they see the same place."""
        self.abandon(version)
        with self._named("write"):
            self._make_folder(f"{self._root}/{checked_version(version)}")
            self._files.pipe_file(self._path(version, _BEGUN), b"\n")

    def has_begun(self, version: str) -> bool:
        """Return whether the mark is there."""
        with self._named("list"):
            self._files.invalidate_cache()
            return self._exists(version, _BEGUN)

    def write(self, version: str, name: str, data: Encoded) -> None:
        """Write a file; the place keeps it when this returns."""
        with self._named("write"), self._files.open(self._path(version, name), "wb") as file:
            for block in data.blocks:
                file.write(block)

    def read_begun(self, version: str, name: str) -> bytes:
        """Return a file of a version that has begun."""
        return self.read(version, name)

    def sizes_begun(self, version: str) -> dict[str, int]:
        """Return the bytes of each file of a version that has begun."""
        with self._named("list"):
            self._files.invalidate_cache()
            entries = self._files.ls(f"{self._root}/{checked_version(version)}", detail=True)
        return {entry["name"].rsplit("/", 1)[-1]: int(entry["size"]) for entry in entries}

    def drop_begun(self, version: str, name: str) -> None:
        """Remove a file of a version that has begun."""
        with self._named("remove"), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(version, name))

    def publish(self, version: str, manifest: bytes) -> None:
        """Write the manifest, then LATEST."""
        with self._named("write"):
            self._files.pipe_file(self._path(version, MANIFEST), manifest)
            self._files.pipe_file(f"{self._root}/{LATEST}", f"{version}\n".encode())
        self.drop_begun(version, _BEGUN)  # last: whoever sees no mark any more finds the manifest

    def abandon(self, version: str) -> None:
        """Remove what was begun, and nothing that was published."""
        with self._named("remove"), contextlib.suppress(FileNotFoundError):
            if not self._exists(version, MANIFEST):
                self._files.rm(f"{self._root}/{checked_version(version)}", recursive=True)

    def remove(self, version: str) -> None:
        """Remove a version: its manifest first, so that no half of it is ever listed."""
        with self._named("remove"):
            self._files.rm_file(self._path(version, MANIFEST))
            with contextlib.suppress(
                FileNotFoundError
            ):  # the last file of an object store's folder
                self._files.rm(f"{self._root}/{version}", recursive=True)

    def try_writing(self) -> None:
        """Write a file and remove it.

        Raises:
            CheckpointError: the place refused.
        """
        probe = f"{self._root}/.saving-probe"
        with self._named("write"):
            self._make_folder(self._root)
            self._files.pipe_file(probe, b"pserver")
            self._files.rm_file(probe)

    def _make_folder(self, path: str) -> None:
        if not self._bucket:
            self._files.makedirs(path, exist_ok=True)

    def _names(self) -> list[str]:
        """Return everything that is called like a version."""
        self._files.invalidate_cache()
        if not self._files.exists(self._root):
            return []
        names = (
            path.rstrip("/").rsplit("/", 1)[-1] for path in self._files.ls(self._root, detail=False)
        )
        return sorted(name for name in names if version_number(name) is not None)

    def _exists(self, version: str, name: str) -> bool:
        return bool(self._files.exists(self._path(version, name)))

    def _path(self, version: str, name: str) -> str:
        return f"{self._root}/{checked_version(version)}/{checked_file(name)}"

    @contextlib.contextmanager
    def _named(self, verb: str) -> Iterator[None]:
        """Turn what the place refuses into an error that names it, and who asked."""
        try:
            yield
        except PserverError:
            raise
        except Exception as error:  # each file system of fsspec's raises what its libraries do
            bucket = f"bucket {self._bucket}, " if self._bucket else ""
            who = f"{bucket}user {getpass.getuser()}{_credentials(self._files)}"
            raise CheckpointError(f"{self._url} ({who}): cannot {verb} there: {error!r}") from error


def _credentials(files: Any) -> str:
    """Return with which key S3 is asked and where it came from; nothing of other file systems."""
    find = getattr(getattr(files, "session", None), "get_credentials", None)
    if find is None:
        return ""
    from fsspec.asyn import sync

    found = sync(files.loop, find)
    if found is None:
        return ", no credentials in the environment, in ~/.aws or of this machine"
    return f", access key {found.access_key} of {found.method}"


def open_remote(url: str, *, where: str, writes: bool) -> RemoteStore:
    """Return the store of a URL.

    Args:
        url: with a scheme that fsspec knows.
        where: named in an error, such as ``--checkpoint-dir``.
        writes: prove that files can be written there.

    Raises:
        ConfigError: fsspec or what it needs for the scheme is not installed, or the place refused: it, and as
            whom it was asked, are named.
    """
    try:
        import fsspec
    except ImportError as error:
        raise ConfigError(
            f"{where} {url}: URLs need fsspec: pip install 'pserver[remote]'"
        ) from error
    try:
        store = RemoteStore(url, *fsspec.core.url_to_fs(url))
        if writes:
            store.try_writing()
    except (OSError, ValueError, ImportError) as error:
        hint = "; pip install 'pserver[s3]'" if url.startswith("s3:") else ""
        raise ConfigError(f"{where} {url}: cannot be used: {error}{hint}") from error
    except CheckpointError as error:
        raise ConfigError(f"{where} {error}") from error
    return store
