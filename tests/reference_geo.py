"""Geo mode as ARCHITECTURE's "Modes" says it, in dicts: slow, and meant to be obviously right.

Every value is a float of one weight; rounds happen at ``flush`` and take no time.
"""

from collections import OrderedDict


class GeoServers:
    """What the servers hold, and which keys each trainer has not been told of."""

    def __init__(self, trainers: int) -> None:
        """Begin with rows of 0."""
        self.values: dict[int, float] = {}
        self.untold: list[set[int]] = [set() for _ in range(trainers)]

    def add(self, trainer: int, key: int, delta: float) -> None:
        """Add a difference, and note it for the others."""
        self.values[key] = self.values.get(key, 0.0) + delta
        for other, keys in enumerate(self.untold):
            if other != trainer:
                keys.add(key)


class GeoTrainer:
    """One trainer: local value and base of each row, least recently used first; sgd with lr 1."""

    def __init__(self, servers: GeoServers, trainer: int, *, rows_max: int, scale: float) -> None:
        """Begin with no rows."""
        self.servers = servers
        self.trainer = trainer
        self.rows_max = rows_max
        self.scale = scale
        self.local: OrderedDict[int, float] = OrderedDict()
        self.base: dict[int, float] = {}

    def step(self, keys: list[int], grads: list[float]) -> None:
        """Fetch what is missing, making room, then step."""
        for key in keys:
            if key in self.local:
                self.local.move_to_end(key)
        missing = [key for key in keys if key not in self.local]
        for _ in range(len(self.local) + len(missing) - self.rows_max):
            oldest = next(iter(self.local))
            self._tell(oldest)
            del self.local[oldest], self.base[oldest]
        for key in missing:
            self.local[key] = self.base[key] = self.servers.values.get(key, 0.0)
        for key, grad in zip(keys, grads, strict=True):
            self.local[key] -= grad
            self.local.move_to_end(key)

    def flush(self) -> None:
        """Tell everything, then read what was told of and what others changed."""
        told = [key for key in self.local if self._tell(key)]
        untold = self.servers.untold[self.trainer]
        for key in {*told, *untold} & set(self.local):
            value = self.servers.values[key]
            self.local[key] += value - self.base[key]
            self.base[key] = value
        untold.clear()

    def _tell(self, key: int) -> bool:
        """Tell the servers of a row's progress, and return whether it had any."""
        delta = self.local[key] - self.base[key]
        if delta:
            self.servers.add(self.trainer, key, delta * self.scale)
            self.base[key] = self.local[key]
        return bool(delta)
