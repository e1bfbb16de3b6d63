"""The data sets that a trainer reads: each iterates as ``Batch`` and can resume at a position.

Rooms before and after: files, or nothing for generated data; then ``trainer.loop``. ``reader`` reads files of
one format, each format has a file; ``parquet`` reads named columns; ``batch`` is what they all hand over, ``keys`` the rule that makes keys
of ids.
"""

from trainer.dataset.batch import Batch
from trainer.dataset.files import FileSet, count_files, find_files
from trainer.dataset.generator import Generator
from trainer.dataset.keys import slot_keys
from trainer.dataset.reader import BAD_LINES_MAX, SHOWN_BAD_LINES_MAX, FileReader, Reader
from trainer.dataset.rows import Format, ReadCounts
from trainer.dataset.source import Source, TextFiles
from trainer.errors import DataError

__all__ = [
    "BAD_LINES_MAX",
    "SHOWN_BAD_LINES_MAX",
    "Batch",
    "DataError",
    "FileReader",
    "FileSet",
    "Format",
    "Generator",
    "ReadCounts",
    "Reader",
    "Source",
    "TextFiles",
    "count_files",
    "find_files",
    "slot_keys",
]
