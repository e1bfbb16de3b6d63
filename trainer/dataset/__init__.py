"""The data sets that a trainer reads: each iterates as ``Batch`` and can resume at a position.

Rooms before and after: files, or nothing for generated data; then ``trainer.loop``. One file a
format, ``batch`` for what they all hand over, ``keys`` for the rule that makes keys of ids.
"""

from trainer.dataset.batch import Batch
from trainer.dataset.criteo import CriteoReader, ReadCounts, count_rows
from trainer.dataset.generator import Generator
from trainer.dataset.keys import slot_keys
from trainer.errors import DataError

__all__ = [
    "Batch",
    "CriteoReader",
    "DataError",
    "Generator",
    "ReadCounts",
    "count_rows",
    "slot_keys",
]
