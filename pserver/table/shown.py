"""Shows and clicks of keys, for a pull that asks for them.

Rooms before and after: ``server.servicer`` asks with a pull; the words are those of the ctr accessor.
"""

import numpy as np

from pserver.arrays import Floats, Keys
from pserver.errors import ShapeError
from pserver.kernel import ctr
from pserver.table.sparse import SparseTable


def check_shown(table: SparseTable) -> None:
    """Refuse a table whose rows have no shows.

    Raises:
        ShapeError: its accessor is named.
    """
    if not table.accessor.is_ctr:
        raise ShapeError(
            f"pull {table.spec.name!r}: only rows of accessor ctr have shows and clicks, and this "
            f"table's is {table.accessor.text}"
        )


def warm_shown(table: SparseTable) -> None:
    """Compile what ``read_shown`` needs, so that no request waits for a compiler."""
    if table.accessor.is_ctr:
        none = np.empty(0, np.float32)
        read_shown(table, np.empty(0, np.uint64), none, none)


def read_shown(table: SparseTable, keys: Keys, shows: Floats, clicks: Floats) -> None:
    """Write the shows and clicks of each key, 0 of one without a row; changes nothing.

    Args:
        table: of ctr.
        keys: (U,) repeats allowed.
        shows: (U,) written.
        clicks: (U,) written.
    """
    ctr.shown(table.fields.floats, table.fields.stride, table.find(keys), shows, clicks)
