"""Dense tables on two real servers: as on embedded shards, for every client, and gone at a restart."""

import numpy as np
import pytest

import pserver
from pserver.placement import DENSE_PART
from tests.integration.servers import WAIT_S, Server, Start, endpoints, start_cluster

SPEC = pserver.DenseSpec(name="top", length=2 * DENSE_PART + 3, optimizer="adam")


def test_two_servers_step_as_embedded_shards_do(pair: list[Server]) -> None:
    """Init, pushes and pulls of parts and whole slices give the same bits; others see them."""
    rng = np.random.default_rng(5)
    first, *grads = rng.normal(size=(4, SPEC.length)).astype(np.float32)
    with (
        pserver.connect(endpoints(pair), connect_s=WAIT_S) as client,
        pserver.connect(endpoints(pair), connect_s=WAIT_S) as other,
        pserver.embedded(1) as embedded,
    ):
        for each in (client, embedded):
            each.create_dense(SPEC)
            each.init_dense("top", first)
        known = other.pull_dense("top")
        for each in (client, embedded):
            assert [each.push_dense("top", grad) for grad in grads] == [1, 2, 3]

        pulled = other.pull_dense("top", known=known)
        assert np.array_equal(known.values, first)
        assert (pulled.is_changed, pulled.versions) == (True, (3, 3))
        assert np.array_equal(pulled.values, embedded.pull_dense("top").values)
        assert not other.pull_dense("top", known=pulled).is_changed
        with pytest.raises(pserver.DenseInitError, match=r"epoch 1, version 3"):
            other.init_dense("top", first)


def test_a_restarted_server_is_noticed(start: Start) -> None:
    """A client of the old process is refused; a new one takes no old handle for the truth."""
    spec = pserver.DenseSpec(name="top", length=3, optimizer="sgd:lr=1")
    (server,) = start_cluster(start, 1)
    with pserver.connect(endpoints([server]), connect_s=WAIT_S) as client:
        client.create_dense(spec)
        client.init_dense("top", [1, 2, 3])
        known = client.pull_dense("top")
        server.end()
        again = start("--bind", server.endpoint).wait_ready()

        for ask in (
            lambda: client.push_dense("top", [1, 1, 1]),
            lambda: client.pull_dense("top", known=known),
        ):
            with pytest.raises(pserver.RestartedError):
                ask()
    with pserver.connect(endpoints([again]), connect_s=WAIT_S) as client:
        client.create_dense(spec)
        client.init_dense("top", [4, 5, 6])
        pulled = client.pull_dense("top", known=known)
        assert (pulled.is_changed, pulled.values.tolist()) == (True, [4, 5, 6])
