"""Tables on files of real servers: refused at start or at once, and no litter however a server ends."""

import dataclasses
import signal
from pathlib import Path

import numpy as np
import pytest

import pserver
from tests.integration.servers import WAIT_S, Start, endpoints, start_cluster


def open_files(process_id: int, folder: Path) -> list[str]:
    """Return the nameless files in a folder that a process has open."""
    links = Path(f"/proc/{process_id}/fd").iterdir()
    return [target for link in links if str(folder) in (target := str(link.readlink()))]


def test_two_servers_share_a_folder_and_leave_nothing_when_they_are_killed(
    start: Start, tmp_path: Path
) -> None:
    """Each shard has files of its own without a name; a killed one needs no cleaning."""
    cluster = start_cluster(start, 2, "--storage-dir", str(tmp_path))
    keys = np.arange(1000, dtype=np.uint64)
    spec = pserver.TableSpec(
        name="ads", dim=2, optimizer="sgd:lr=1", initializer="zeros", storage="file"
    )
    with pserver.connect(endpoints(cluster), connect_s=WAIT_S) as client:
        client.create_table(spec)
        client.push("ads", keys, np.ones((keys.size, 2)))
        with pserver.embedded(2) as other:
            other.create_table(dataclasses.replace(spec, storage="memory"))
            other.push("ads", keys, np.ones((keys.size, 2)))
            assert np.array_equal(client.pull("ads", keys), other.pull("ads", keys))

        files = [open_files(server.pid, tmp_path) for server in cluster]

        assert all(files)
        assert not {*files[0]} & {*files[1]}
        assert all(name.endswith(" (deleted)") for name in [*files[0], *files[1]])
        assert not list(tmp_path.iterdir())
    for server in cluster:
        server.send(signal.SIGKILL)
        server.wait_exit()
    assert not list(tmp_path.iterdir())


def test_a_table_on_a_file_is_refused_when_the_servers_have_no_folder(start: Start) -> None:
    """The client gets the error of the server, which says how to start it."""
    (server,) = start_cluster(start, 1)
    with pserver.connect(server.endpoint, connect_s=WAIT_S) as client:
        with pytest.raises(pserver.ConfigError, match=r"'ads': storage is file.*--storage-dir"):
            client.create_table(pserver.TableSpec(name="ads", dim=2, storage="file"))
        client.create_table(pserver.TableSpec(name="ads", dim=2))


def test_a_server_does_not_start_when_its_folder_is_missing(start: Start, tmp_path: Path) -> None:
    """It ends with status 2 and one line that names flag and folder."""
    status, text = start("--storage-dir", str(tmp_path / "gone")).wait_exit()

    assert status == 2
    assert f"pserver serve: --storage-dir {tmp_path / 'gone'}: must be a folder that exists" in text
