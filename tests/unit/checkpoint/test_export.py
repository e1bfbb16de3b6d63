"""One file a table: every format holds every row, and reads back as it was."""

from pathlib import Path

import numpy as np
import pytest

import pserver
from pserver.checkpoint.export import WRITERS, export
from pserver.checkpoint.local import LocalStore
from pserver.checkpoint.vector_files import read_vectors_file
from pserver.cli import main as cli
from pserver.table.choice import Choice
from tests.unit.checkpoint.helpers import KEYS, cluster, push, spec


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A full version and a delta of three shards; negative keys are among the rows."""
    folder = tmp_path_factory.mktemp("versions")
    with cluster(folder, 3) as client:
        client.create_table(spec())
        client.create_table(pserver.TableSpec(name="half", dim=3, row_dtype="bfloat16"))
        client.create_table(spec("empty"))
        for table in ("t", "half"):
            push(client, KEYS, table=table)
        client.checkpoints.save()
        push(client, KEYS[:7])
        client.checkpoints.save(mode="delta")
        np.save(folder / "expected.npy", client.peek("t", np.sort(KEYS)))
        np.save(folder / "expected_half.npy", client.peek("half", np.sort(KEYS)))
    return folder


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("table", ["t", "half"])
def test_d9_every_format_holds_every_row_sorted_by_key(
    folder: Path, tmp_path: Path, form: str, table: str
) -> None:
    """D9: one command, one file, without the servers: keys, negative ones too, and exact weights."""
    name = "expected.npy" if table == "t" else "expected_half.npy"
    done = export(LocalStore(folder), "v00000002", table, tmp_path / "out", how=(form, "float32"))
    blocks = list(read_vectors_file(tmp_path / "out", form, []))

    assert (done.rows, done.dim, done.error_max) == (KEYS.size, 3, 0.0)
    assert np.array_equal(np.concatenate([keys for keys, _ in blocks]), np.sort(KEYS))
    assert np.array_equal(np.concatenate([rows for _, rows in blocks]), np.load(folder / name))


@pytest.mark.parametrize(("dtype", "share"), [("float16", 2.0**-11), ("int8", 0.5 / 127)])
@pytest.mark.parametrize("form", ["npy", "safetensors", "parquet"])
def test_rounding_is_within_its_bound_and_told(
    folder: Path, tmp_path: Path, form: str, dtype: str, share: float
) -> None:
    """The error that is told is the error of the file."""
    how = (form, dtype)
    done = export(LocalStore(folder), "v00000002", "t", tmp_path / "out", how=how)  # type: ignore[arg-type]
    expected = np.load(folder / "expected.npy")

    found = np.concatenate([rows for _, rows in read_vectors_file(tmp_path / "out", form, [])])
    errors = np.abs(found - expected)
    assert errors.max() == pytest.approx(done.error_max, abs=1e-6)
    assert 0.0 < done.error_mean <= done.error_max <= 1.01 * share * np.abs(expected).max()


def test_rows_for_serving_are_chosen_by_score_as_the_accessor_says(tmp_path: Path) -> None:
    """base: score 1.5 or more; delta: also 0.25 or more since the last time; both parts in the file."""
    with cluster(tmp_path, 2) as client:
        client.create_table(
            pserver.TableSpec(name="c", dim=3, accessor="ctr:nonclk_coeff=1", optimizer="sgd:lr=1")
        )
        for keys in ([1, 2, 3], [2, 3]):
            client.push("c", keys, np.ones((len(keys), 3)))
        client.checkpoints.save()
        expected = client.peek("c", [2, 3])
    store = LocalStore(tmp_path)

    wanted: list[tuple[Choice, int]] = [("all", 3), ("base", 2), ("delta", 2)]
    for choice, rows in wanted:
        done = export(
            store, "v00000001", "c", tmp_path / choice, how=("npy", "float32"), choice=choice
        )
        assert done.rows == rows
    assert np.array_equal(np.load(tmp_path / "base")["vector"], expected)


def test_choosing_rows_is_refused_where_a_table_has_no_scores(folder: Path, tmp_path: Path) -> None:
    """A plain table keeps no statistics."""
    with pytest.raises(pserver.ConfigError, match="only a table with accessor ctr has scores"):
        export(
            LocalStore(folder),
            "v00000001",
            "t",
            tmp_path / "x",
            how=("npy", "float32"),
            choice="base",
        )


def test_an_empty_table_is_exported_as_no_rows(folder: Path, tmp_path: Path) -> None:
    """D8: no crash, a file that reads as empty."""
    done = export(LocalStore(folder), "v00000001", "empty", tmp_path / "out", how=("npy", "int8"))

    assert done.rows == 0
    assert np.load(tmp_path / "out")["vector"].shape == (0, 3)


def test_a_table_goes_out_and_in_again_by_the_command_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """export says rows, bytes and error in one line, and refuses what a format cannot hold."""
    out = str(tmp_path / "t.csv")

    assert cli.main(["export", str(folder), "--table", "t", "--format", "csv", "--out", out]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f"exported t of v00000002 to {out}: rows 411, dim 3, bytes ")
    words = ["export", str(folder), "--table", "t", "--out", out, "--format", "csv"]
    assert cli.main([*words, "--dtype", "int8"]) == 2
    assert "csv holds no int8" in capsys.readouterr().err


def test_weights_are_taken_from_the_columns_of_a_text(tmp_path: Path) -> None:
    """A table as Paddle's servers write it: key, fields, weights and state; a negative key too."""
    text = tmp_path / "part-0"
    text.write_text("-1 9 0 0.5 3 1 0.25 7 0.5 0.75\n12 9 0 0.5 3 1 1.25 7 1.5 1.75\n")

    ((keys, vectors),) = read_vectors_file(text, "text", [5, 7, 8])

    assert keys.tolist() == [2**64 - 1, 12]
    assert vectors.tolist() == [[0.25, 0.5, 0.75], [1.25, 1.5, 1.75]]


@pytest.mark.parametrize(
    ("form", "content", "problem"),
    [
        ("text", "1 2 3\n1 2\n", r"one length, got \[1, 2\]"),
        ("text", "x 1\n", "invalid literal"),
        ("csv", "id,v0\n1,2\n", "must begin with key"),
        ("npy", "nothing", "npy file"),
        ("jsonl", '{"key": 1}\n', "vector"),
    ],
)
def test_a_file_is_refused_when_it_is_of_another_form(
    tmp_path: Path, form: str, content: str, problem: str
) -> None:
    """With the file and what is wrong with it."""
    path = tmp_path / "file"
    path.write_text(content)

    with pytest.raises(pserver.ConfigError, match=problem):
        list(read_vectors_file(path, form, []))
