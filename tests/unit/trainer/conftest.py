"""What the tests of the trainer share: a cluster, a file, and one thread of torch."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import torch

import pserver
from tests.unit.trainer.models import IN_ORDER, criteo_line
from trainer.config import RunSettings


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Keep torch from starting threads that wait for each other, and restore what was set."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def client() -> Iterator[pserver.Client]:
    """Return a client of two shards in this process."""
    with pserver.embedded(2, settings=IN_ORDER) as client:
        yield client


@pytest.fixture
def hundred(tmp_path: Path) -> Path:
    """Return a Criteo file of 100 good rows."""
    path = tmp_path / "hundred.txt"
    path.write_text("".join(map(criteo_line, range(100))), encoding="utf-8")
    return path


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take no setting from outside, and leave none of the command's own behind."""
    for name in RunSettings.model_fields:
        monkeypatch.delenv("TRAINER_" + name.upper(), raising=False)
    for name in (
        "GRPC_VERBOSITY",
        "OMP_WAIT_POLICY",
        "CUBLAS_WORKSPACE_CONFIG",
    ):  # which the command sets if nobody has
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("COLUMNS", "200")
    yield
    structlog.reset_defaults()
