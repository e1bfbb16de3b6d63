"""Servers without a journal that are killed and come back empty, under clients that go on."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

import pserver
from tests.integration.killed import Killed
from tests.unit.trainers import grads, unit_table

pytestmark = pytest.mark.integration

GO_ON = pserver.ClientSettings(on_restart="go_on", timeout_s=60.0)
KEYS = np.arange(64, dtype=np.uint64)
ON_1 = pserver.shard_of(KEYS, 2) == 1

Servers = Callable[[], list[Killed]]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Killed]]:
    """Two of them."""
    with ExitStack() as stack:
        started = []
        for shard in range(2):
            (folder := tmp_path / str(shard)).mkdir()
            flags = ("--shard", str(shard), "--shards", "2")
            started.append(stack.enter_context(Killed(folder, *flags, journal=False)))
        yield started


@contextmanager
def going_on(
    servers: list[Killed], trainers: int
) -> Iterator[list[tuple[pserver.Client, pserver.Group]]]:
    """Yield async trainers whose clients go on, with a table of rows and a dense one of four floats."""
    with ExitStack() as stack:
        joined = []
        for number in range(trainers):
            ps = ",".join(server.endpoint for server in servers)
            client = stack.enter_context(pserver.connect(ps, settings=GO_ON, connect_s=60.0))
            settings = pserver.GroupSettings(trainer_id=number, trainers=trainers, lease_s=600.0)
            group = client.join(settings)
            client.create_table(unit_table())
            client.create_dense(pserver.DenseSpec(name="d", length=4, optimizer="sgd:lr=1"))
            joined.append((client, group))
        joined[0][0].init_dense("d", np.zeros(4, np.float32))
        yield joined
        for _, group in joined:
            group.leave()


def push(group: pserver.Group) -> None:
    """Push a gradient of 1 of all keys and floats, and wait."""
    step = pserver.Step({"d": np.ones(4, np.float32)}, {}, is_everywhere=True)
    group.start_push({"t": grads(KEYS, np.ones(KEYS.size))}, step).result()


def test_trainers_go_on_when_a_shard_comes_back_empty(servers: list[Killed]) -> None:
    """Shard 1 loses 2 + 1 pushes, and is told to; the dense values are those that a trainer knew last."""
    with going_on(servers, 2) as ((one, its_group), (other, others_group)):
        for group in (its_group, its_group, others_group):
            push(group)
        known = its_group.pull_dense("d")
        assert known.values.tolist() == [-3.0] * 4
        servers[1].kill()

        push(its_group)
        push(others_group)

        rows = others_group.start_pull({"t": KEYS}).result()[0][:, 0]
        assert rows.tolist() == np.where(ON_1, -2.0, -5.0).tolist()
        assert its_group.pull_dense("d", known=known).values.tolist() == [-5.0] * 4
        for client, pushes, held in ((one, (0, 2), (3, 1)), (other, (0, 1), (2, 1))):
            assert tuple(lost.restarts for lost in client.revival.lost) == (0, 1)
            assert tuple(lost.pushes for lost in client.revival.lost) == pushes
            assert tuple(lost.held_pushes for lost in client.revival.lost) == held


def test_a_shard_may_come_back_empty_again_and_again(servers: list[Killed]) -> None:
    """Three kills in turn of both shards: what is lost adds up, and the last push is everywhere."""
    with going_on(servers, 1) as ((client, group),):
        push(group)
        for shard in (0, 1, 0):
            servers[shard].kill()
            push(group)

        rows = group.start_pull({"t": KEYS}).result()[0][:, 0]
        assert rows.tolist() == np.where(ON_1, -2.0, -1.0).tolist()
        lost = [(told.restarts, told.pushes, told.held_pushes) for told in client.revival.lost]
        assert lost == [(2, 3, 1), (1, 2, 2)]


@pytest.mark.parametrize("mode", ["sync", "geo"])
def test_modes_whose_servers_must_agree_are_refused(mode: str) -> None:
    """In rounds, or with copies in the trainers, a shard that forgot cannot be gone on with."""
    with (
        pserver.embedded(1, settings=GO_ON) as client,
        pytest.raises(pserver.ConfigError, match="on_restart go_on needs mode async or half_async"),
    ):
        client.join(pserver.GroupSettings.make({"mode": mode}, origins={}))
