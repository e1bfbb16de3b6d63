"""Weights with the shows and clicks of their keys, of tables whose accessor is ctr.

Rooms before and after: ``Client.pull_shown`` asks here; ``delivery`` sends the pull, ``pending`` puts
the shards' answers together.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pserver.client.delivery import start_read
from pserver.client.inputs import as_keys
from pserver.client.way import Way
from pserver.kernel.dedupe import dedupe


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """What a pull answers of N keys.

    Attributes:
        weights: (N, dim) float32.
        shows: (N,) float32; 0 of a key without a row.
        clicks: (N,) float32.
    """

    weights: NDArray[np.float32]
    shows: NDArray[np.float32]
    clicks: NDArray[np.float32]


def pull_shown(way: Way, table: str, keys: ArrayLike) -> Shown:
    """Read weights, shows and clicks; see ``Client.pull_shown``."""
    distinct = dedupe(as_keys(keys, where=f"pull {table!r}"))
    asked, deadline = {table: distinct.keys}, way.deadline()
    pending = start_read(way, asked, creates=True, deadline=deadline, shown=True)
    (weights,), (shows,), (clicks,) = pending.results("weights", "shows", "clicks")
    return Shown(
        np.take(weights, distinct.inverse, axis=0),
        shows.reshape(-1)[distinct.inverse],
        clicks.reshape(-1)[distinct.inverse],
    )
