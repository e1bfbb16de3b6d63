"""The tables of one shard, by name.

Rooms before and after: ``server.servicer`` asks for a table in the owner thread; a client's
CreateTable makes one.

What always holds: a name stands for one spec for as long as the process lives.
"""

import dataclasses
from collections.abc import Iterator

from pserver.errors import ConfigError, SpecMismatchError, UnknownTableError, nearest
from pserver.spec import TABLES_MAX, TableSpec
from pserver.table.initializer import make_initializer
from pserver.table.optimizer import make_optimizer
from pserver.table.sparse import SparseTable


def spelled_out(spec: TableSpec) -> TableSpec:
    """Return the spec with every option of its rules written down.

    Raises:
        ConfigError: a rule or an option is unknown, with the nearest valid name.

    >>> spelled_out(TableSpec(name="t", dim=1, optimizer="sgd")).optimizer
    'sgd:lr=0.05'
    """
    where = f"table {spec.name!r}"
    optimizer = make_optimizer(spec.optimizer, dim=spec.dim, where=f"{where}: optimizer")
    initializer = make_initializer(
        spec.initializer, table=spec.name, seed=spec.seed, where=f"{where}: initializer"
    )
    return dataclasses.replace(spec, optimizer=optimizer.text, initializer=initializer.text)


class Registry:
    """Name to table. Owner: the shard's owner thread."""

    def __init__(self) -> None:
        """Begin without tables."""
        self._tables: dict[str, SparseTable] = {}

    def __iter__(self) -> Iterator[SparseTable]:
        """Iterate over the tables in order of creation."""
        return iter(self._tables.values())

    def create(self, spec: TableSpec) -> SparseTable:
        """Make the table, or return the one that has this very spec.

        Raises:
            ConfigError: the spec cannot work, or there are too many tables.
            SpecMismatchError: the name stands for another spec; the message shows the difference.
        """
        wanted = spelled_out(spec)
        table = self._tables.get(wanted.name)
        if table is not None:
            difference = table.spec.difference(wanted)
            if difference:
                raise SpecMismatchError(
                    f"table {wanted.name!r} exists with another spec (existing against wanted): "
                    f"{difference}"
                )
            return table
        if len(self._tables) >= TABLES_MAX:
            raise ConfigError(f"a shard holds at most {TABLES_MAX} tables, and has that many")
        table = SparseTable(wanted)
        self._tables[wanted.name] = table
        return table

    def get(self, name: str) -> SparseTable:
        """Return the table of that name.

        Raises:
            UnknownTableError: there is none; the message lists those that are.
        """
        table = self._tables.get(name)
        if table is None:
            known = nearest(name, self._tables) if self._tables else "this shard has no tables yet"
            raise UnknownTableError(f"no table {name!r}; {known}")
        return table
