"""What ``pserver.table.dense_dump`` promises of a cut while pushes go on; saves and loads have the rest."""

import numpy as np
import pytest

from pserver.spec import DenseSpec
from pserver.table import dense as room
from pserver.table.dense import DenseTable
from pserver.table.dense_dump import DenseCut


def test_a_slice_does_nothing_when_pushes_had_the_last_part_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever copies looks whether parts are left, and a push may come before its turn: no error, no value lost."""
    monkeypatch.setattr(room, "parts_of_slice", lambda size: [(0, 2), (2, size)])
    table = DenseTable(DenseSpec(name="dense", length=3, optimizer="sgd:lr=1"), size=3)
    begin = np.array([1.0, 2.0, 3.0], np.float32)
    table.fill([begin[:2], begin[2:]], version=0, epoch=0)
    cut = DenseCut(table)
    cut.copy_some()
    was_done = cut.is_done

    for part, grads in enumerate((np.ones(2, np.float32), np.ones(1, np.float32))):
        table.push(part, grads)
    cut.copy_some()

    assert (was_done, cut.is_done) == (False, True)
    assert cut.columns()["weights"].tolist() == [1.0, 2.0, 3.0]
    cut.end()
