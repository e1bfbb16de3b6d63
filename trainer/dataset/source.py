"""Files of one format as a data set: how many rows they have, and batches of any range of them.

Rooms before and after: ``data`` chooses one by the settings; ``reader`` reads text, ``parquet`` what its name says.
"""

from dataclasses import dataclass
from typing import Protocol, Unpack

from trainer.dataset.files import FileSet
from trainer.dataset.reader import FileReader, Reader, Span
from trainer.dataset.rows import Format


class Source(Protocol):
    """Counted files. Immutable."""

    @property
    def rows(self) -> int:
        """Return the rows of all files, bad ones included."""
        ...

    @property
    def num_slots(self) -> int:
        """Return F, of every row."""
        ...

    @property
    def num_dense(self) -> int:
        """Return the dense features of every row."""
        ...

    def reader(self, **span: Unpack[Span]) -> Reader:
        """Return the batches of a range of rows; see ``Reader``."""
        ...


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Text files, each line a row.

    Attributes:
        files: counted.
        form: of all of them.
    """

    files: FileSet
    form: Format

    @property
    def rows(self) -> int:
        """Return the rows of all files."""
        return self.files.rows

    @property
    def num_slots(self) -> int:
        """Return F, of every row."""
        return self.form.num_slots

    @property
    def num_dense(self) -> int:
        """Return the dense features of every row."""
        return self.form.num_dense

    def reader(self, **span: Unpack[Span]) -> FileReader:
        """Return the batches of a range of rows; see ``Reader``."""
        return FileReader(self.files, self.form, **span)
