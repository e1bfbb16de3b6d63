"""What a shard remembers beside its tables, as arrays of a checkpoint and back.

Rooms before and after: ``save`` writes it with every version; ``recovery`` takes it back where a journal
goes on from that version as the same incarnation. A load into a running shard does not: its trainers
begin anew.

It holds the group, its rounds with the parts that wait, the ranges of the training rows, answers and walks
of clear, drop and shrink, tables that take no more pushes, how often a dense table changed and the first
values that are on their way, and where the logs of geo mode end. The text is JSON; bytes in it are
``{"bytes": [begin, end]}`` of the blob.

What always holds: what is captured is of the moment of the cut. Owner: the shard's owner thread.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pserver.server.geo import GeoMethods
from pserver.server.leases import Leases
from pserver.server.lifecycle import LifecycleMethods
from pserver.server.members import Members
from pserver.server.pushes import Pushes
from pserver.server.rounds import Rounds
from pserver.table.registry import Registry

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Memory:
    """Whose state it is: parts of one shard."""

    registry: Registry
    members: Members
    rounds: Rounds
    leases: Leases
    lifecycle: LifecycleMethods
    geo: GeoMethods
    pushes: Pushes

    def capture(self) -> Callable[[], Arrays]:
        """Return what turns the memory of this moment into arrays, in any thread.

        ``text`` (n,) uint8 and ``blob`` (m,) uint8.
        """
        state = {
            "members": self.members.export(),
            "rounds": self.rounds.export(),
            "leases": self.leases.export(),
            "lifecycle": self.lifecycle.export(),
            "geo": self.geo.export(),
            "stopped": {table.spec.name: table.stopped for table in self.registry},
            "dense": {table.spec.name: table.export() for table in self.registry.dense},
        }
        return lambda: packed(state)

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Become what was captured; the tables are there already."""
        state = unpacked(arrays)
        for name, why in state["stopped"].items():
            self.registry.get(name).stopped = why
        for name, plain in state["dense"].items():
            self.registry.get_dense(name).load(plain)
        self.members.load(state["members"])
        self.rounds.load(state["rounds"], self.pushes.mended)
        self.leases.load(state["leases"])
        self.lifecycle.load(state["lifecycle"])
        self.geo.load(state["geo"])


def packed(state: Any) -> Arrays:
    """Return plain data (numbers, text, bytes, lists, dicts with text keys) as two arrays.

    >>> unpacked(packed({"a": [1, b"xy", None]}))
    {'a': [1, b'xy', None]}
    """
    blob = bytearray()

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            begin = len(blob)
            blob.extend(value)
            return {"bytes": [begin, len(blob)]}
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    text = json.dumps(plain(state)).encode()
    return {"text": np.frombuffer(text, np.uint8), "blob": np.frombuffer(bytes(blob), np.uint8)}


def unpacked(arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Return what was packed; tuples come back as lists."""
    blob = arrays["blob"].tobytes()

    def back(value: dict[str, Any]) -> Any:
        if set(value) == {"bytes"} and isinstance(value["bytes"], list):
            begin, end = value["bytes"]
            return blob[begin:end]
        return value

    return json.loads(arrays["text"].tobytes(), object_hook=back)
