"""A user's model in ``trainer run``: by file or module, in stages where it says so, or refused with the reason."""

import sys
from pathlib import Path

import pytest
import torch

import pserver
from tests.unit.trainer.split_runs import SYNC, RunTogether, alone, write
from tests.unit.trainer.test_stages import in_stages
from trainer.model import MODELS, make_model
from trainer.settings.model_name import BUILT_IN

NETS = """
import torch
from torch import nn
from collective import StageEnd

class Net(nn.Module):
    default_dim = 6

    def __init__(self, *, num_slots, num_dense, dim):
        super().__init__()
        self.first = nn.Linear(num_slots * dim + num_dense, 8)
        self.end = StageEnd()
        self.last = nn.Linear(8, 1)

    def forward(self, rows, dense):
        hidden = torch.relu(self.first(torch.cat([rows.flatten(1), dense], 1)))
        return self.last(self.end(hidden)).squeeze(1)

class Plain(Net):
    def __init__(self, **sizes):
        super().__init__(**{n: sizes[n] for n in ("num_slots", "num_dense", "dim")})
        self.end = nn.Identity()

class Wide(Net):
    def forward(self, rows, dense):
        return super().forward(rows, dense)[:, None]

class Broken(Net):
    def forward(self, rows, dense):
        return rows @ dense

class Asks(nn.Module):
    def __init__(self, secret):
        super().__init__()

number = 3
"""


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    """Return a file with models."""
    path = tmp_path / "nets.py"
    path.write_text(NETS, encoding="utf-8")
    return path


def test_the_built_in_names_are_those_of_the_models() -> None:
    """The settings know them without loading torch."""
    assert tuple(MODELS) == BUILT_IN


@pytest.mark.parametrize("cut", ["model", None])
def test_a_model_of_ones_own_is_cut_where_it_says(
    run_together: RunTogether, tmp_path: Path, nets: Path, cut: str | None
) -> None:
    """Two stages by its StageEnd: the parameters of one process, made from the same seed."""
    path = write(tmp_path / "rows.txt", list(range(24)))
    own = {"model": f"{nets}:Net", "dim": None, "batch_size": 8, "seed": 4, **SYNC}

    told, (found,), _ = run_together(in_stages(path, 2, 2, **{**own, "cut": cut}))
    _, (wanted,), _ = run_together([alone(path, **own)])

    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-6)
    # Weights of 26 slots with 6 floats and 13 features: in the first stage, without those of the last.
    assert told[0].watch["dense_parameters_bytes"] == 4 * 8 * (26 * 6 + 13 + 1)
    assert told[1].watch["dense_parameters_bytes"] == 4 * (8 + 1)


def test_a_module_of_the_current_folder_is_found(
    nets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MODULE:CLASS is imported; the same seed makes the same weights, another one others."""
    monkeypatch.chdir(nets.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    made = [
        make_model("nets:Net", num_slots=2, num_dense=1, seed=seed).state_dict()["last.weight"]
        for seed in (1, 1, 2)
    ]

    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nets.py:Nett", "Nett must be a class of .*nets.py that is a torch.nn.Module; its classes are"),
        ("nets.py:number", "number must be a class"),
        ("nest.py:Net", "cannot load .*nest.py: FileNotFoundError"),
        ("no.such.module:Net", "cannot load no.such.module: ModuleNotFoundError"),
        ("nets.py:Wide", r"must return logits of shape \(B,\), which is \(2,\) here, got \(2, 1\)"),
        ("nets.py:Broken", r"forward with rows \(2, 26, 6\) and dense \(2, 13\) failed: RuntimeError"),
        ("nets.py:Asks", "cannot make it with : TypeError.*secret"),
    ],
)  # fmt: skip
def test_what_is_no_model_is_refused(
    run_together: RunTogether, tmp_path: Path, nets: Path, name: str, text: str
) -> None:
    """Before anything trains, with the place and the reason."""
    path = write(tmp_path / "rows.txt", list(range(10)))
    place = f"{nets.parent}/{name}" if name.startswith("ne") else name

    with pytest.raises(pserver.ConfigError, match=f"--model: .*{text}"):
        run_together([alone(path, model=place, dim=None)])


def test_a_model_without_marks_is_not_cut_by_them(
    run_together: RunTogether, tmp_path: Path, nets: Path
) -> None:
    """``--cut model`` says what is missing."""
    path = write(tmp_path / "rows.txt", list(range(10)))
    own = {"model": f"{nets}:Plain", "dim": None, "cut": "model"}

    with pytest.raises(pserver.ConfigError, match="cut model needs StageEnd modules in the model"):
        run_together(in_stages(path, 2, 2, **own))
