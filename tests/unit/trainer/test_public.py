"""What ``import trainer`` gives, and when torch is loaded."""

import subprocess
import sys

import pytest

import trainer
from trainer.embedding import EmbeddingBag

WAIT_S = 60.0


def run(code: str) -> str:
    """Return what a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    return done.stdout.strip()


def test_public_names_resolve() -> None:
    """Every name in ``__all__`` is there, and a star import brings just those."""
    space: dict[str, object] = {}
    exec("from trainer import *", space)  # what a user types

    assert set(trainer.__all__) == set(space) - {"__builtins__"}
    assert trainer.EmbeddingBag is EmbeddingBag


def test_unknown_name_is_an_attribute_error() -> None:
    """A name that is not there is refused as Python does it."""
    with pytest.raises(AttributeError, match="module 'trainer' has no attribute 'EmbedingBag'"):
        trainer.EmbedingBag  # noqa: B018 - that is the point


def test_torch_loads_after_the_command_line_set_its_environment() -> None:
    """The command can still say how torch's threads wait: importing it does not load torch."""
    code = """
import sys, trainer, trainer.cli.main
assert "torch" not in sys.modules
import os
try:
    trainer.cli.main.main(["run", "--rows", "1", "--model", "lr", "--dim", "2"])
finally:
    print("torch" in sys.modules, os.environ["OMP_WAIT_POLICY"])
"""
    assert run(code) == "True PASSIVE"
