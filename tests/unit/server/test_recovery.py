"""A shard with a journal and checkpoints: where it goes on after a restart, and when it refuses to."""

import contextlib
import resource
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pserver
from pserver.checkpoint.fold import fold
from pserver.checkpoint.places import open_store
from pserver.client.connect import make_client
from pserver.client.runtime import Runtime
from pserver.embedded import SharedChannel
from pserver.errors import CheckpointError, ConfigError, JournalError, RestartedError
from pserver.journal import writer
from pserver.journal.folder import State, segments, write_state
from pserver.server.servicer import Servicer
from pserver.v1 import pserver_pb2 as pb
from tests.unit.server.replay import begin, image, own, shard, state_of

SETTINGS = pserver.ClientSettings(timeout_s=30.0)
KEYS = np.arange(60, dtype=np.uint64)
SPEC = pserver.TableSpec(name="t", dim=2, optimizer="adam", ttl_days=2, capacity_max=1000)


@dataclass
class Running:
    """A shard that runs, and a client of it."""

    servicer: Servicer
    client: pserver.Client
    runtime: Runtime
    journal: Path
    lines: list[str]

    def state(self) -> dict[str, Any]:
        """Return all that it must still know after a restart."""
        servicer = self.servicer
        return self.runtime.submit(own(servicer, lambda: state_of(servicer))).result()

    def kill(self, copy: Path) -> dict[str, Any]:
        """Copy its journal as a kill would leave it, and return its state then."""
        return self.runtime.submit(image(self.servicer, self.journal, copy)).result()

    def push(self, value: float = 1.0, keys: Any = KEYS) -> None:
        """Push the same gradient to some keys."""
        self.client.push("t", keys, np.full((len(keys), 2), value, np.float32))

    def connect(self) -> pserver.Client:
        """Return another client."""
        return connected(self.servicer, self.runtime)


def connected(servicer: Servicer, runtime: Runtime) -> pserver.Client:
    """Return a client of a shard of this process."""
    return make_client(
        lambda: [SharedChannel(servicer, runtime)], settings=SETTINGS, connect_s=10.0
    )


@contextlib.contextmanager
def running(
    journal: Path, store: Path | None = None, restore: str | None = "latest"
) -> Iterator[Running]:
    """Run a shard that goes on from a journal."""
    runtime, servicer = Runtime(), shard(store)
    try:
        lines = runtime.submit(begin(servicer, journal, restore)).result()
        with connected(servicer, runtime) as client:
            yield Running(servicer, client, runtime, journal, lines)
    finally:

        async def close() -> None:
            await servicer.end_saves()
            servicer.close()

        runtime.submit(close()).result()
        runtime.stop()


def position_of(servicer: Servicer) -> int:
    """Return the sequence of the last record."""
    covered = servicer._recorder.covered()
    assert covered is not None
    return covered["position"]


def without_counters(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state but for what a checkpoint does not promise: totals for people, logs of changes."""
    tables = [(*table[:4], table[4][0], *table[5:]) for table in state["tables"]]
    geo = {name: log[0] for name, log in state["geo"].items()}
    return {**state, "tables": tables, "geo": geo}


def fill(shard: Running) -> None:
    """Bring something of everything that is remembered beside rows."""
    client = shard.client
    client.create_table(SPEC)
    client.create_table(pserver.TableSpec(name="strict", dim=1, on_nan="fail", capacity_max=10))
    client.create_dense(pserver.DenseSpec(name="d", length=5, optimizer="adam"))
    client.init_dense("d", np.ones(5))
    client.push_dense("d", np.ones(5))
    shard.push()
    client.pull("t", np.arange(100, 110))
    message = pb.PullChangedRequest(table="t", trainer=bytes(16)).SerializeToString()
    shard.runtime.submit(shard.servicer.call("PullChanged", message)).result()
    with pytest.raises(pserver.NotFiniteError):
        client.push("strict", [1], [[np.nan]])


def test_restart_goes_on_from_checkpoint_and_the_records_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, windows, groups, parked parts, dense tables: all as before, and covered segments are gone."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES", 500)
    with running(tmp_path / "journal", tmp_path / "store") as first:
        fill(first)
        group = first.client.join(
            pserver.GroupSettings(mode="sync", trainers=2, trainer_id=0, barrier_timeout=60.0)
        )
        step = pserver.Step({}, {}, 1, 3, is_everywhere=True)
        grads = (KEYS, np.ones(120, np.float32), np.empty(0, np.uint32))
        group.start_push({"t": grads}, step).result()  # it waits for the other trainer's part
        num_segments = len(segments(tmp_path / "journal"))
        saved = first.client.checkpoints.save()
        assert len(segments(tmp_path / "journal")) < num_segments
        first.client.assign("t", [7, 200], np.ones((2, 2)))
        before = first.kill(tmp_path / "copy")
        group.leave()

    with running(tmp_path / "copy", tmp_path / "store") as second:
        after = second.state()
        heard = dict(second.servicer._group._heard)
        assert [line.split()[0] for line in second.lines] == ["restored", "replayed"]
        assert saved.version in second.lines[0]
        assert "records 1 of " in second.lines[1]

    assert without_counters(after) == without_counters(before)
    assert before["rounds"]["parts"]
    assert [entry.lease_s for entry in heard.values()] == [10.0]


def test_delta_follows_a_restart(tmp_path: Path) -> None:
    """A shard that came back saves a delta to the version it came from, with what the replay changed."""
    with running(tmp_path / "journal", tmp_path / "store") as first:
        fill(first)
        first.client.checkpoints.save()
        first.push(0.5, [1, 2, 3])
        first.kill(tmp_path / "copy")

    with running(tmp_path / "copy", tmp_path / "store") as second:
        delta = second.client.checkpoints.save(mode="delta")
        expected = second.state()
    with running(tmp_path / "copy", tmp_path / "store") as third:
        assert without_counters(third.state()) == without_counters(expected)
        assert delta.version in third.lines[0]

    assert delta.rows == 3


def test_checkpoint_outlives_records_that_a_power_failure_took(tmp_path: Path) -> None:
    """A version that covers more than the journal has left is taken, and the journal goes on behind it."""
    with running(tmp_path / "journal", tmp_path / "store") as first:
        fill(first)
        first.kill(tmp_path / "copy")
        first.push(0.5)
        before = first.state()
        first.client.checkpoints.save()
        position = position_of(first.servicer)
    write_state(tmp_path / "copy", State("open", "off", "another boot"))

    with running(tmp_path / "copy", tmp_path / "store") as second:
        state = second.state()
        assert state["incarnation"] != before["incarnation"]
        assert without_counters(state)["tables"][0][5] == before["tables"][0][5]
        second.push(0.25)
        expected = second.kill(tmp_path / "again")
    with running(tmp_path / "again", tmp_path / "store") as third:
        assert without_counters(third.state()) == without_counters(expected)
        assert f"of {position + 1} to" in third.lines[1]


def test_compacted_version_is_gone_on_from(tmp_path: Path) -> None:
    """A version made of a chain covers the journal as its last delta does."""
    with running(tmp_path / "journal", tmp_path / "store") as first:
        fill(first)
        version = first.client.checkpoints.save().version
        first.push(0.5)
        before = first.kill(tmp_path / "copy")
    store = open_store(str(tmp_path / "store"), where="store", writes=True)
    assert store is not None
    fold(store, version, store)

    with running(tmp_path / "copy", tmp_path / "store") as second:
        assert "v00000002" in second.lines[0]
        assert without_counters(second.state()) == without_counters(before)


def test_load_into_a_running_shard_is_replayed(tmp_path: Path) -> None:
    """What a client loaded is loaded again where it stands in the journal; gone, it is named."""
    with running(tmp_path / "journal", tmp_path / "store") as first:
        fill(first)
        first.client.checkpoints.save()
        first.push(3.0)
        first.client.checkpoints.load("latest")
        with first.connect() as client:
            client.push("t", KEYS[:5], np.ones((5, 2)))
        before = first.kill(tmp_path / "copy")
    shutil.copytree(tmp_path / "copy", tmp_path / "again")

    with running(tmp_path / "copy", tmp_path / "store") as second:
        assert without_counters(second.state()) == without_counters(before)

    (tmp_path / "store" / "v00000001").rename(tmp_path / "store" / "v00000009")
    with (
        pytest.raises(CheckpointError, match="v0000000"),
        running(tmp_path / "again", tmp_path / "store"),
    ):
        pass


def test_journal_begun_on_a_version_stands_on_it(tmp_path: Path) -> None:
    """A new folder and a version: the load is the first record, and restarts go on from it."""
    with running(tmp_path / "old", tmp_path / "store") as first:
        fill(first)
        first.client.checkpoints.save()
    with running(tmp_path / "new", tmp_path / "store", "1") as second:
        second.push(0.5)
        before = second.kill(tmp_path / "copy")
    with running(tmp_path / "copy", tmp_path / "store") as third:
        assert without_counters(third.state()) == without_counters(before)
        assert third.lines[0].startswith("replayed")

    with (
        pytest.raises(JournalError, match=r"does not go on from 1: that version was saved"),
        running(tmp_path / "copy", tmp_path / "store", "1"),
    ):
        pass


def test_empty_journal_begins_empty(tmp_path: Path) -> None:
    """With nothing to restore, latest says so; a shard that wrote nothing keeps its incarnation."""
    with running(tmp_path / "journal", tmp_path / "store") as first:
        assert first.lines == [
            "nothing to restore: no records and no checkpoint; the shard begins empty"
        ]
        incarnation = first.servicer.incarnation
    with running(tmp_path / "journal") as second:
        assert second.servicer.incarnation == incarnation


def test_records_are_not_passed_over_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that nobody asked for, and records that are missing, are refused with what to do."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES", 200)
    with running(tmp_path / "journal", tmp_path / "store") as first:
        fill(first)
        first.client.checkpoints.save()

    with (
        pytest.raises(ConfigError, match="--restore latest goes on with them"),
        running(tmp_path / "journal", tmp_path / "store", None),
    ):
        pass
    with (
        pytest.raises(JournalError, match="no checkpoint is there that covers"),
        running(tmp_path / "journal", tmp_path / "other"),
    ):
        pass


def test_possible_loss_makes_another_incarnation(tmp_path: Path) -> None:
    """After a power failure without a sync, clients of before are refused; later restarts are not."""
    with running(tmp_path / "journal") as first:
        fill(first)
        first.kill(tmp_path / "copy")
        old = first.servicer.incarnation
    write_state(tmp_path / "copy", State("open", "interval", "another boot"))

    with running(tmp_path / "copy") as second:
        assert "acknowledged pushes may be missing" in second.lines[-1]
        new = second.servicer.incarnation
        assert new != old
        late = pb.TableRequest(incarnation=old, table="t", request=1).SerializeToString()
        with pytest.raises(RestartedError):
            second.runtime.submit(second.servicer.call("Clear", late)).result()
        second.push()
    with running(tmp_path / "copy") as third:
        assert third.servicer.incarnation == new


def test_full_disk_refuses_pushes_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """While the journal cannot grow nothing is applied, reads are answered, and then the push counts once."""
    with running(tmp_path / "journal") as shard:
        fill(shard)
        before = shard.state()
        ((_, path),) = segments(tmp_path / "journal")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
        try:
            quick = pserver.ClientSettings(timeout_s=0.3)
            with make_client(
                lambda: [SharedChannel(shard.servicer, shard.runtime)],
                settings=quick,
                connect_s=10.0,
            ) as client:
                with pytest.raises(pserver.DeadlineError, match=r"cannot be written.*nothing was"):
                    client.push("t", KEYS, np.ones((60, 2)))
                assert client.peek("t", [7]).shape == (1, 2)
            assert without_counters(shard.state()) == without_counters(before)
            pusher = threading.Thread(target=shard.push)
            retries = shard.client.retries
            pusher.start()
            while shard.client.retries < retries + 2:
                pusher.join(0.01)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        pusher.join(30.0)

        assert shard.client.stats()[0].tables[0].version == before["tables"][0][1] + 1
