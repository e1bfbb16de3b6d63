"""Every field of every spec changes something: none is taken and dropped. A new field needs an entry."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pserver.errors import PserverError
from pserver.spec import DenseSpec, TableSpec
from pserver.table import shrink
from pserver.table.eviction import ROOM
from pserver.table.registry import Registry
from pserver.table.storage import Storage

SPEC = TableSpec(name="t", dim=2, optimizer="adagrad:lr=0.1", capacity_max=ROOM + 1000)
CTR = {"accessor": "ctr:embedx_threshold=0"}

CHANGES: dict[str, tuple[dict[str, Any], object]] = {
    "name": ({}, "u"),
    "dim": ({}, 3),
    "optimizer": ({}, "adagrad:lr=0.2"),
    "initializer": ({}, "uniform:low=-1,high=1"),
    "seed": ({}, 1),
    "capacity_max": ({}, 20),
    "accessor": ({}, CTR["accessor"]),
    "embedx_optimizer": (CTR, "sgd:lr=0.5"),
    "admission": ({}, "count:n=3"),
    "on_nan": ({}, "zero"),
    "unknown_reads": ({}, "zeros"),
    "row_dtype": ({}, "bfloat16"),
    "storage": ({}, "file"),
    "ttl_days": ({}, 1),
    "evict": ({}, "lru:rows=20"),
}
"""For each field of a ``TableSpec`` what must be given besides, and another value than ``SPEC`` has."""

DENSE = DenseSpec(name="d", length=4, optimizer="sgd:lr=1")
DENSE_CHANGES = {"name": "e", "length": 5, "optimizer": "adam"}

Seen = list[object]


def tried(seen: Seen, call: Callable[[], object]) -> None:
    """Note what a call gives, or which error."""
    try:
        given = call()
    except PserverError as error:
        seen.append(type(error).__name__)
    else:
        seen.append(given)


def life_of(spec: TableSpec, folder: Path) -> Seen:
    """Return all that can be seen of a table that is pulled, pushed to, poisoned and shrunk."""
    registry = Registry(storage=Storage(folder))
    registry.create(spec)
    table = registry.get(spec.name)
    seen: Seen = [registry.names()]
    keys = np.arange(40, dtype=np.uint64)

    def push(some: np.ndarray, value: float) -> None:
        grads = np.full(some.size * spec.dim, value, np.float32)
        table.push(some, table.check_push(some, grads))
        table.version += 1

    def pull() -> bytes:
        out = np.empty(10 * spec.dim, np.float32)
        table.check_pull(keys[:10])
        table.pull(keys[:10], out)
        return out.tobytes()

    def peek(some: np.ndarray) -> bytes:
        out = np.empty(some.size * spec.dim, np.float32)
        table.peek(some, out)
        return out.tobytes()

    def let_pass(day: int) -> None:
        shrink.check_shrinkable(table)
        shrunk = shrink.Shrunk(shrink.edges_of(table))
        assert list(shrink.walk(table, day, shrunk, dry=False)) == []

    tried(seen, pull)
    for some in (keys[:10], keys[:10], keys[20:], np.array([30], np.uint64)):
        tried(seen, functools.partial(push, some, 0.5))
    tried(seen, functools.partial(push, keys[:1], float("nan")))
    seen += [table.num_rows, peek(keys), peek(np.array([10**6], np.uint64))]
    for day in (1, 3):
        tried(seen, functools.partial(let_pass, day))
    seen += [table.num_rows, table.row_bytes, table.slab.file_row_bytes]
    table.check()
    return seen


def test_every_field_of_a_table_has_an_entry() -> None:
    """In the order of the spec, so that a new one fails here until it has a change to walk."""
    assert list(CHANGES) == [field.name for field in dataclasses.fields(TableSpec)]
    assert set(DENSE_CHANGES) == {field.name for field in dataclasses.fields(DenseSpec)}


@pytest.mark.parametrize("field", CHANGES)
def test_every_field_of_a_table_changes_what_is_seen(field: str, tmp_path: Path) -> None:
    """Two lives of one spec are the same to the bit; with another value of the field they are not."""
    beside, value = CHANGES[field]
    spec = dataclasses.replace(SPEC, **beside)

    first, again = life_of(spec, tmp_path), life_of(spec, tmp_path)
    other = life_of(dataclasses.replace(spec, **{field: value}), tmp_path)  # type: ignore[arg-type] # by name

    assert first == again
    assert other != first


def dense_life_of(spec: DenseSpec) -> Seen:
    """Return all that can be seen of a dense table that is written and pushed to."""
    registry = Registry()
    registry.create_dense(spec, size=spec.length)
    table = registry.get_dense(spec.name)
    values = np.ones(spec.length, np.float32)
    table.check_init(0, values, trainer=b"1" * 16, force=False, is_last=True)
    table.init(0, values, trainer=b"1" * 16)
    table.push(0, values)
    return [table.spec.name, table.pull(0).tobytes(), table.num_bytes]


@pytest.mark.parametrize("field", DENSE_CHANGES)
def test_every_field_of_a_dense_table_changes_what_is_seen(field: str) -> None:
    """As of a sparse one."""
    other = dataclasses.replace(DENSE, **{field: DENSE_CHANGES[field]})  # type: ignore[arg-type]

    assert dense_life_of(DENSE) == dense_life_of(DENSE)
    assert dense_life_of(other) != dense_life_of(DENSE)
