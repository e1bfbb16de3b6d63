"""A version's files from a server to its standby, which begins with it where the journal does not reach back.

Rooms before and after: ``feed`` of the server answers with ``Copies``; ``standby`` calls ``copy_version``, and
``recovery`` loads what came, now and after restarts.

What always holds: only versions that cover records of the journal are sent, and only files that their
manifests name. The copy is a place of versions in the standby's journal folder: whole or not listed, each file
checked against its manifest. What the server may not drop meanwhile, ``feed`` knows by the position that
``fill`` returns. Owner: the event loop; files are read and written in other threads.
"""

import asyncio
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import structlog

from pserver.checkpoint.load import chain_of, files_of_shard
from pserver.checkpoint.local import LocalStore, open_local
from pserver.checkpoint.manifest import MANIFEST, FileEntry, Manifest, read_manifest
from pserver.checkpoint.tensors import Encoded, encoded
from pserver.config import PART_BYTES_MAX
from pserver.deadline import Deadline
from pserver.errors import CheckpointError
from pserver.server.recovery import Recovery
from pserver.server.save import Shard
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small, parse_small

log = structlog.get_logger(__name__)

BASE: Final = "base"
"""The folder of copied versions in a journal's folder."""

_ANSWER_S = 30.0  # for a part of a file, which the server reads whole


class Asked(Protocol):
    """The way to the server that has the version."""

    @property
    def endpoint(self) -> str:
        """Return HOST:PORT."""
        ...

    async def call(self, method: str, message: bytes, *, deadline: Deadline) -> bytes:
        """Send one request and return the reply."""
        ...


@dataclass(slots=True)
class Copies:
    """What a server sends of its versions.

    Attributes:
        recovery: knows which one covers the journal.
    """

    recovery: Recovery
    _names: dict[str, set[str]] = field(
        default_factory=dict
    )  # files by version, of the chain told last
    _position: int = 0  # that the chain covers
    _read: tuple[str, str, bytes] = ("", "", b"")  # the file read last

    async def fill(self, reply: pb.FeedReply, request: pb.FeedRequest, number: int) -> int:
        """Put the newest version's name, or a part of a file, into a reply.

        Returns:
            The last record that the version covers.

        Raises:
            CheckpointError: there is no such version or file, or it cannot be read.
        """
        if not request.version:
            reply.version = await asyncio.to_thread(self._choose, number)
            return self._position
        if request.file not in self._names.get(request.version, ()):
            raise CheckpointError(
                f"copy: {request.version!r} has no file {request.file!r} for a standby; ask for the newest"
            )
        data = await asyncio.to_thread(self._bytes, number, request.version, request.file)
        end = request.offset + PART_BYTES_MAX
        reply.data, reply.more = data[request.offset : end], end < len(data)
        return self._position

    def _choose(self, number: int) -> str:
        """Choose the version that is sent, and list its files and those of the versions under it."""
        found = self.recovery.covering(number)
        if found is None:
            raise CheckpointError(
                "copy: the journal does not reach back to record 1, and no version here covers those "
                "before; save one (`pserver checkpoint save`)"
            )
        shard = self.recovery.shard
        self._names = {
            manifest.version: {MANIFEST}
            | {file.name for file in files_of_shard(manifest, shard.shard, shard.num_shards)}
            for manifest in chain_of(found.store, found.manifest.version)
        }
        self._position, self._read = found.position, ("", "", b"")
        return found.manifest.version

    def _bytes(self, number: int, version: str, name: str) -> bytes:
        """Return a file; the last one is kept, since it is asked for part after part."""
        if self._read[:2] != (version, name):
            found = self.recovery.covering(number)
            assert found is not None  # it was told
            self._read = (version, name, found.store.read(version, name))
        return self._read[2]


async def copy_version(primary: Asked, number: int, base: Path, shard: Shard) -> LocalStore:
    """Copy the newest version that covers a journal, and those under it; return where they lie.

    Args:
        primary: the server.
        number: of its journal.
        base: the folder; what is in it is removed.
        shard: whose files are copied.

    Raises:
        CheckpointError: there is none, or it was damaged or removed meanwhile; nothing is left that counts.
    """
    await asyncio.to_thread(shutil.rmtree, base, ignore_errors=True)
    store = open_local(str(base), where="--journal", writes=True)

    async def part(version: str = "", file: str = "", offset: int = 0) -> pb.FeedReply:
        request = pb.FeedRequest(
            journal=number, copy=True, version=version, file=file, offset=offset
        )
        deadline = Deadline.after(_ANSWER_S)
        answer = await primary.call("Feed", build_small(request), deadline=deadline)
        return parse_small(pb.FeedReply, answer)

    async def whole(version: str, file: str) -> bytes:
        data, more = b"", True
        while more:
            reply = await part(version, file, len(data))
            data, more = data + reply.data, reply.more
        return data

    async def one(version: str) -> Manifest:
        text = await whole(version, MANIFEST)
        manifest = read_manifest(text, where=f"{primary.endpoint}: {version}")
        if manifest.base is not None:
            await one(manifest.base)
        await asyncio.to_thread(store.begin, version)
        for entry in files_of_shard(manifest, shard.shard, shard.num_shards):
            data = encoded([memoryview(await whole(version, entry.name))])
            _check(data, entry, where=primary.endpoint)
            await asyncio.to_thread(store.write, version, entry.name, data)
        await asyncio.to_thread(store.publish, version, text)
        return manifest

    newest = (await part()).version
    manifest = await one(newest)
    log.info("copied a version", version=newest, of=primary.endpoint, files=len(manifest.files))
    return store


def _check(data: Encoded, entry: FileEntry, *, where: str) -> None:
    """Refuse a file that is not what the manifest says."""
    if data.num_bytes != entry.bytes or data.sha256 != entry.sha256:
        raise CheckpointError(f"{where}: {entry.name} came damaged; start this standby again")
