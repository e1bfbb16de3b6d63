"""What ``pserver.embedded`` promises: the real path, without sockets, in this process."""

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

import pserver
from pserver.deadline import Deadline
from pserver.embedded import InProcessChannel, make_shards
from pserver.placement import shard_of

WAIT_S = 20.0


def test_shards_hold_what_placement_says() -> None:
    """Each shard of the cluster gets its own keys, over the same messages as on a network."""
    keys = np.arange(3000, dtype=np.uint64)
    with pserver.embedded(3) as client:
        client.create_table(pserver.TableSpec(name="t", dim=1))
        client.pull("t", keys)

        stats = client.stats()

    assert [s.tables[0].rows for s in stats] == np.bincount(shard_of(keys, 3)).tolist()
    assert [s.server.shard_index for s in stats] == [0, 1, 2]
    assert all({"CreateTable", "Pull"} <= {m.method for m in s.methods} for s in stats)


@pytest.mark.parametrize("num_shards", [0, -1, 1025])
def test_cluster_size_is_checked(num_shards: int) -> None:
    """A cluster of no shards, or of more than there are partitions, is refused."""
    with pytest.raises(pserver.ConfigError, match=rf"in \[1, 1024\], got {num_shards}"):
        pserver.embedded(num_shards)
    assert "pserver-client" not in {thread.name for thread in threading.enumerate()}


def test_no_thread_is_left_when_the_client_closes() -> None:
    """Closing ends the client's loop and every shard's thread."""
    before = set(threading.enumerate())

    with pserver.embedded(3) as client:
        assert len(set(threading.enumerate()) - before) == 4
        client.create_table(pserver.TableSpec(name="t", dim=1))

    assert set(threading.enumerate()) == before


def test_clusters_do_not_meet() -> None:
    """Two clusters in one process have tables of their own."""
    with pserver.embedded(1) as one, pserver.embedded(1) as two:
        one.create_table(pserver.TableSpec(name="t", dim=1))

        with pytest.raises(pserver.UnknownTableError, match="the servers have no tables"):
            two.pull("t", [1])


def test_channel_gives_up_at_the_deadline() -> None:
    """A shard of this process that is busy is named in a DeadlineError, as one far away is."""
    (servicer,) = make_shards(1)
    channel = InProcessChannel(servicer)
    began, free = threading.Event(), threading.Event()

    def hold() -> bool:
        began.set()
        return free.wait(WAIT_S)

    async def main() -> None:
        held = asyncio.create_task(servicer._executor.run(hold))
        assert await asyncio.to_thread(began.wait, WAIT_S)
        with pytest.raises(pserver.DeadlineError) as caught:
            await channel.call("Describe", b"", deadline=Deadline.after(0.05))
        assert "Describe: no answer from embedded shard 0 within 0." in str(caught.value)
        free.set()
        assert await held
        assert await channel.call("Describe", b"", deadline=Deadline.after(WAIT_S))
        await channel.close()

    asyncio.run(main())


def test_tables_lie_on_files_when_there_is_a_folder_for_them(tmp_path: Path) -> None:
    """A folder is tried before the first shard; without one such a table is refused."""
    spec = pserver.TableSpec(
        name="t", dim=1, optimizer="sgd:lr=1", initializer="zeros", storage="file"
    )

    with pserver.embedded(2, storage_dir=str(tmp_path)) as client:
        client.create_table(spec)
        client.push("t", [1, 2, 3], [[1.0], [2.0], [3.0]])
        assert client.pull("t", [3, 1]).tolist() == [[-3.0], [-1.0]]

    with pserver.embedded(2) as client, pytest.raises(pserver.ConfigError, match="storage is file"):
        client.create_table(spec)
    with pytest.raises(
        pserver.ConfigError, match=r"storage_dir .*gone: must be a folder that exists"
    ):
        pserver.embedded(2, storage_dir=str(tmp_path / "gone"))


def test_clients_of_a_cluster_share_its_tables() -> None:
    """What one writes the other reads; closing a client leaves the shards as they are."""
    with pserver.Cluster(2) as cluster:
        with cluster.connect() as one:
            one.create_table(pserver.TableSpec(name="t", dim=1))
            one.assign("t", [7], [[2.0]])
        with cluster.connect() as other:
            assert other.peek("t", [7]).tolist() == [[2.0]]


def test_a_call_to_a_cluster_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull that nobody will ever answer gives up at its deadline, and is forgotten there."""
    monkeypatch.setattr("pserver.client.group.HOLD_S", 0.05)
    settings = pserver.ClientSettings(timeout_s=0.2, try_timeout_s=0.1)
    group = pserver.GroupSettings(mode="sync", trainers=2, barrier_timeout=0.1, on_missing="wait")
    with pserver.Cluster(1) as cluster, cluster.connect(settings=settings) as client:
        client.create_table(pserver.TableSpec(name="t", dim=1))
        joined = client.join(group)

        with pytest.raises(pserver.DeadlineError):
            joined.start_pull({"t": np.array([7], np.uint64)}, round_number=2).result()
