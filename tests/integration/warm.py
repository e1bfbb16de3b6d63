"""Imported once by the process that servers are forked from: all modules, and the kernels of the tests.

No channel, port or thread may be made here: they do not outlive a fork.
"""

import pserver.cli  # noqa: F401 - it brings all that a server needs
from pserver.table.dense import DenseTable
from pserver.table.sparse import SparseTable
from tests.integration.families import DENSE, SPECS

for _spec in SPECS:
    SparseTable(_spec)
DenseTable(DENSE, size=DENSE.length)
