"""What loads of a cluster leave in memory."""

import gc
import threading
import weakref
from pathlib import Path

from pserver.table.sparse import SparseTable
from tests.unit.checkpoint.helpers import KEYS, clients, push, spec

WAIT_S = 30.0


def the_table(name: str) -> SparseTable:
    """Return the table of this process that has a name."""
    tables = [
        one for one in gc.get_objects() if type(one) is SparseTable
    ]  # asks no object for its class
    (found,) = (table for table in tables if table.spec.name == name)
    return found


def test_c4_a_table_that_a_load_replaces_is_gone_without_the_collector_of_cycles(
    tmp_path: Path,
) -> None:
    """Its memory is free at once: loads in a row do not pile up until Python looks for cycles."""
    gone = threading.Event()
    with clients(tmp_path, 1) as connect:
        one = connect()
        one.create_table(spec("replaced"))
        push(one, KEYS, table="replaced")
        one.checkpoints.save()
        weakref.finalize(the_table("replaced"), gone.set)
        gc.disable()
        try:
            assert one.checkpoints.load().rows == KEYS.size

            assert gone.wait(WAIT_S)
        finally:
            gc.enable()
