"""What ``trainer.data`` promises: each row is one trainer's, and every model runs on every format."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.trainer.dataset.test_avazu import GOOD
from tests.unit.trainer.models import criteo_line, on_file, settings
from trainer.config import RunSettings
from trainer.data import Data, choose_data, passes, share
from trainer.job.run import run


def rows_of(given_settings: RunSettings) -> Data:
    """Return the rows of a run."""
    return choose_data(given_settings, batch_size=given_settings.batch_size, seed=3)


@given(st.integers(0, 10**12), st.integers(1, 1024))
def test_shares_cut_the_rows_without_gap_or_overlap(rows: int, trainers: int) -> None:
    """The shares of all trainers join to the whole and differ by one row at the most."""
    shares = [share(rows, trainer_id, trainers) for trainer_id in range(trainers)]

    assert shares[0][0] == 0
    assert shares[-1][1] == rows
    assert all(one[1] == other[0] for one, other in itertools.pairwise(shares))
    sizes = {end - begin for begin, end in shares}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("trainers", [1, 2, 3, 7])
def test_shares_of_generated_rows_join_to_the_whole(trainers: int) -> None:
    """Several trainers together generate the very rows that one does."""
    data = rows_of(settings())

    def keys(begin: int, end: int) -> list[np.ndarray]:
        return [batch.keys for batch in data.train(begin, end)]

    parts = [keys(*share(data.rows, trainer_id, trainers)) for trainer_id in range(trainers)]
    assert np.array_equal(
        np.concatenate([block for part in parts for block in part]),
        np.concatenate(keys(0, data.rows)),
    )


def test_passes_repeat_a_share(hundred: Path) -> None:
    """Each pass reads the share anew, and bad lines are those of the last one."""
    hundred.write_text(hundred.read_text(encoding="utf-8") + "bad\n", encoding="utf-8")
    data = rows_of(on_file(hundred, batch_size=10, bad_lines="skip"))

    positions = [batch.position for batch in passes(data, epochs=2, begin=80, end=data.rows)]

    assert positions == [90, 100, 90, 100]
    assert data.bad_lines == 1
    assert data.first_bad_lines[0].startswith(f"{hundred}:101: ")


LINES = {
    "criteo": [criteo_line(number).rstrip() for number in range(60)],
    "avazu": [GOOD.replace(",0,", f",{n % 2},", 1).replace("15706", str(n % 7)) for n in range(60)],
    "libsvm": [
        f"{1 - 2 * (n % 2)} {n % 9}:1 {20 + n % 5}:0.5" + " 7:2" * (n % 3) for n in range(60)
    ],
    "libfm": [f"{n % 2} {n % 9}:1 {20 + n % 5}:1" for n in range(60)],
}
SHAPES = {"criteo": (26, 13), "avazu": (22, 0), "libsvm": (4, 0), "libfm": (2, 0)}


@pytest.mark.parametrize("model", ["lr", "fm", "wide_deep", "deepfm"])
@pytest.mark.parametrize("form", LINES)
def test_every_model_learns_from_every_format(tmp_path: Path, form: str, model: str) -> None:
    """Each built-in model trains on each format, several files of it, and scores held-out rows."""
    for part in range(3):
        text = "".join(f"{line}\n" for line in LINES[form][20 * part : 20 * part + 20])
        (tmp_path / f"{part}.txt").write_text(text, encoding="utf-8")
    pattern = tmp_path / "*.txt"
    given_settings = on_file(
        pattern, format=form, model=model, dim=1 if model == "lr" else 4, eval_last=10, epochs=3
    )

    summary = run(given_settings)

    assert (summary.samples, summary.eval_samples) == (150, 10)
    assert summary.data == f"{pattern}, 50 rows"
    assert summary.log_loss is not None
    data = rows_of(given_settings)
    assert (data.num_slots, data.num_dense) == SHAPES[form]


def test_slots_of_libsvm_are_those_of_the_longest_row_of_all_files(tmp_path: Path) -> None:
    """Training and held-out files are looked at together; a number given is what holds."""
    train, held_out = tmp_path / "train.txt", tmp_path / "eval.txt"
    train.write_text("1 1:1 2:1\n0 3:1\n", encoding="utf-8")
    held_out.write_text("1 1:1 2:1 3:1\n", encoding="utf-8")
    files = {"format": "libsvm", "eval_data": str(held_out)}

    assert rows_of(on_file(train, **files)).num_slots == 3
    assert rows_of(on_file(train, **files, slots=7)).num_slots == 7


def test_weights_of_libsvm_scale_the_gradient(tmp_path: Path) -> None:
    """A feature of value 2 moves its row twice as far as one of value 1, by hand."""
    moved = {}
    for value in (1, 2):
        path = tmp_path / f"{value}.txt"
        path.write_text(f"1 5:{value}\n", encoding="utf-8")
        by_hand = {"initializer": "zeros", "optimizer": "sgd:lr=1", "dense_optimizer": "sgd:lr=0"}
        names = {"model": "lr", "dim": None, "format": "libsvm", "eval_data": str(path)}
        loss = run(on_file(path, **names, **by_hand)).log_loss
        assert loss is not None
        moved[value] = -np.log(np.expm1(loss))  # the logit of the one click after the step

    # the logit was 0, so d(loss)/d(logit) = -1/2, w = value / 2, and the logit value * w
    assert moved == pytest.approx({1: 0.5, 2: 2.0}, abs=1e-5)
