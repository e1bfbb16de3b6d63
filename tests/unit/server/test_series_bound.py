"""The metrics page stays small: trainers that come and go, keys and text make no series."""

import os

from prometheus_client import generate_latest

from pserver.config import GroupSettings
from pserver.server.methods import METHODS
from pserver.server.servicer import Servicer
from pserver.spec import TableSpec
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import group_proto_of
from tests.unit.server.messages import call, create, pull, push

TRAINERS = 64


def page(servicer: Servicer) -> dict[str, float]:
    """Return each sample of the page by its name and labels."""
    lines = generate_latest(servicer.metrics.registry).decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in samples if "_created" not in name}


def restart(servicer: Servicer, trainer_id: int) -> None:
    """Let a new process of a trainer join, and leave."""
    uuid = os.urandom(16)
    group = group_proto_of(GroupSettings(mode="async", trainers=TRAINERS))
    join = pb.JoinRequest(trainer=uuid, trainer_id=trainer_id, group=group, lease_s=60, host="h:1")
    call(servicer, "Join", join.SerializeToString())
    call(servicer, "Leave", pb.LeaveRequest(trainer=uuid).SerializeToString())


def test_j1_the_page_is_as_large_after_500_restarts_of_trainers() -> None:
    """No series comes with a process, and no counter goes back."""
    servicer = Servicer(shard=0, num_shards=1, queue_max=8)
    for number in range(TRAINERS):
        restart(servicer, number)
    before = page(servicer)

    for number in range(500):
        restart(servicer, number % TRAINERS)
    after = page(servicer)

    assert set(after) == set(before)
    counters = [name for name in before if "_total" in name or "_count" in name]
    assert all(after[name] >= before[name] for name in counters)
    joined = 'pserver_request_seconds_count{code="OK",method="Join"}'
    assert after[joined] - before[joined] == 500
    servicer.close()


def test_j2_the_number_of_series_has_a_bound() -> None:
    """With 100 tables, 64 trainers and many keys: a dozen or so a table, some dozens a method and code."""
    servicer = Servicer(shard=0, num_shards=1, queue_max=8)
    empty = len(page(servicer))
    for number in range(100):
        create(servicer, TableSpec(name=f"t{number}", dim=1, optimizer="sgd", initializer="zeros"))
        keys = list(range(1000 * number, 1000 * number + 1000))
        pull(servicer, {f"t{number}": keys})
        push(servicer, {f"t{number}": (keys, [1.0] * 1000)}, counter=number + 1)
    for number in range(TRAINERS):
        restart(servicer, number)

    found = page(servicer)

    used = {"CreateTable", "Pull", "Push", "Join", "Leave"}
    assert used <= set(METHODS)
    per_method = 20  # buckets, count and sum of one code, bytes there and back
    assert len(found) <= empty + 100 * 16 + len(used) * per_method
    servicer.close()
