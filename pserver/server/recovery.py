"""Goes on with a shard where its last process stopped: a checkpoint, and the journal behind it.

Rooms before and after: ``app`` calls ``begin`` before the port is opened; ``load`` brings tables back,
``memory`` the rest; records are applied by the very functions that applied them first.

    =======================  =====================================================================
    the journal's folder     what ``--restore`` means
    =======================  =====================================================================
    is empty                 latest, a name or a number: load that version, if there is one at all;
                             nothing or none: begin without tables
    holds records            latest: the newest version that this journal covers, and all records
                             behind it; without one, all records. A name or a number: that version,
                             and all records behind it. Nothing or none: refused
    =======================  =====================================================================

What always holds:
    * After a restart the shard is the same incarnation, so trainers go on, if every acknowledged record
      is there; else it is another one, and they are refused with ``RestartedError``.
    * Trainers that were live get a whole lease from the restart on.
Owner: the event loop, before there are requests; records are applied in the owner thread.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import structlog

from pserver.checkpoint.load import Loaded
from pserver.checkpoint.manifest import Manifest
from pserver.checkpoint.store import Store, choose_version, manifest_of
from pserver.errors import ConfigError, JournalError, PserverError
from pserver.journal.records import Record
from pserver.journal.writer import Journal
from pserver.server.group import Group
from pserver.server.lifecycle import LifecycleMethods
from pserver.server.load import Loads
from pserver.server.memory import Memory
from pserver.server.methods import Own, kind_name
from pserver.server.recording import Recorder, number_body
from pserver.server.save import Shard
from pserver.server.waiting import NotYet

log = structlog.get_logger(__name__)

_TELL_EVERY_S = 5.0
_TURN_S = 0.5  # signals are heard between two turns


@dataclass(slots=True)
class Replayed:
    """What a replay did.

    Attributes:
        records, bytes: that were applied.
        refused: of them, those that were refused, as they were at first.
        seconds: that it took.
    """

    records: int = 0
    bytes: int = 0
    refused: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Covering:
    """A version that covers a journal's records up to a position, and where it lies."""

    store: Store
    manifest: Manifest
    position: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """Brings one shard back.

    Attributes:
        shard: whose it is.
        store: where versions lie; None: nowhere.
        loads: loads them.
        recorder: is attached to the journal at the end.
        memory: beside the tables.
        group, lifecycle: go on with what time does.
        replays: what applies each kind of record.
        become: takes an incarnation.
        bases: where else versions lie: what a standby copied to begin with.
    """

    shard: Shard
    store: Store | None
    loads: Loads
    recorder: Recorder
    memory: Memory
    group: Group
    lifecycle: LifecycleMethods
    replays: Mapping[int, Callable[[bytes], object]]
    become: Callable[[int], None]
    bases: list[Store] = field(default_factory=list)

    async def begin(self, journal: Journal, restore: str | None) -> list[str]:
        """Bring the shard to where the journal ends, and record from there on.

        Args:
            journal: of the shard.
            restore: what to load; None for nothing.

        Returns:
            Lines that say what was done.

        Raises:
            ConfigError: there are records, and nothing says that they are wanted.
            CheckpointError, JournalError: a version or a record is missing or damaged.
        """
        try:
            return await self._begin(journal, restore)
        except BaseException:
            if self.recorder.journal is None:  # else the shard closes it
                journal.close()
            raise

    async def _begin(self, journal: Journal, restore: str | None) -> list[str]:
        """Begin, as ``begin``."""
        if journal.position == 0:
            return await self._begin_anew(journal, restore)
        if restore is None:
            raise ConfigError(
                f"--journal {journal.where}: holds {journal.position} records, and the shard would "
                "begin without them; --restore latest goes on with them, another folder begins anew"
            )
        lines = await self._come_back(journal, restore)
        await self._attach(journal)
        if journal.may_have_lost:
            await self.shard.executor.run(self._draw_incarnation)
            lines.append(
                f"{journal.where}: the machine stopped before all was synced, so acknowledged pushes "
                "may be missing; trainers of before are refused and have to start again"
            )
        await asyncio.to_thread(journal.begin)
        return lines

    async def stand_by(self, journal: Journal) -> list[str]:
        """Bring a standby to where its journal ends; ``apply`` goes on, and ``live`` makes it the shard.

        Raises:
            CheckpointError, JournalError: a version or a record is missing or damaged.
        """
        if journal.position == 0:
            self.lifecycle.hold_walks()
            self.become(journal.begun_by)
            lines = []
        else:
            lines = await self._come_back(journal, "latest")
        await asyncio.to_thread(journal.begin)
        return lines

    async def live(self, journal: Journal) -> None:
        """Make a standby the shard."""
        await self._attach(journal)

    async def _come_back(self, journal: Journal, restore: str) -> list[str]:
        """Load a version and apply the records behind it; return lines that say so."""
        lines = []
        chosen = await asyncio.to_thread(self._choose, journal, restore)
        after = 0
        self.become(journal.begun_by)
        self.lifecycle.hold_walks()
        if chosen is not None:
            base = chosen.store if chosen.store in self.bases else None
            loaded = await self.loads.restore(chosen.manifest.version, base=base)
            lines.append(f"restored {chosen.store.where}/{loaded.line()}")
            after = await self.shard.executor.run(lambda: self._take_memory(loaded))
            if after > journal.position:  # what the version covers was lost here, or comes later
                journal.skip_to(after)
        replayed = await self._replay(journal, after)
        rows = sum(table.num_rows for table in self.shard.registry)
        lines.append(
            f"replayed {journal.where}: records {replayed.records:,} of {after + 1} to "
            f"{journal.position}, refused as before {replayed.refused:,}, rows {rows:,} here, bytes "
            f"{replayed.bytes:,}, seconds {replayed.seconds:.2f}"
        )
        return lines

    def restored_line(self, loaded: Loaded) -> str:
        """Return the line that a load ends with."""
        assert self.store is not None
        return f"restored {self.store.where}/{loaded.line()}"

    async def _begin_anew(self, journal: Journal, restore: str | None) -> list[str]:
        """Begin a journal, on a version if one is asked for."""
        self.become(journal.begun_by)
        await self._attach(journal)
        await asyncio.to_thread(journal.begin)
        if restore is None:
            return []
        if restore == "latest" and (self.store is None or not self.store.versions()):
            return ["nothing to restore: no records and no checkpoint; the shard begins empty"]
        return [self.restored_line(await self.loads.restore(restore))]

    def covering(self, number: int) -> "Covering | None":
        """Return the newest version that covers records of a journal; None if there is none."""
        found = []
        for store in [*([self.store] if self.store is not None else []), *self.bases]:
            for version in store.versions()[::-1]:
                manifest = manifest_of(store, version)
                position = self._position(manifest, number)
                if position is not None:
                    found.append(Covering(store, manifest, position))
                    break
                log.warning(
                    "passed over a version that this journal does not go on from", version=version
                )
        return max(found, key=lambda one: one.position, default=None)

    def _choose(self, journal: Journal, restore: str) -> "Covering | None":
        """Return the version to load; None to replay all records.

        Raises:
            CheckpointError: there is no such version.
            JournalError: the records behind it are not all here.
        """
        if restore != "latest":
            assert self.store is not None
            manifest = manifest_of(self.store, choose_version(self.store, restore))
            position = self._position(manifest, journal.number)
            if position is not None:
                return Covering(self.store, manifest, position)
            raise JournalError(
                f"--journal {journal.where}: does not go on from {restore}: that version was saved "
                "without it, or with another number of shards; take another folder to begin from it"
            )
        newest = self.covering(journal.number)
        if newest is None and journal.first > 1:
            raise JournalError(
                f"--journal {journal.where}: begins with record {journal.first}, and no checkpoint is "
                "there that covers those before; is --checkpoint-dir the folder that they went to?"
            )
        return newest

    def _position(self, manifest: Manifest, number: int) -> int | None:
        """Return up to which record a version covers a journal; None if it is of another one."""
        if manifest.num_shards != self.shard.num_shards:
            return None
        for entry in manifest.shards:
            if entry.shard == self.shard.shard and entry.journal is not None:
                is_ours = entry.journal["number"] == number
                return entry.journal["position"] if is_ours else None
        return None

    def _take_memory(self, loaded: Loaded) -> int:
        """Remember what the version says beside its tables; return the position that it covers."""
        named = {
            name.split(".", 1)[1]: array
            for name, array in loaded.parts.items()
            if name.startswith("memory.")
        }
        entry = next(e for e in loaded.manifest.shards if e.shard == self.shard.shard)
        self.become(entry.incarnation)  # first: what began a walk names it
        self.memory.restore(named)
        assert entry.journal is not None  # it was chosen for that
        return entry.journal["position"]

    async def _replay(self, journal: Journal, after: int) -> Replayed:
        """Apply all records behind a position."""
        done = Replayed()
        begin = told = time.perf_counter()
        records = journal.read(after=after)
        while await self.shard.executor.run(lambda: self._apply_some(records, done)):
            now = time.perf_counter()
            if now - told > _TELL_EVERY_S:
                told = now
                last = after + done.records
                log.info("replaying", record=last, of=journal.position, bytes=done.bytes)
        done.seconds = time.perf_counter() - begin
        return done

    def _apply_some(self, records: Iterator[Record], done: Replayed) -> bool:
        """Apply records for a while; return whether there are more."""
        until = time.perf_counter() + _TURN_S
        for record in records:
            self.apply(record, done)
            done.records += 1
            done.bytes += len(record.body)
            if time.perf_counter() > until:
                return True
        return False

    def apply(self, record: Record, done: Replayed) -> None:
        """Apply one record.

        Raises:
            JournalError: its kind is unknown, or what it needs is not there.
        """
        replay = self.replays.get(record.kind)
        if replay is None:
            raise JournalError(
                f"record {record.sequence} has kind {record.kind}, which this release does not know; "
                "take a newer one"
            )
        try:
            replay(record.body)
        except (PserverError, NotYet) as error:
            if record.kind in set(Own):  # what the shard did by itself was never refused
                raise JournalError(
                    f"record {record.sequence} ({kind_name(record.kind)}): {error}"
                ) from error
            done.refused += 1
        except Exception as error:  # noqa: BLE001 - a user's rule raises what it raised at first
            log.warning(
                "a record failed as it did before", record=record.sequence, error=repr(error)
            )
            done.refused += 1

    async def _attach(self, journal: Journal) -> None:
        """Record from now on, and let time go on."""

        def attach() -> None:
            self.recorder.attach(journal)
            self.lifecycle.release_walks()

        await self.shard.executor.run(attach)
        self.group.resume()

    def _draw_incarnation(self) -> None:
        """Be another incarnation: this one may lack what was acknowledged."""
        incarnation = secrets.randbits(63) | 1
        self.recorder.note(Own.INCARNATION, number_body(incarnation))
        self.become(incarnation)
