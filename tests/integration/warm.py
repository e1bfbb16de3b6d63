"""Imported once by the process that servers and trainers are forked from: all modules, and the kernels of the tests.

No channel, port or thread may be made here: they do not outlive a fork.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command does, before torch loads

import torch

import trainer.cli.main
import trainer.job.run  # noqa: F401 - with the two others it brings all that a process needs
from pserver.table.dense import DenseTable
from pserver.table.sparse import SparseTable
from tests.integration.families import DENSE, SPECS

for _spec in SPECS:
    SparseTable(_spec)
DenseTable(DENSE, size=DENSE.length)
torch.optim.SGD(
    [torch.zeros(1)], lr=1.0
)  # the first optimizer loads torch's compiler: 1 s and more
