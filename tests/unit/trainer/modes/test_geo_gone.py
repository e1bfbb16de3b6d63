"""Geo mode where the servers let rows go: trainers that keep copies are told."""

import numpy as np
import pytest

import pserver
from tests.clients import clients
from tests.geo_trainers import both
from trainer.modes.geo import GeoMode


@pytest.mark.parametrize("how", ["shrink", "evict"])
def test_rows_that_go_on_the_servers_are_told_of_and_not_made_anew(how: str) -> None:
    """A row of -4 goes on its server: a trainer that kept it has 0 after its next window, and no row is made."""
    rules = {"evict": "lru:rows=4"} if how == "evict" else {"ttl_days": 1}
    with clients(2) as pair:
        one, other = modes = both(pair, k_steps=1, geo_average="none")
        wanted = pserver.TableSpec(
            name="u", dim=1, optimizer="sgd:lr=1", initializer="zeros", **rules
        )
        for mode in modes:
            mode.create_table(wanted)

        def trained(mode: GeoMode, keys: list[int], grad: float) -> None:
            array = np.array(keys, np.uint64)
            mode.start_pull({"u": array}).result()
            mode.start_push(
                {"u": (array, np.full(len(keys), grad, np.float32), np.empty(0, np.uint32))}
            )
            mode.end_step(samples=1)
            mode.flush()

        def kept(mode: GeoMode) -> float:
            (weights,) = mode.start_pull({"u": np.array([7], np.uint64)}).result()
            return float(weights[0, 0])

        trained(one, [7], 4.0)
        trained(other, [7], 0.0)
        assert kept(other) == -4.0
        if how == "evict":
            trained(one, list(range(100, 116)), 1.0)
        else:
            for day in (1, 5):
                pair[0].lifecycle.shrink("u", day)
        assert not pair[0].inspect("u", 7).has_row

        trained(other, [200], 1.0)

        assert kept(other) == 0.0
        assert not pair[0].inspect("u", 7).has_row
