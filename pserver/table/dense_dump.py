"""A slice of a dense table as named vectors, at one instant, and back.

Rooms before and after: as of ``cut`` and ``dump``, for dense tables.

A column has a float for each weight: ``weights``, and ``state.NAME`` of the optimizer. What the optimizer
keeps once a part (a count of steps) stands there for each weight of the part: so the columns of all
shards, put together, can be cut into other slices.

What always holds: what ``DenseCut.columns`` gives, ``fill_dense`` takes back to the bit.
Owner: the shard's owner thread.
"""

from collections.abc import Mapping

import numpy as np

from pserver.arrays import Floats
from pserver.errors import CheckpointError
from pserver.placement import parts_of_slice
from pserver.table.dense import DenseTable
from pserver.table.optimizer import make_optimizer


class DenseCut:
    """One dense table at one instant. A part is copied in a slice of its own, or before it changes.

    Attributes:
        table: whose it is.
        version, epoch: of the table at the cut.
    """

    def __init__(self, table: DenseTable) -> None:
        """Mark the instant."""
        assert table.watch is None, f"table {table.spec.name!r} has a cut already"
        self.table = table
        self.version, self.epoch = table.version, table.epoch
        self._memory = table.memory()
        self._copies: dict[int, Floats] = {}
        table.watch = self._copy

    @property
    def is_done(self) -> bool:
        """Return whether all parts are copied."""
        return len(self._copies) == len(self._memory)

    def copy_some(self) -> None:
        """Copy the next part, if a push has not had the last one copied since the caller looked."""
        for part in range(len(self._memory)):
            if part not in self._copies:
                return self._copy(part)
        return None

    def end(self) -> None:
        """Let the table go on without the cut."""
        self.table.watch = None

    def columns(self) -> dict[str, Floats]:
        """Return the columns, (size,) each, after the last slice; of no floats without values."""
        found: dict[str, list[Floats]] = {"weights": []}
        for part, (_, state) in enumerate(self._memory):
            row = self._copies[part]
            begin = row.size - sum(state.values())
            size = begin
            found["weights"].append(row[:begin])
            for name, count in state.items():
                floats = row[begin : begin + count]
                column = floats if count == size else np.repeat(floats, size)
                found.setdefault(f"state.{name}", []).append(column)
                begin += count
        return {
            name: np.concatenate([np.empty(0, np.float32), *parts]) for name, parts in found.items()
        }

    def _copy(self, part: int) -> None:
        """Copy a part unless that is done; the table calls this before a part changes."""
        if part < len(self._memory) and part not in self._copies:
            self._copies[part] = self._memory[part][0].copy()


def dense_state(optimizer: str) -> list[str]:
    """Return the columns of the state of a rule, by name.

    >>> dense_state("adam")
    ['state.m', 'state.v', 'state.t']
    """
    return [f"state.{name}" for name in make_optimizer(optimizer, dim=1).parts]


def fill_dense(
    table: DenseTable, columns: Mapping[str, Floats], *, version: int, epoch: int
) -> None:
    """Give a table the values of its slice.

    Args:
        table: that nobody uses yet.
        columns: (size,) of each column of the table's rule.
        version: what it was.
        epoch: what it was.

    Raises:
        CheckpointError: a column is missing, too many, or of another length.
    """
    wanted = {"weights", *dense_state(table.spec.optimizer)}
    sizes = {name: column.size for name, column in columns.items()}
    if sizes != dict.fromkeys(wanted, table.size):
        raise CheckpointError(
            f"table {table.spec.name!r}: its slice has {table.size} floats of "
            f"{', '.join(sorted(wanted))}, the stored one {sizes}"
        )
    rows = []
    for begin, end in parts_of_slice(table.size):
        rule = make_optimizer(table.spec.optimizer, dim=end - begin)
        parts = [columns["weights"][begin:end]]
        for name, count in rule.parts.items():
            column = columns[f"state.{name}"][begin:end]
            parts.append(column if count == end - begin else column[:count])
        row = np.concatenate(parts).astype(np.float32)
        missing = rule.dim + rule.state_dim - row.size  # an empty part has no place for a count
        rows.append(np.concatenate([row, np.zeros(missing, np.float32)]))
    table.fill(rows, version=version, epoch=epoch)
