"""Versions in a folder: whole or not listed, whatever was cut off."""

import os
from pathlib import Path

import pytest

from pserver.checkpoint.local import LocalStore, open_local
from pserver.checkpoint.manifest import Manifest
from pserver.checkpoint.store import choose_version, next_version
from pserver.checkpoint.tensors import encoded
from pserver.errors import CheckpointError, ConfigError


def write(store: LocalStore, version: str, name: str, data: bytes) -> None:
    store.write(version, name, encoded([memoryview(data)]))


def publish(store: LocalStore, version: str, **files: bytes) -> None:
    store.begin(version)
    for name, data in files.items():
        write(store, version, name, data)
    manifest = Manifest(
        version=version,
        mode="full",
        epoch=1,
        num_shards=1,
        num_partitions=1024,
        created="",
        product="",
        tables=[],
        shards=[],
        files=[],
    )
    store.publish(version, manifest.encode())


def test_a_version_is_listed_only_when_it_is_published(tmp_path: Path) -> None:
    """Before that it can be written and read as one that has begun, and is no version."""
    store = LocalStore(tmp_path)
    store.begin("v00000001")
    write(store, "v00000001", "a", b"1")

    assert (store.versions(), store.leftovers()) == ([], ["v00000001"])
    assert store.read_begun("v00000001", "a") == b"1"
    assert store.sizes_begun("v00000001") == {"a": 1}
    store.publish("v00000001", b"{}")
    assert (store.versions(), store.leftovers()) == (["v00000001"], [])
    assert store.read("v00000001", "a") == b"1"
    assert (tmp_path / "LATEST").read_text() == "v00000001\n"


def test_what_an_earlier_try_left_is_gone_when_a_version_begins(tmp_path: Path) -> None:
    """A save that was cut off leaves nothing in the next one of its number."""
    store = LocalStore(tmp_path)
    store.begin("v00000001")
    write(store, "v00000001", "old", b"1")

    store.begin("v00000001")

    assert store.sizes_begun("v00000001") == {}


@pytest.mark.parametrize("wanted", ["latest", "v00000002", "2"])
def test_the_newest_whole_version_is_the_latest_when_the_last_step_was_cut_off(
    tmp_path: Path, wanted: str
) -> None:
    """D2: a process that died between the rename and LATEST has published; one before it has not."""
    store = LocalStore(tmp_path)
    publish(store, "v00000001")
    publish(store, "v00000002")
    (tmp_path / "LATEST").write_text("v00000001\n")
    store.begin("v00000003")
    (tmp_path / "v00000004").mkdir()  # without a manifest

    assert choose_version(store, wanted) == "v00000002"
    assert next_version(store) == "v00000003"


@pytest.mark.parametrize("wanted", ["3", "v00000003", "newest", "../x", "123456789"])
def test_a_version_that_is_not_there_is_refused_with_those_that_are(
    tmp_path: Path, wanted: str
) -> None:
    """An unknown name is an error that lists the last versions."""
    store = LocalStore(tmp_path)
    publish(store, "v00000002")

    with pytest.raises(CheckpointError, match="the last ones are v00000002"):
        choose_version(store, wanted)


@pytest.mark.parametrize("version", ["../v00000001", "v1", "", "v00000001/.."])
def test_nothing_outside_the_folder_is_touched_whatever_name_is_given(
    tmp_path: Path, version: str
) -> None:
    """A version is called as versions are, a file has a plain name."""
    store = LocalStore(tmp_path / "in")
    (tmp_path / "in").mkdir()
    store.begin("v00000001")

    for work in (
        lambda: store.begin(version),
        lambda: store.read(version, "a"),
        lambda: write(store, "v00000001", "../a", b""),
        lambda: store.read("v00000001", ".."),
        lambda: store.remove(version),
    ):
        with pytest.raises(CheckpointError, match=r"called as v00000001|plain name"):
            work()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_removed_version_is_gone(tmp_path: Path) -> None:
    """Nothing of it stays."""
    store = LocalStore(tmp_path)
    publish(store, "v00000001", a=b"1")

    store.remove("v00000001")

    assert store.versions() == []
    assert [path.name for path in tmp_path.iterdir()] == ["LATEST"]


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_without_write_permission_is_refused_at_start(tmp_path: Path) -> None:
    """The error names folder and user."""
    tmp_path.chmod(0o500)

    with pytest.raises(ConfigError, match=rf"{tmp_path}: user \w+ cannot write there"):
        open_local(str(tmp_path), where="--checkpoint-dir", writes=True)


def test_a_folder_that_cannot_be_is_refused_at_start(tmp_path: Path) -> None:
    """A file in its place, and a place that is to be read and is not there."""
    (tmp_path / "file").write_text("")

    with pytest.raises(
        ConfigError, match=r"--checkpoint-dir .*file/x: user \w+ cannot write there"
    ):
        open_local(str(tmp_path / "file" / "x"), where="--checkpoint-dir", writes=True)
    with pytest.raises(ConfigError, match="there is no such folder"):
        open_local(str(tmp_path / "none"), where="folder", writes=False)
