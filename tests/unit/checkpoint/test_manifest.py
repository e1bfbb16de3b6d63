"""A manifest is read as it was written, or refused with what is wrong."""

import json

import pytest

from pserver.checkpoint.manifest import FORMAT, Manifest, read_manifest, version_number
from pserver.errors import CheckpointError

WHOLE = Manifest(
    version="v00000001",
    mode="full",
    epoch=3,
    num_shards=1,
    num_partitions=1024,
    created="2026-01-31T00:00:00+00:00",
    product="1",
    tables=[],
    shards=[],
    files=[],
)


def test_a_manifest_is_read_as_it_was_written() -> None:
    """The bytes and back are the identity."""
    assert read_manifest(WHOLE.encode(), where="x") == WHOLE


def test_fields_of_a_later_release_are_passed_over() -> None:
    """What only adds facts does not keep an older release from loading."""
    content = {**json.loads(WHOLE.encode()), "colour": "red"}

    assert read_manifest(json.dumps(content).encode(), where="x") == WHOLE


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "damaged"),
        (b"[]", "damaged"),
        (WHOLE.encode()[:-20], "damaged"),
        (b'{"format": 1}', "damaged"),
        (json.dumps({"format": FORMAT + 1}).encode(), "format 2; this release reads format 1"),
    ],
)
def test_a_manifest_is_refused_when_it_cannot_be_trusted(data: bytes, problem: str) -> None:
    """Cut off, of another kind, without a field, of a newer format."""
    with pytest.raises(CheckpointError, match=f"^ckpt/v1: .*{problem}"):
        read_manifest(data, where="ckpt/v1")


def test_only_names_of_versions_have_a_number() -> None:
    """Eight digits behind a v, and nothing else."""
    names = ["v00000012", "v12", "x00000012", "v00000012.tmp", ""]

    assert [version_number(name) for name in names] == [12, None, None, None, None]
