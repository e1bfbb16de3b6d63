"""What ``trainer.job.run`` promises of its data: which rows are trained on, which are held out, what is bad."""

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

import pserver
from tests.unit.trainer.models import criteo_line, on_file, settings
from trainer.config import RunSettings
from trainer.data import GENERATED_HELD_OUT_ROWS, Data
from trainer.data import choose_data as choose
from trainer.errors import DataError
from trainer.job.run import run
from trainer.loop import StepReport


def choose_data(settings: RunSettings) -> Data:
    """Return the rows of a run."""
    return choose(settings, batch_size=settings.batch_size, seed=settings.seed)


def test_generated_rows_have_held_out_rows_of_their_own() -> None:
    """Without a word 200,000 rows are held out, which follow the training rows."""
    data = choose_data(settings(eval_last=None))

    assert data.has_held_out
    positions = [batch.position for batch in data.held_out()]
    assert positions[0] == 500 + 64
    assert positions[-1] == 500 + GENERATED_HELD_OUT_ROWS == 200_500


def test_last_rows_of_a_file_are_held_out(hundred: Path) -> None:
    """``eval_last`` keeps the last rows from training and scores on exactly those."""
    data = choose_data(on_file(hundred, eval_last=30))
    assert data.has_held_out
    assert [b.position for b in data.train(0, data.rows)] == [64, 70]
    assert [b.position for b in data.held_out()] == [100]

    summary = run(on_file(hundred, eval_last=30))

    assert (summary.samples, summary.eval_samples) == (70, 30)
    assert summary.data == f"{hundred}, 70 rows"
    assert summary.auc is not None
    assert summary.auc_ceiling is None


def test_held_out_file_is_scored(hundred: Path, tmp_path: Path) -> None:
    """``eval_data`` is scored whole, and all of ``data`` is trained on."""
    other = tmp_path / "other.txt"
    other.write_text("".join(map(criteo_line, range(500, 520))), encoding="utf-8")

    summary = run(on_file(hundred, eval_data=str(other)))

    assert (summary.samples, summary.eval_samples) == (100, 20)


def test_without_held_out_rows_there_is_no_score(hundred: Path) -> None:
    """A file alone is trained on whole; what was not measured is None, and the AUC in training is."""
    summary = run(on_file(hundred))

    assert (summary.auc, summary.log_loss, summary.auc_ceiling) == (None, None, None)
    assert summary.eval_samples == 0
    assert summary.train_auc is not None


def test_held_out_rows_of_one_class_have_no_auc(hundred: Path, tmp_path: Path) -> None:
    """An AUC that does not exist is None; the log loss still is a number."""
    other = tmp_path / "clicks.txt"
    other.write_text(criteo_line(0) * 5, encoding="utf-8")

    summary = run(on_file(hundred, eval_data=str(other)))

    assert summary.auc is None
    assert summary.log_loss is not None


def test_bad_lines_are_counted_when_skipped(hundred: Path) -> None:
    """Skipped lines of training and held-out rows are counted and shown with their places."""
    lines = hundred.read_text(encoding="utf-8").splitlines(keepends=True)
    for number in (3, 40, 95):
        lines[number - 1] = "no row\n"
    hundred.write_text("".join(lines), encoding="utf-8")

    summary = run(on_file(hundred, eval_last=10, bad_lines="skip", epochs=2))

    assert (summary.samples, summary.eval_samples) == (2 * 88, 9)
    assert summary.bad_lines == 3
    assert [line.split(": ")[0] for line in summary.first_bad_lines] == [
        f"{hundred}:{number}" for number in (3, 40, 95)
    ]


def test_only_the_first_bad_lines_are_shown(tmp_path: Path) -> None:
    """Of many bad lines five are told, training rows first."""
    path = tmp_path / "bad.txt"
    path.write_text(("bad\n" + criteo_line(1)) * 20, encoding="utf-8")

    summary = run(on_file(path, eval_last=20, bad_lines="skip"))

    assert summary.bad_lines == 20
    assert [line.split(": ")[0] for line in summary.first_bad_lines] == [
        f"{path}:{number}" for number in (1, 3, 5, 7, 9)
    ]


def test_bad_line_ends_a_run(hundred: Path) -> None:
    """By default the first bad line is an error with its place, after the batches before it."""
    lines = hundred.read_text(encoding="utf-8").splitlines(keepends=True)
    hundred.write_text("".join([*lines[:70], "no row\n", *lines[71:]]), encoding="utf-8")

    with pytest.raises(DataError, match=rf"{hundred}:71: "):
        run(on_file(hundred))


def no_file(path: Path) -> None:
    """Leave the path as it is: nothing there."""


def empty_file(path: Path) -> None:
    """Make a file without rows."""
    path.touch()


def folder(path: Path) -> None:
    """Make a folder."""
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (no_file, "cannot be read: No such file or directory"),
        (empty_file, "0 rows: nothing"),
        (folder, "cannot be read: Is a directory"),
    ],
)
@pytest.mark.parametrize("name", ["data", "eval_data"])
def test_file_without_rows_is_named(
    hundred: Path, tmp_path: Path, make: Callable[[Path], None], fact: str, name: str
) -> None:
    """A file that is missing, empty or none is refused before anything is trained."""
    path = tmp_path / "it"
    make(path)
    steps: list[StepReport] = []
    files = {"data": str(hundred), name: str(path)}

    with pytest.raises(DataError) as caught:
        run(on_file(hundred, **files), on_step=steps.append)

    assert str(caught.value).startswith(f"{path}: ")
    assert fact in str(caught.value)
    assert steps == []


@pytest.mark.parametrize("held_out", [100, 101])
def test_all_rows_held_out_are_refused(hundred: Path, held_out: int) -> None:
    """Holding out every row, or more than there are, says how many there are."""
    with pytest.raises(DataError) as caught:
        run(on_file(hundred, eval_last=held_out))

    assert str(caught.value) == (
        f"{hundred}: 100 rows, of which the last {held_out} are held out: "
        "nothing is left to train on"
    )


def test_pipe_is_refused_since_it_cannot_be_read_twice(tmp_path: Path) -> None:
    """A named pipe would be used up by counting its rows; it is refused before it is opened."""
    pipe = tmp_path / "rows"
    os.mkfifo(pipe)

    with pytest.raises(DataError, match="must be a file, not a pipe"):
        choose_data(on_file(pipe))


def test_columns_of_parquet_train_as_the_same_rows_in_text(hundred: Path, tmp_path: Path) -> None:
    """Criteo's integers and ids as named columns: the same losses and the same held-out rows."""
    (batch,) = choose(on_file(hundred), batch_size=100, seed=0).train(0, 100)
    fields = [line.split("\t") for line in hundred.read_text(encoding="utf-8").splitlines()]
    columns: dict[str, object] = {f"I{i}": batch.dense[:, i] for i in range(13)}
    columns |= {f"C{i}": [int(row[14 + i], 16) for row in fields] for i in range(26)}
    table = pa.table({"click": batch.labels, **columns})
    path = tmp_path / "rows.parquet"
    parquet.write_table(table, path, row_group_size=30)
    told: list[list[float]] = []
    for more in (
        {"data": str(hundred)},
        {"data": str(path), "format": "parquet", "label_column": "click"},
    ):
        told.append([])
        summary = run(
            on_file(hundred, eval_last=30, **more), on_step=lambda step: told[-1].append(step.loss)
        )
        told[-1] += [summary.auc or 0.0, summary.log_loss or 0.0]

    assert told[0] == told[1]
    assert len(told[0]) == 4


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"data": "a", "label_column": "y"}, "label_column has no effect with format criteo"),
        ({"slot_columns": "a"}, "slot_columns has no effect without data"),
        ({"data": "a", "format": "parquet", "slots": 3}, "slots has no effect with format parquet"),
    ],
)
def test_columns_are_refused_where_nothing_reads_them(values: dict[str, object], text: str) -> None:
    """The setting is named, with what it goes with."""
    with pytest.raises(pserver.ConfigError, match=text):
        RunSettings.make(values, origins={})
