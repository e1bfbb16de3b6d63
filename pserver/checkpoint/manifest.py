"""MANIFEST.json: what a version holds, and the proof that it is whole.

Rooms before and after: ``publish`` writes it last; ``load``, ``tools`` and ``export`` read it first.

What always holds: a folder without a manifest is no version; every other file of a version is named in
it with length and SHA-256. A field is never given another meaning: a change that a reader must know of
raises ``FORMAT``, and newer formats are refused.
"""

import json
import re
from typing import Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from pserver.errors import CheckpointError

FORMAT = 1
"""The number of this format."""

MANIFEST = "MANIFEST.json"
LATEST = "LATEST"

Mode: TypeAlias = Literal["full", "delta", "base", "batch", "revert"]
"""Which rows were written: all (full, batch, revert), those that changed since the base (delta), or those
for serving (base): nothing else than a server that only reads takes such a version."""

MODES: tuple[Mode, ...] = get_args(Mode)

_VERSION = re.compile(r"v(\d{8})")


def version_name(number: int) -> str:
    """Return the folder of a version.

    >>> version_name(12)
    'v00000012'
    """
    return f"v{number:08d}"


def version_number(name: str) -> int | None:
    """Return the number of a version's folder, or None if it is no such name."""
    match = _VERSION.fullmatch(name)
    return int(match[1]) if match else None


class _Entry(BaseModel):
    """Base of the manifest's parts: immutable; what a later release adds is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class FileEntry(_Entry):
    """One file.

    Attributes:
        name: in the version's folder.
        kind: ``rows`` of a sparse table, ``filter``: what its admission counted, ``dense``: a slice
            of a dense table, ``shard``: what a shard remembers beside tables, ``trainer``: a
            trainer's part.
        shard: who wrote it; -1 where a trainer or a tool did.
        table: of ``rows``, ``filter`` and ``dense``.
        bytes, sha256: of the whole file.
        rows: in it; floats, where it is dense.
        erased: keys named in it as erased since the base.
        partitions: [begin, end) of the rows; of a dense slice, of its floats.
    """

    name: str
    kind: Literal["rows", "filter", "dense", "shard", "trainer"]
    shard: int
    table: str = ""
    bytes: int
    sha256: str
    rows: int = 0
    erased: int = 0
    partitions: tuple[int, int] = (0, 0)


class TableEntry(_Entry):
    """One table.

    Attributes:
        kind: which of the two.
        spec: every field of its spec.
        columns: dtype and items a row of each column; of a dense table none.
        rows: alive at the cut over all shards; floats of a dense table.
        versions: pushes applied, by shard.
        epochs: of a dense table: how often it got first values, by shard.
        numbers: what eviction and shrink remember beside rows, by shard.
    """

    kind: Literal["sparse", "dense"]
    spec: dict[str, Any]
    columns: dict[str, tuple[str, int]] = {}
    rows: int
    versions: list[int]
    epochs: list[int] = []
    numbers: list[dict[str, int]] = []

    @property
    def name(self) -> str:
        """Return the table's name."""
        return str(self.spec["name"])


class ShardEntry(_Entry):
    """What one shard says of its part.

    Attributes:
        shard: its index.
        incarnation: of the process that wrote.
        seconds: from the cut to the last file.
        longest_pause_s: the longest that the save held up requests in one go.
        journal: the journal's position at the cut: every entry before it is in this version. None
            where there was no journal.
    """

    shard: int
    incarnation: int
    seconds: float
    longest_pause_s: float
    journal: dict[str, int] | None = None


class Part(_Entry):
    """What one shard brings to a manifest; written into the begun version as ``part_name``.

    ``save_id`` is drawn by who saves: parts of two saves of one number never make a version.
    """

    save_id: str = ""
    shard: ShardEntry
    tables: list[TableEntry]
    files: list[FileEntry]


def part_name(shard: int) -> str:
    """Return the file in which a shard leaves its part until the manifest is written."""
    return f"part-{shard:05d}.json"


class Manifest(_Entry):
    """All that is known of a version.

    Attributes:
        format: ``FORMAT`` of who wrote it.
        version: the folder's name.
        mode: why its rows were written.
        base: of a delta: the version that it changes; its rows and erased keys are applied on top.
        base_sha256: of that version's manifest.
        epoch: the last one that the cut includes; rows carry it or an earlier one.
        num_shards, num_partitions: who wrote.
        created: ISO 8601, UTC.
        product: the release that wrote it.
        cut: what is guaranteed of several shards; see ARCHITECTURE.
        tables, shards, files: its parts.
        trainers: what trainers said with it, by their names: steps, data positions.
        round: of a sync group: the rounds before it are in, on all shards; 0 without one.
        pushes: of another group: of each trainer, by its uuid, how many pushes are in, on all shards.
        positions: of such a group: of each trainer, by its id, how many steps of its data are in.
    """

    format: int = FORMAT
    version: str
    mode: Mode
    base: str | None = None
    base_sha256: str | None = None
    epoch: int
    num_shards: int
    num_partitions: int
    created: str
    product: str
    cut: str = ""
    tables: list[TableEntry]
    shards: list[ShardEntry]
    files: list[FileEntry]
    trainers: dict[str, dict[str, Any]] = {}
    round: int = 0
    pushes: dict[str, int] = {}
    positions: dict[str, int] = {}

    @property
    def is_whole(self) -> bool:
        """Return whether it holds all rows, alone or with its bases."""
        return self.mode != "base"

    @property
    def num_rows(self) -> int:
        """Return the rows that its files hold."""
        return sum(file.rows for file in self.files if file.kind == "rows")

    @property
    def num_bytes(self) -> int:
        """Return the bytes of its files."""
        return sum(file.bytes for file in self.files)

    def table(self, name: str) -> TableEntry:
        """Return the table of that name.

        Raises:
            CheckpointError: the version has none; the message lists those that it has.
        """
        for entry in self.tables:
            if entry.name == name:
                return entry
        names = ", ".join(entry.name for entry in self.tables) or "no tables"
        raise CheckpointError(f"{self.version}: no table {name!r}; it has {names}")

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return (self.model_dump_json(indent=1) + "\n").encode()


def read_manifest(data: bytes, *, where: str) -> Manifest:
    """Return the manifest that some bytes hold.

    Raises:
        CheckpointError: they are damaged, or of another format.
    """
    try:
        content = json.loads(data)
        number = content["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{where}: {MANIFEST} is damaged: {error!r}") from error
    if number != FORMAT:
        raise CheckpointError(
            f"{where}: format {number}; this release reads format {FORMAT}: take a newer release"
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        raise CheckpointError(f"{where}: {MANIFEST} is damaged: {error}") from error
