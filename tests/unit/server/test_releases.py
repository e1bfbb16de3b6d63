"""What clients and servers of release 1 said and wrote is understood today; ``tests/golden`` has their bytes.

A recording is never rewritten. That of a new wire version or journal format is made by running this with
``PSERVER_WRITE_GOLDEN=1``, and the one before stays.
"""

import os
import queue
import shutil
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from pserver.client.runtime import Runtime
from pserver.journal import records
from pserver.server.methods import METHODS
from pserver.server.servicer import Servicer
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import WIRE_VERSION
from tests.release_session import GOLDEN, INCARNATION, NOT_IN_IT, client_of, left, session, shard
from tests.unit.server.replay import begin

REGENERATE = "PSERVER_WRITE_GOLDEN"
WIRES = range(1, WIRE_VERSION + 1)
JOURNALS = range(1, records.FORMAT + 1)
Exchange = tuple[str, bytes, bytes]

HEARD = {
    "first": [[0.0, 0.0]] * 4,
    "version": 1,
    "shown": [[[-1.0, 0.0], [-1.0, 0.0]], [3.0, 1.0], [1.0, 0.0]],
    "dense": [0.0, 2.0, 1.0],
    "changed": True,
    "round": [1, 10, True, [[-0.5, -4.5]]],
    "shrunk": 0,
    "top": [7],
    "cleared": 2,
    "rows": [["ads", 4], ["shown", 2]],
    "ads": [[-0.5, -4.5], [-1.5, 0.0], [0.25, 0.5], [0.0, 0.0]],
    "inspected": [True, [-1.0, 0.0]],
    "vector": [-0.5, 1.5, 0.5],
}
"""What every session hears."""

CHANGES = {"package_version", "uptime_s", "cpu_s", "memory_bytes", "methods", "last_seen_s"}
"""Fields of replies that are another release's, or another moment's."""


WALKS = {"Shrink", "TopKeys"}
"""Methods that are asked again until they are done, which may take another number of times."""


def wire_file(version: int) -> Path:
    """Return the recording of a wire version: method, request and reply a line, in hexadecimal."""
    return GOLDEN / f"wire_v{version}.txt"


def exchanges(version: int) -> list[Exchange]:
    """Return what was said, in its order."""
    lines = (line.split(" ") for line in wire_file(version).read_text("ascii").splitlines())
    return [(method, *map(bytes.fromhex, rest)) for method, *rest in lines]  # type: ignore[misc]


@contextmanager
def living(servicer: Servicer) -> Iterator[Runtime]:
    """Give a loop for a shard, and end both."""
    runtime = Runtime()

    async def close() -> None:
        servicer.close()

    try:
        yield runtime
    finally:
        runtime.submit(close()).result()
        runtime.stop()


@pytest.fixture(scope="module", autouse=True)
def recorded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Record a session of this release, if that is asked for and nothing of its versions is there."""
    wire, journal = wire_file(WIRE_VERSION), GOLDEN / f"journal_v{records.FORMAT}"
    if REGENERATE not in os.environ or (wire.exists() and journal.exists()):
        return
    folder, lines, servicer = tmp_path_factory.mktemp("journal"), list[str](), shard()
    with living(servicer) as runtime:
        runtime.submit(begin(servicer, folder)).result()

        def say(method: str, message: bytes) -> Future[bytes]:
            answered = runtime.submit(servicer.call(method, message))
            lines.append(f"{method} {message.hex()} {answered.result().hex()}")
            return answered

        with pytest.MonkeyPatch.context() as patch, client_of(say) as client:
            patch.setattr("platform.node", lambda: "trainer-0")  # and not the name of this machine
            session(client)
    if not wire.exists():
        wire.write_text("\n".join(lines) + "\n", encoding="ascii")
    if not journal.exists():
        journal.mkdir()
        for path in folder.glob("*.*"):
            shutil.copy(path, journal)


def meaning(method: str, reply: bytes) -> Any:
    """Return a reply without what may change."""
    service = pb.DESCRIPTOR.services_by_name["PServer"]
    message: Message = getattr(pb, service.methods_by_name[method].output_type.name).FromString(
        reply
    )
    _forget(message)
    return message


def _forget(message: Message) -> None:
    for field, value in message.ListFields():
        if field.name in CHANGES:
            message.ClearField(field.name)
        elif field.message_type is not None:
            for part in value if field.is_repeated else [value]:
                _forget(part)


@pytest.mark.parametrize("version", WIRES)
def test_an_old_client_is_answered_as_it_was(version: int) -> None:
    """The requests of a session of then, byte for byte, get replies of the same meaning from a shard of today."""
    servicer = shard()
    said = exchanges(version)
    with living(servicer) as runtime:
        for method, request, reply in said:
            then, now = meaning(method, reply), None
            while now is None or (method in WALKS and not now.is_done):
                now = meaning(method, runtime.submit(servicer.call(method, request)).result())
            assert now == then or (method in WALKS and not then.is_done), method

    assert {method for method, *_ in said} == set(METHODS) - NOT_IN_IT


@pytest.mark.parametrize("version", WIRES)
def test_an_old_server_is_understood(version: int) -> None:
    """A client of today that gets the replies of then hears what it should."""
    replies: defaultdict[str, queue.SimpleQueue[bytes]] = defaultdict(queue.SimpleQueue)
    for method, _, reply in exchanges(version):
        replies[method].put(reply)

    def say(method: str, _: bytes) -> Future[bytes]:
        answer: Future[bytes] = Future()
        answer.set_result(replies[method].get_nowait())
        return answer

    with client_of(say) as client:
        assert session(client) == HEARD


@pytest.mark.parametrize("version", JOURNALS)
def test_an_old_journal_is_replayed(version: int, tmp_path: Path) -> None:
    """A shard of today that begins with a journal of then is that shard: incarnation, rows, state and vectors."""
    folder = shutil.copytree(GOLDEN / f"journal_v{version}", tmp_path / "journal")
    servicer = Servicer(shard=0, num_shards=1, queue_max=64)
    with living(servicer) as runtime:
        runtime.submit(begin(servicer, folder)).result()

        def say(method: str, message: bytes) -> Future[bytes]:
            return runtime.submit(servicer.call(method, message))

        with client_of(say) as client:
            found = left(client)

    assert servicer.incarnation == INCARNATION
    assert found == {name: HEARD[name] for name in found}
