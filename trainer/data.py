"""The rows of a run: which files or generated rows, which are held out, and which are this trainer's.

Rooms before and after: ``job`` asks with its settings; behind it are ``dataset``'s readers.

What always holds:
    * Training rows are numbered from 0 over the files in their order, held-out ones follow; trainer t of n
      has those from ⌊rows · t / n⌋ to ⌊rows · (t + 1) / n⌋, so each row is one trainer's, and shares
      differ by one row at the most.
    * Every trainer sees the same numbers, slots and held-out rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainer.config import DataSettings
from trainer.dataset import (
    BAD_LINES_MAX,
    SHOWN_BAD_LINES_MAX,
    Batch,
    DataError,
    Format,
    Generator,
    Reader,
    Source,
    TextFiles,
    count_files,
    find_files,
)
from trainer.dataset.avazu import AvazuFormat
from trainer.dataset.criteo import CriteoFormat
from trainer.dataset.libsvm import LibsvmFormat, Longest
from trainer.settings.columns import names_of

GENERATED_HELD_OUT_ROWS = 200_000
"""Held-out rows of generated data when nothing is said: the AUC's error is below 0.001."""


@dataclass(slots=True)
class Data:
    """The rows of a run. Owner: whoever iterates, one at a time.

    Attributes:
        rows: training rows of a pass, over all trainers, bad lines included.
        num_slots: of a sample.
        num_dense: of a sample.
        source: what the summary calls it.
    """

    rows: int
    num_slots: int
    num_dense: int
    source: str
    _settings: DataSettings
    _batch_size: int
    _seed: int
    _held_out_rows: int = 0
    _files: Source | None = None
    _eval_files: Source | None = None
    _readers: list[Reader] = field(default_factory=list)

    @property
    def has_held_out(self) -> bool:
        """Return whether there are rows to score."""
        return self._held_out_rows > 0

    def begin_pass(self) -> None:
        """Count bad lines of training rows anew."""
        self._readers = []

    def train(self, begin: int, end: int) -> Iterable[Batch]:
        """Return the batches of training rows ``begin`` to ``end``; positions are of the data set."""
        if self._files is None:
            return self._generator(begin, end)
        return self._reader(self._files, begin, end)

    def held_out(self) -> Iterable[Batch]:
        """Return the batches of the held-out rows; there must be some."""
        end = self.rows + self._held_out_rows
        if self._files is None:
            return self._generator(self.rows, end)
        if self._eval_files is not None:
            return self._reader(self._eval_files, 0, self._held_out_rows)
        return self._reader(self._files, self.rows, end)

    @property
    def bad_lines(self) -> int:
        """Return the lines skipped in the last pass, and in the held-out rows read since."""
        return sum(reader.counts.bad_lines for reader in self._readers)

    @property
    def first_bad_lines(self) -> list[str]:
        """Return the first few of them, as file:line and reason."""
        lines = [line for reader in self._readers for line in reader.counts.first_bad_lines]
        return lines[:SHOWN_BAD_LINES_MAX]

    def _generator(self, begin: int, end: int) -> Generator:
        return make_generator(
            self._settings, self._seed, rows=end, skip_rows=begin, batch_size=self._batch_size
        )

    def _reader(self, files: Source, begin: int, end: int) -> Reader:
        reader = files.reader(
            batch_size=self._batch_size,
            skip_rows=begin,
            rows_max=end - begin,
            bad_lines_max=BAD_LINES_MAX if self._settings.bad_lines == "skip" else 0,
        )
        self._readers.append(reader)
        return reader


def choose_data(settings: DataSettings, *, batch_size: int, seed: int) -> Data:
    """Return the rows of a run.

    Args:
        settings: of the data.
        batch_size: samples a batch.
        seed: of generated rows.

    Raises:
        DataError: a file is missing, or has no rows to train on or to score.
    """
    if settings.data is None:
        return _generated(settings, batch_size, seed)
    return _from_files(settings, settings.data, batch_size, seed)


def share(rows: int, trainer_id: int, trainers: int) -> tuple[int, int]:
    """Return the first row of a trainer's share and one more than its last.

    >>> [share(10, trainer_id, 3) for trainer_id in range(3)]
    [(0, 3), (3, 6), (6, 10)]
    """
    return rows * trainer_id // trainers, rows * (trainer_id + 1) // trainers


def passes(data: Data, *, epochs: int, begin: int, end: int) -> Iterator[Batch]:
    """Yield the batches of all passes over a share of the rows."""
    for _ in range(epochs):
        data.begin_pass()
        yield from data.train(begin, end)


def behind(batches: Iterable[Batch], steps: int, *, in_rounds: bool) -> Iterable[Batch]:
    """Yield the batches behind a number of steps: one without samples is a step in rounds only."""
    for batch in batches:
        if steps and (batch.num_samples or in_rounds):
            steps -= 1
        elif not steps:
            yield batch


def make_generator(
    settings: DataSettings, seed: int, *, rows: int, skip_rows: int, batch_size: int
) -> Generator:
    """Return generated rows from ``skip_rows`` to ``rows``."""
    return Generator(
        seed,
        batch_size=batch_size,
        rows=rows,
        skip_rows=skip_rows,
        alpha=settings.alpha,
        scale=settings.scale,
    )


def _generated(settings: DataSettings, batch_size: int, seed: int) -> Data:
    """Return generated rows; the held-out ones follow the training rows."""
    sample = make_generator(settings, seed, rows=1, skip_rows=0, batch_size=1).batch(0, rows=1)
    return Data(
        rows=settings.rows,
        num_slots=sample.num_slots,
        num_dense=sample.dense.shape[1],
        source=f"generated, {settings.rows:,} rows",
        _settings=settings,
        _batch_size=batch_size,
        _seed=seed,
        _held_out_rows=settings.eval_last or GENERATED_HELD_OUT_ROWS,
    )


def _from_files(settings: DataSettings, name: str, batch_size: int, seed: int) -> Data:
    """Return the rows of files."""
    found, held_out = find_files(name), None
    if settings.eval_data is not None:
        held_out = find_files(settings.eval_data)
    files, eval_files = (_parquet if settings.format == "parquet" else _text)(
        settings, found, held_out
    )
    held_out_rows = settings.eval_last or 0
    rows = files.rows - held_out_rows
    if rows < 1:
        held = f", of which the last {held_out_rows} are held out" if held_out_rows else ""
        raise DataError(f"{name}: {files.rows} rows{held}: nothing is left to train on")
    if eval_files is not None:
        held_out_rows = eval_files.rows
        if held_out_rows < 1:
            raise DataError(f"{settings.eval_data}: 0 rows: nothing to score")
    return Data(
        rows=rows,
        num_slots=files.num_slots,
        num_dense=files.num_dense,
        source=f"{name}, {rows:,} rows",
        _settings=settings,
        _batch_size=batch_size,
        _seed=seed,
        _held_out_rows=held_out_rows,
        _files=files,
        _eval_files=eval_files,
    )


def _parquet(
    settings: DataSettings, paths: Sequence[Path], eval_paths: Sequence[Path] | None
) -> tuple[Source, Source | None]:
    """Return training and held-out files of named columns, which have the same ones."""
    # Loads more of pyarrow, for such data only.
    from trainer.dataset.parquet import find_parquet
    from trainer.dataset.parquet_columns import Wanted, check_alike

    wanted = Wanted(
        settings.label_column, names_of(settings.dense_columns), names_of(settings.slot_columns)
    )
    files = find_parquet(paths, wanted, name=str(settings.data))
    if eval_paths is None:
        return files, None
    eval_files = find_parquet(eval_paths, wanted, name=str(settings.eval_data))
    check_alike(
        files.columns, eval_files.columns, first=str(settings.data), where=str(settings.eval_data)
    )
    return files, eval_files


def _text(
    settings: DataSettings, paths: Sequence[Path], eval_paths: Sequence[Path] | None
) -> tuple[Source, Source | None]:
    """Return training and held-out files of lines; the longest of libsvm's says how many slots there are."""
    form, longest = _format(settings)
    files = count_files(paths, form, name=str(settings.data), look=longest.look)
    eval_files = None
    if eval_paths is not None:
        eval_files = count_files(eval_paths, form, name=str(settings.eval_data), look=longest.look)
    if isinstance(form, LibsvmFormat) and settings.slots is None:
        form = LibsvmFormat(slots=longest.slots)
    return TextFiles(files, form), None if eval_files is None else TextFiles(eval_files, form)


def _format(settings: DataSettings) -> tuple[Format, Longest]:
    """Return the format that is named, and what watches how long lines are."""
    longest = Longest()
    if settings.format in ("libsvm", "libfm"):
        return LibsvmFormat(slots=settings.slots or 1), longest
    return (AvazuFormat() if settings.format == "avazu" else CriteoFormat()), longest
