"""The tables of one shard, by name.

Rooms before and after: ``server.servicer`` asks for a table in the owner thread; a client's
CreateTable makes one.

What always holds: a name stands for one spec, sparse or dense, until the table is dropped.
"""

import dataclasses
from collections.abc import Container, Iterator

from pserver.errors import ConfigError, SpecMismatchError, UnknownTableError, nearest
from pserver.spec import TABLES_MAX, DenseSpec, TableSpec
from pserver.table.accessor import make_accessor
from pserver.table.admission import make_admission_rule
from pserver.table.cut import warm
from pserver.table.dense import DenseTable, spelled_out_dense
from pserver.table.eviction import make_eviction_rule
from pserver.table.initializer import make_initializer
from pserver.table.optimizer import make_optimizer
from pserver.table.shown import warm_shown
from pserver.table.sparse import SparseTable
from pserver.table.storage import MEMORY_ONLY, Storage


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
    accessor = make_accessor(spec.accessor, where=f"{where}: accessor")
    evict = make_eviction_rule(spec.evict, is_ctr=accessor.is_ctr, where=f"{where}: evict")
    admission = make_admission_rule(spec.admission, accessor, where=f"{where}: admission")
    embedx = ""
    if accessor.is_ctr and spec.dim > 1:
        text, what = spec.embedx_optimizer or spec.optimizer, f"{where}: embedx_optimizer"
        embedx = make_optimizer(text, dim=spec.dim - 1, where=what).text
    elif spec.embedx_optimizer:
        raise ConfigError(
            f"{where}: embedx_optimizer has no effect: rows have a second part only with accessor "
            f"ctr and a dim over 1, got {accessor.name} and {spec.dim}; leave it out"
        )
    return dataclasses.replace(
        spec,
        optimizer=optimizer.text,
        initializer=initializer.text,
        accessor=accessor.text,
        embedx_optimizer=embedx,
        admission=admission.text,
        evict=evict.text,
    )


def _refuse_other(kind: str, name: str, difference: str) -> None:
    """Refuse a spec that differs from that of the table of its name.

    Raises:
        SpecMismatchError: it differs.
    """
    if difference:
        raise SpecMismatchError(
            f"{kind} {name!r} exists with another spec (existing against wanted): {difference}"
        )


class Registry:
    """Name to table. Owner: the shard's owner thread.

    Attributes:
        epoch: of every sparse table, old or new: what changes now is stamped with it.
        unknown_reads: what this shard's reads give for a key without a row, instead of what specs say:
            "first" or "zeros"; empty: as specs say.
    """

    def __init__(self, *, storage: Storage = MEMORY_ONLY) -> None:
        """Begin without tables.

        Args:
            storage: where rows lie that are to be on a file.
        """
        self.epoch = 1
        self.unknown_reads = ""
        self._storage = storage
        self._tables: dict[str, SparseTable] = {}
        self._dense: dict[str, DenseTable] = {}

    def __iter__(self) -> Iterator[SparseTable]:
        """Iterate over the sparse tables in order of creation."""
        return iter(self._tables.values())

    @property
    def dense(self) -> Iterator[DenseTable]:
        """Iterate over the dense tables in order of creation."""
        return iter(self._dense.values())

    def create(self, spec: TableSpec) -> SparseTable:
        """Make the table, or return the one that has this very spec.

        Raises:
            ConfigError: the spec cannot work, or there are too many tables.
            SpecMismatchError: the name stands for another spec; the message shows the difference.
        """
        wanted = spelled_out(spec)
        table = self._tables.get(wanted.name)
        if table is not None:
            _refuse_other("table", wanted.name, table.spec.difference(wanted))
            return table
        self._check_free(wanted.name, self._dense, kind="dense")
        table = SparseTable(wanted, storage=self._storage)
        table.epoch = self.epoch
        warm(table)
        warm_shown(table)
        self._tables[wanted.name] = table
        return table

    def get(self, name: str) -> SparseTable:
        """Return the table of that name.

        Raises:
            UnknownTableError: there is none; the message lists those that are.
            SpecMismatchError: the table is dense.
        """
        table = self._tables.get(name)
        if table is None:
            self._check_kind(name, self._dense, kind="dense")
            known = nearest(name, self._tables) if self._tables else "this shard has no tables yet"
            raise UnknownTableError(f"no table {name!r}; {known}")
        return table

    def find(self, name: str) -> SparseTable | DenseTable | None:
        """Return the table of that name, of either kind, or None."""
        return self._tables.get(name) or self._dense.get(name)

    def has(self, table: SparseTable) -> bool:
        """Return whether a table is still here."""
        return self._tables.get(table.spec.name) is table

    def drop(self, name: str) -> None:
        """Forget the table of that name."""
        self._tables.pop(name, None)
        self._dense.pop(name, None)

    def create_dense(self, spec: DenseSpec, *, size: int) -> DenseTable:
        """Make the dense table, or return the one that has this very spec.

        Args:
            spec: of the whole vector.
            size: floats of it that this shard holds.

        Raises:
            ConfigError, SpecMismatchError: as ``create``.
        """
        wanted = spelled_out_dense(spec)
        table = self._dense.get(wanted.name)
        if table is not None:
            _refuse_other("dense table", wanted.name, table.spec.difference(wanted))
            return table
        self._check_free(wanted.name, self._tables, kind="sparse")
        table = DenseTable(wanted, size=size)
        self._dense[wanted.name] = table
        return table

    def get_dense(self, name: str) -> DenseTable:
        """Return the dense table of that name.

        Raises:
            UnknownTableError: there is none; the message lists those that are.
            SpecMismatchError: the table is sparse.
        """
        table = self._dense.get(name)
        if table is None:
            self._check_kind(name, self._tables, kind="sparse")
            known = nearest(name, self._dense) if self._dense else "this shard has none yet"
            raise UnknownTableError(f"no dense table {name!r}; {known}")
        return table

    def raise_epoch(self, epoch: int) -> None:
        """Let what changes from now on be of a later epoch."""
        assert epoch >= self.epoch
        self.epoch = epoch
        for table in self:
            table.epoch = epoch

    def adopt(self, other: "Registry") -> list[str]:
        """Take over the tables of another registry, which is of no use any more.

        Returns:
            The names of tables that stay as they were, since the other one has none of that name.
        """
        left = [name for name in self.names() if name not in other.names()]
        self._tables |= {table.spec.name: table for table in other}
        self._dense |= {table.spec.name: table for table in other.dense}
        self.raise_epoch(max(self.epoch, other.epoch))
        return left

    def names(self) -> list[str]:
        """Return the names of all tables."""
        return [*self._tables, *self._dense]

    def specs(self) -> dict[str, TableSpec | DenseSpec]:
        """Return the spec of each table by name."""
        return {table.spec.name: table.spec for table in (*self, *self.dense)}

    def _check_free(self, name: str, others: Container[str], *, kind: str) -> None:
        """Refuse a new table where the name or the last place is taken."""
        self._check_kind(name, others, kind=kind)
        if len(self._tables) + len(self._dense) >= TABLES_MAX:
            raise ConfigError(f"a shard holds at most {TABLES_MAX} tables, and has that many")

    def _check_kind(self, name: str, others: Container[str], *, kind: str) -> None:
        """Refuse a name that stands for a table of the other kind."""
        if name in others:
            raise SpecMismatchError(f"table {name!r} exists and is {kind}; take another name")
