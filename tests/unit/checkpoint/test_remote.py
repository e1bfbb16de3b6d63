"""Versions at a URL: the same promises as in a folder, without renames."""

import getpass
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

import pserver
from pserver.checkpoint.places import open_store
from pserver.checkpoint.remote import RemoteStore, open_remote
from pserver.checkpoint.tensors import encoded
from pserver.checkpoint.tools import prune, verify
from pserver.errors import CheckpointError, ConfigError
from tests.unit.checkpoint.helpers import KEYS, push, rows_of, spec


@pytest.fixture
def url() -> Iterator[str]:
    yield "memory://bucket/run"
    files = fsspec.filesystem("memory")
    files.rm("/bucket", recursive=True)


def test_a_cluster_saves_deltas_and_restores_from_a_url(url: str) -> None:
    """Two shards there, three back; verified and pruned like a folder."""
    with pserver.embedded(2, checkpoint_dir=url) as client:
        client.create_table(spec())
        push(client, KEYS)
        client.checkpoints.save()
        push(client, KEYS[:5])
        client.checkpoints.save(mode="delta")
        client.checkpoints.save()
        expected = rows_of(client)
    store = open_store(url, where="x", writes=False)

    assert verify(store, "v00000002").base == "v00000001"
    assert prune(store, keep=1) == ["v00000001", "v00000002"]
    assert store.versions() == ["v00000003"]
    with pserver.embedded(3, checkpoint_dir=url, restore="latest") as client:
        assert rows_of(client) == expected


def test_a_version_is_none_until_its_manifest_is_there(url: str) -> None:
    """What was begun is not listed, is removed by the next try, and cannot be reached around."""
    store = open_remote(url, where="x", writes=True)
    store.begin("v00000001")
    store.write("v00000001", "a", encoded([memoryview(b"abc")]))

    assert (store.versions(), store.leftovers()) == ([], ["v00000001"])
    assert store.has_begun("v00000001")
    assert store.sizes_begun("v00000001")["a"] == 3
    store.begin("v00000001")
    with pytest.raises(CheckpointError, match="cannot read there"):
        store.read_begun("v00000001", "a")
    store.publish("v00000001", b"{}")
    store.abandon("v00000001")
    assert store.versions() == ["v00000001"]
    with pytest.raises(CheckpointError, match="plain name"):
        store.read("v00000001", "../a")


def test_k5_a_url_is_refused_at_start_when_it_cannot_be_used(tmp_path: Path) -> None:
    """An unknown scheme, and a place that is a file."""
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match="--checkpoint-dir nothing://x: cannot be used"):
        open_remote("nothing://x", where="--checkpoint-dir", writes=True)
    url = f"file://{tmp_path}/file/x"
    who = f"user {getpass.getuser()}"
    with pytest.raises(ConfigError, match=rf"--checkpoint-dir {url} \({who}\): cannot write there"):
        open_remote(url, where="--checkpoint-dir", writes=True)
    assert isinstance(open_remote(f"file://{tmp_path}", where="x", writes=True), RemoteStore)


def test_k5_the_extra_is_named_when_fsspec_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A URL without what reads it ends the start, with the command that installs it."""
    monkeypatch.setitem(sys.modules, "fsspec", None)

    with pytest.raises(ConfigError, match=r"URLs need fsspec: pip install 'pserver\[remote\]'"):
        open_remote("s3://bucket/run", where="--checkpoint-dir", writes=True)
