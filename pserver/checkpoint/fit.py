"""What a table takes from a version that was written with another spec.

Rooms before and after: ``load`` asks once for all tables, before it reads a row.

What always holds: a difference that touches rows is an error that shows both sides, unless the caller
said what to do; a load in which no table fits is an error.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pserver.arrays import Keys
from pserver.errors import CheckpointError
from pserver.spec import DenseSpec, TableSpec, parse_rule
from pserver.table.dense_dump import dense_state
from pserver.table.dump import overlay_rows, put_rows
from pserver.table.optimizer import make_optimizer
from pserver.table.slab_half import largest, narrowed, widened
from pserver.table.sparse import SparseTable

OnMismatch: TypeAlias = Literal["fail", "reset-state", "pad", "convert"]
"""``reset-state`` takes weights and begins the optimizer's state anew; ``pad`` also takes rows of another
dim: more weights begin as first weights, fewer are cut off. ``convert`` takes rows whose weights have another
``row_dtype``, each rounded to the nearest, with all else as it was; one that is too large is an error."""

ON_MISMATCH: tuple[OnMismatch, ...] = ("fail", "reset-state", "pad", "convert")

_TAKES: Mapping[OnMismatch, frozenset[str]] = {
    "fail": frozenset(),
    "reset-state": frozenset({"optimizer"}),
    "pad": frozenset({"optimizer", "dim"}),
    "convert": frozenset({"row_dtype"}),
}
"""The fields that may differ."""

_WEIGHTS = ("weights", "embedx.weights")
"""The columns whose type is the table's ``row_dtype``."""

AnySpec: TypeAlias = TableSpec | DenseSpec

_FREE = ("capacity_max", "storage", "on_nan", "unknown_reads", "seed", "initializer")
"""Fields that stored rows do not depend on: those of the table that takes the rows hold."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How one table is filled.

    Attributes:
        spec: what the table will be.
        is_exact: the stored columns are the table's.
        is_converted: they are but for the type of the weights.
        has_state: the rule keeps state.
        keeps_state: stored state is taken.
    """

    spec: AnySpec
    is_exact: bool = True
    is_converted: bool = False
    has_state: bool = False
    keeps_state: bool = True

    def put(self, table: SparseTable, keys: Keys, rows: Mapping[str, NDArray[Any]]) -> None:
        """Put rows.

        Raises:
            CheckpointError: a weight is larger than the table's ``row_dtype`` has. Nothing was written.
            TableFullError: there is no room for the rows. Nothing was written.
        """
        if self.is_converted:
            rows = {
                name: self._converted(column) if name in _WEIGHTS else column
                for name, column in rows.items()
            }
        if self.is_exact or self.is_converted:
            put_rows(table, keys, rows)
            return
        overlay_rows(table, keys, {name: rows[name] for name in rows if self._takes(name)})

    def dense(self, columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the columns of a dense table, with first state where none is taken."""
        taken = {name: columns[name] for name in columns if self._takes(name)}
        rule = make_optimizer(self.spec.optimizer, dim=1)
        first = np.resize(rule.first_state, rule.state_dim).astype(np.float32)
        begin = 0
        for name, count in rule.parts.items():
            whole = np.full(columns["weights"].size, first[begin], np.float32)
            taken.setdefault(f"state.{name}", whole)
            begin += count
        return taken

    def dense_columns(self) -> list[str]:
        """Return the columns of a dense table."""
        return ["weights", *dense_state(self.spec.optimizer)]

    def _converted(self, weights: NDArray[Any]) -> NDArray[Any]:
        """Return stored weights in the table's type."""
        assert isinstance(self.spec, TableSpec)
        row_dtype, floats = self.spec.row_dtype, widened(weights)
        too_large = np.abs(floats) > largest(row_dtype)
        if too_large.any():
            raise CheckpointError(
                f"table {self.spec.name!r}: {np.count_nonzero(too_large)} of {floats.size} stored weights of "
                f"a file are beyond {largest(row_dtype):g}, the largest {row_dtype}, up to "
                f"{np.abs(floats).max():g}; take row_dtype=bfloat16 or float32"
            )
        return narrowed(floats, row_dtype)

    def _takes(self, name: str) -> bool:
        return self.keeps_state or not name.startswith("state.")


def fit_of(
    stored: Mapping[str, AnySpec],
    wanted: Mapping[str, AnySpec],
    *,
    on_mismatch: OnMismatch,
    where: str,
) -> dict[str, Fit]:
    """Return how each stored table is filled.

    Args:
        stored: the specs of a version.
        wanted: the specs of the tables that exist; none: all are made as they were stored.
        on_mismatch: what to do about differences.
        where: named in an error.

    Raises:
        CheckpointError: tables exist and none of them is stored; or specs differ and
            ``on_mismatch`` does not say what to do about it.
    """
    if not stored:
        raise CheckpointError(f"{where}: holds no tables: nothing would be loaded")
    if wanted and not set(wanted) & set(stored):
        raise CheckpointError(
            f"{where}: holds the tables {', '.join(sorted(stored))}; the servers have "
            f"{', '.join(sorted(wanted))}: nothing would be loaded"
        )
    lines = []
    fits = {}
    for name, spec in stored.items():
        target = wanted.get(name, spec)
        differences = _differences(spec, target)
        if differences and not _may(on_mismatch, spec, differences):
            lines += [
                f"  {name:<16} {field:<12} {old!s:<40} {new}" for field, old, new in differences
            ]
        fits[name] = _fit(spec, target, differences)
    if lines:
        head = f"  {'table':<16} {'field':<12} {'stored':<40} servers"
        raise CheckpointError(
            f"{where}: tables differ from those that the servers have; --on-mismatch reset-state "
            "takes weights only, pad also takes another dim, convert only another row_dtype\n"
            + "\n".join([head, *lines])
        )
    return fits


def _differences(spec: AnySpec, target: AnySpec) -> list[tuple[str, object, object]]:
    """Return field, stored and wanted value wherever rows depend on them."""
    if type(spec) is not type(target):
        return [("kind", type(spec).__name__, type(target).__name__)]
    return [
        (field.name, getattr(spec, field.name), getattr(target, field.name))
        for field in dataclasses.fields(spec)
        if field.name not in _FREE and getattr(spec, field.name) != getattr(target, field.name)
    ]


def _may(
    on_mismatch: OnMismatch, spec: AnySpec, differences: list[tuple[str, object, object]]
) -> bool:
    """Return whether a table may be filled all the same."""
    fields = {field for field, _, _ in differences}
    if isinstance(spec, DenseSpec) and fields != {"optimizer"}:
        return False
    return fields <= _TAKES[on_mismatch]


def _fit(spec: AnySpec, target: AnySpec, differences: list[tuple[str, object, object]]) -> Fit:
    fields = {field for field, _, _ in differences}
    old, new = (parse_rule(each.optimizer, where="optimizer").name for each in (spec, target))
    has_state = make_optimizer(target.optimizer, dim=1).state_dim > 0
    return Fit(
        target,
        is_exact=not differences,
        is_converted=fields == {"row_dtype"},
        has_state=has_state,
        keeps_state="optimizer" not in fields and old == new,
    )
