"""Versions in a bucket, against a server of S3's interface on loopback."""

import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import boto3
import pytest
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

import pserver
from pserver.checkpoint.places import open_store
from pserver.checkpoint.remote import open_remote
from pserver.checkpoint.tools import prune, verify
from pserver.errors import CheckpointError, ConfigError
from tests.integration.servers import WAIT_S, servers
from tests.unit.checkpoint.helpers import KEYS, push, rows_of, spec

pytestmark = pytest.mark.integration

BUCKET = "bucket-1"
URL = f"s3://{BUCKET}/run"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedMotoServer]:
    """An S3 server with one bucket, which the environment names, with a key."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint(server))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-of-the-test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(S3FileSystem, "retries", 1)
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    yield server
    S3FileSystem.clear_instance_cache()
    control(server, "reset")
    control(server, "reset-auth", "inf")  # the server's own start: it asks for no known key
    server.stop()


def endpoint(server: ThreadedMotoServer) -> str:
    host, port = server.get_host_and_port()
    return f"http://{host}:{port}"


def control(server: ThreadedMotoServer, what: str, data: str = "") -> None:
    """Tell the server what is beside S3's interface."""
    url = f"{endpoint(server)}/moto-api/{what}"
    headers = {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(url, data=data.encode(), headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=WAIT_S) as reply:
        assert reply.status == 200


def buckets() -> list[str]:
    return [bucket["Name"] for bucket in boto3.client("s3").list_buckets()["Buckets"]]


def test_cluster_saves_deltas_and_restores_when_its_place_is_a_bucket(
    s3: ThreadedMotoServer,
) -> None:
    """Two shards there, three back; verified and pruned like a folder, and nothing is left beside."""
    with pserver.embedded(2, checkpoint_dir=URL) as client:
        client.create_table(spec())
        push(client, KEYS)
        client.checkpoints.save()
        push(client, KEYS[:5])
        client.checkpoints.save(mode="delta")
        client.checkpoints.save()
        expected = rows_of(client)
    store = open_store(URL, where="x", writes=False)

    assert verify(store, "v00000002").base == "v00000001"
    assert prune(store, keep=1) == ["v00000001", "v00000002"]
    assert (store.versions(), store.leftovers()) == (["v00000003"], [])
    with pserver.embedded(3, checkpoint_dir=URL, restore="latest") as client:
        assert rows_of(client) == expected
    names = [item["Key"] for item in boto3.client("s3").list_objects_v2(Bucket=BUCKET)["Contents"]]
    assert {name.split("/")[1] for name in names} == {"v00000003", "LATEST"}


def test_k5_bucket_that_is_not_there_is_refused_at_start_and_not_made(
    s3: ThreadedMotoServer,
) -> None:
    """The error names URL, bucket, user and whose key it was; a name that was mistyped makes no bucket."""
    with pytest.raises(ConfigError, match="does not exist") as caught:
        open_remote("s3://bucket-2/run", where="--checkpoint-dir", writes=True)

    said = str(caught.value)
    assert said.startswith("--checkpoint-dir s3://bucket-2/run (bucket bucket-2, user ")
    assert "access key key-of-the-test of env): cannot write there" in said
    assert "secret-of-the-test" not in said
    assert buckets() == [BUCKET]


def test_k5_key_that_may_not_write_is_refused_at_start_by_name(s3: ThreadedMotoServer) -> None:
    """Where S3 asks for a key that it knows, one that it does not know is named."""
    control(s3, "reset-auth", "0")

    with pytest.raises(ConfigError, match=r"access key key-of-the-test of env.*PermissionError"):
        open_remote(URL, where="--checkpoint-dir", writes=True)


def test_save_fails_by_name_when_s3_is_gone(s3: ThreadedMotoServer) -> None:
    """The client hears which place does not answer; the tables go on."""
    with pserver.embedded(1, checkpoint_dir=URL) as client:
        client.create_table(spec())
        push(client, KEYS)
        client.checkpoints.save()
        expected = rows_of(client)
        s3.stop()

        with pytest.raises(
            CheckpointError, match=rf"{URL} \(bucket {BUCKET}, .*EndpointConnection"
        ):
            client.checkpoints.save()

        assert rows_of(client) == expected
        s3.start()


@pytest.mark.slow
def test_server_processes_save_to_a_bucket_and_come_back_from_it(s3: ThreadedMotoServer) -> None:
    """Save, kill, restore; the tools read the same URL; a bucket that is not there ends the start."""
    with servers() as start:
        one = start("--checkpoint-dir", URL).wait_ready()
        with pserver.connect(one.endpoint, connect_s=WAIT_S) as client:
            client.create_table(spec())
            push(client, KEYS)
            client.checkpoints.save()
            expected = rows_of(client)
        again = start("--checkpoint-dir", URL, "--restore", "latest").wait_ready()
        with pserver.connect(again.endpoint, connect_s=WAIT_S) as client:
            assert rows_of(client) == expected
        status, said = start("--checkpoint-dir", "s3://bucket-2/run").wait_exit()
        command = [sys.executable, "-m", "pserver", "checkpoint", "ls", URL]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)

    assert status == 2
    assert "bucket bucket-2" in said
    assert "v00000001" in listed.stdout
