"""Which arrays hold a table's rows: one slab, or the two of the ctr accessor.

Rooms before and after: ``sparse`` has its rows made here, once, from its spec.
"""

import dataclasses
from typing import Any, TypeAlias

from numpy.typing import NDArray

from pserver.spec import TableSpec
from pserver.table.accessor import Accessor
from pserver.table.ctr import CtrSlab
from pserver.table.fields import Fields
from pserver.table.initializer import Initializer
from pserver.table.optimizer import Optimizer, make_optimizer
from pserver.table.slab import Parts, Slab
from pserver.table.slab_half import make_slab
from pserver.table.storage import Storage

AnySlab: TypeAlias = Slab | CtrSlab


def first_part_of(spec: TableSpec, accessor: Accessor) -> Optimizer:
    """Return the rule of a row, or of the wide part of a row that has two."""
    return make_optimizer(spec.optimizer, dim=1 if accessor.is_ctr else spec.dim)


def embedx_part_of(spec: TableSpec) -> Optimizer:
    """Return the rule of the second part of a row of ctr."""
    text = spec.embedx_optimizer or spec.optimizer
    return make_optimizer(text, dim=max(1, spec.dim - 1))


def make_rows(
    spec: TableSpec,
    accessor: Accessor,
    optimizer: Optimizer,
    fields: Fields,
    rule: Initializer,
    *,
    storage: Storage,
) -> AnySlab:
    """Reserve address space for the rows of a table.

    Args:
        spec: of the table.
        accessor: of the spec.
        optimizer: of the first part, see ``first_part_of``.
        fields: the words of a row.
        rule: of first weights.
        storage: where rows lie that are to be on a file.

    Raises:
        ConfigError: the system refused, there is no place for files, or first weights do not fit.
    """
    if not accessor.is_ctr:
        return make_slab(spec, optimizer, rule, storage=storage)
    wide = make_slab(spec, optimizer, rule, storage=storage, part="wide")
    room = spec if spec.dim > 1 else dataclasses.replace(spec, capacity_max=1, storage="memory")
    embedx = make_slab(room, embedx_part_of(spec), rule, storage=storage, part="embedx")
    wide.place, embedx.place = (0, spec.dim), (1, spec.dim)
    return CtrSlab((wide, embedx), fields, accessor, rule, dim=spec.dim)


def memory_of(slab: AnySlab, fields: Fields) -> list[tuple[NDArray[Any], Parts]]:
    """Return every array that makes up the rows, flat, with the parts of a row in order.

    A part is its name, how its bits are read, and how many items it has. What the word ``embedx`` names
    is not among them.
    """
    words: Parts = [(f"field.{f.name}", f.kind, 1) for f in fields.fields.values()]
    blocks = [*slab.blocks(), (fields.words, words)]
    return [*(block for block in blocks if block[1]), (slab.epochs, [("epochs", "uint32", 1)])]
