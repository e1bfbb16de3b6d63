"""A read-only shard answers, changes nothing, and takes newer versions whole or not at all."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import pserver
from pserver.checkpoint.local import LocalStore
from pserver.config import ServeSettings
from pserver.server import app
from pserver.server.follow import Follower
from pserver.server.servicer import Servicer
from pserver.v1 import pserver_pb2 as pb
from tests import reference
from tests.unit.checkpoint.helpers import KEYS, cluster, push, spec
from tests.unit.server.messages import call, create, push_bytes


def save_versions(folder: Path, count: int) -> list[np.ndarray]:
    """Save a full version and deltas, and return the weights in each."""
    weights = []
    with cluster(folder, 1) as client:
        client.create_table(spec())
        for version in range(count):
            push(client, KEYS)
            client.checkpoints.save(mode="delta" if version else "full")
            weights.append(client.peek("t", KEYS))
    return weights


def serve(folder: Path, version: str) -> Servicer:
    servicer = Servicer(shard=0, num_shards=1, queue_max=16, store=LocalStore(folder))
    asyncio.run(servicer.loads.restore(version))
    servicer.is_read_only = True
    return servicer


def weights_of(servicer: Servicer, key: int) -> list[float]:
    request = pb.InspectRequest(table="t", key=key)
    reply = call(servicer, "Inspect", request.SerializeToString())
    return list(pb.InspectReply.FromString(reply).weights)


def test_reads_are_answered_and_changes_refused_when_a_shard_is_read_only(tmp_path: Path) -> None:
    """Pulls read, of unknown keys too, and make no rows; every method that changes is refused."""
    save_versions(tmp_path, 1)
    servicer = serve(tmp_path, "latest")
    try:
        request = pb.PullRequest()
        part = request.tables.add(table="t", create=True)
        part.keys = np.array([KEYS[0], 999_999], np.uint64).tobytes()
        call(servicer, "Pull", request.SerializeToString())

        stats = pb.StatsReply.FromString(call(servicer, "Stats"))
        assert [table.rows for table in stats.tables] == [KEYS.size]
        with pytest.raises(pserver.RequestError, match=r"Push: .*read-only"):
            call(servicer, "Push", push_bytes({"t": ([1], [1.0] * 3)}, counter=0))
        with pytest.raises(pserver.RequestError, match=r"CreateTable: .*read-only"):
            create(servicer, spec("other"))
        for method in ("Assign", "Clear", "Drop", "Join", "Save", "Load", "PushDense"):
            with pytest.raises(pserver.RequestError, match=f"{method}: .*read-only"):
                call(servicer, method)
    finally:
        servicer.close()


@pytest.mark.parametrize("word", ["table", "first", "zeros"])
def test_unknown_keys_read_as_the_shard_says_when_it_only_reads(
    tmp_path: Path, word: Literal["table", "first", "zeros"]
) -> None:
    """Each word, against tables of both kinds; keys that have a row read the same, and none is made."""
    keys = np.array([KEYS[0], 999_999], np.uint64)
    with cluster(tmp_path, 1) as client:
        for unknown in ("first", "zeros"):
            client.create_table(dataclasses.replace(spec(), name=unknown, unknown_reads=unknown))
            client.pull(unknown, KEYS)
        client.checkpoints.save()
        own = {name: client.peek(name, keys) for name in ("first", "zeros")}
        rule = client.spec("first").initializer
    firsts = {
        name: reference.first_weights(
            rule, name=name, seed=spec().seed, key=999_999, dim=spec().dim
        )
        for name in own
    }
    settings = ServeSettings(
        checkpoint_dir=str(tmp_path), restore="latest", read_only=True, unknown_reads=word
    )
    servicer = app._servicer(settings)
    asyncio.run(servicer.loads.restore("latest"))
    try:
        for name in ("first", "zeros"):
            request = pb.PullRequest()
            part = request.tables.add(table=name, create=True)
            part.keys = keys.tobytes()
            reply = pb.PullReply.FromString(call(servicer, "Pull", request.SerializeToString()))
            read = np.frombuffer(reply.tables[0].weights, np.float32).reshape(2, -1)
            expected = own[name].copy()
            if word == "first":
                expected[1] = firsts[name]
            elif word == "zeros":
                expected[1] = 0.0
            assert np.array_equal(read, expected)
    finally:
        servicer.close()


def test_a_newer_version_is_taken_and_a_broken_one_is_not(tmp_path: Path) -> None:
    """Readers go on under one incarnation; a damaged delta leaves the older version in service."""
    weights = save_versions(tmp_path, 3)
    (tmp_path / "v00000003").rename(tmp_path / "aside")
    servicer = serve(tmp_path, "v00000001")
    key = int(KEYS[5])

    async def look() -> tuple[str, str]:
        follower = Follower(servicer.loads)
        await follower.look()
        return servicer.loads.version, follower.failure

    try:
        before = servicer.incarnation
        assert weights_of(servicer, key) == weights[0][5].tolist()
        assert asyncio.run(look()) == ("v00000002", "")
        assert weights_of(servicer, key) == weights[1][5].tolist()

        (tmp_path / "aside").rename(tmp_path / "v00000003")
        path = next((tmp_path / "v00000003").glob("rows-*"))
        path.write_bytes(path.read_bytes()[:-1])
        version, failure = asyncio.run(look())

        assert (version, path.name in failure) == ("v00000002", True)
        assert weights_of(servicer, key) == weights[1][5].tolist()
        assert servicer.incarnation == before
    finally:
        servicer.close()
