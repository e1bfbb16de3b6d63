"""``trainer run --role embed|dense``: real processes on real data, and what becomes of them when one is killed."""

import functools
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.forked import Piped
from tests.integration.killed import free_port
from tests.integration.servers import Start, endpoints, start_cluster
from tests.unit.trainer.dataset.shared import SHARED
from trainer.cli.main import main
from trainer.config import RunSettings
from trainer.job.run import run

WAIT_S = 240.0
LISTENS = re.compile(r"listens on (\S+)")
HELD_OUT = 2000
AUC_APART_MAX = 0.01


class Trainer:
    """One process of ``trainer run``; what it says is kept, and can be waited for."""

    def __init__(self, *flags: str) -> None:
        self.out = ""
        self.said = ""
        self._came = threading.Condition()
        self._process = Piped(main, "run", *flags, "--json", "--json-progress")
        self._readers = [
            threading.Thread(target=self._read, args=(name,), daemon=True)
            for name in ("stdout", "stderr")
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str) -> None:
        """Keep what comes from one of its outputs."""
        stream = getattr(self._process, name)
        for line in stream:
            with self._came:
                if name == "stdout":
                    self.out += line
                else:
                    self.said += line
                self._came.notify_all()
        stream.close()

    def until(self, pattern: re.Pattern[str]) -> str:
        """Wait until it says something, and return the first group of the pattern."""
        with self._came:
            assert self._came.wait_for(lambda: pattern.search(self.said + self.out), WAIT_S), (
                self.said
            )
            match = pattern.search(self.said + self.out)
        assert match is not None
        return match[match.re.groups]

    def end(self) -> int:
        """Wait for its end, and return its status."""
        status = self._process.wait(WAIT_S)
        for reader in self._readers:
            reader.join(WAIT_S)
        return status

    def summary(self) -> dict[str, Any]:
        """Return its figures, once it has ended well."""
        assert self.end() == 0, self.said
        told: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return told

    def kill(self) -> None:
        """Kill it, if it is there."""
        self._process.kill()


@pytest.fixture
def trainers() -> Iterator[list[Trainer]]:
    """Return a list; what is in it ends with the test."""
    started: list[Trainer] = []
    yield started
    for trainer in started:
        trainer.kill()
        trainer.end()


def start_dense(trainers: list[Trainer], count: int, *flags: str) -> list[str]:
    """Start dense trainers and return where they listen."""
    own = ["--role", "dense", "--listen", "127.0.0.1:0", "--device", "cpu", "--threads", "1"]
    master = f"127.0.0.1:{free_port()}"
    for number in range(count):
        place = ["--trainers", str(count), "--trainer-id", str(number), "--master", master]
        trainers.append(Trainer(*own, *(place if count > 1 else ()), *flags))
    return [trainer.until(LISTENS) for trainer in trainers]


def start_embed(trainers: list[Trainer], count: int, addresses: list[str], *flags: str) -> None:
    """Start embedding trainers."""
    own = ["--role", "embed", "--next", ",".join(addresses), "--trainers", str(count)]
    trainers.extend(
        Trainer(*own, "--trainer-id", str(number), "--threads", "1", *flags)
        for number in range(count)
    )


@functools.cache
def alone(path: Path) -> float:
    """Return the AUC of one process."""
    given = {"data": str(path), "eval_last": HELD_OUT, "batch_size": 64, "device": "cpu"}
    summary = run(RunSettings.make(given, origins={}))
    assert summary.auc is not None
    return summary.auc


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("embeds", "denses"), [(2, 1), (1, 2)])
def test_roles_are_as_good_as_one_process(
    trainers: list[Trainer], start: Start, embeds: int, denses: int
) -> None:
    """On real data the AUC is that of one process to 0.01, where it is scored and where the loss is."""
    path = SHARED / "criteo_10k" / "train_examples.txt"
    if not path.exists():
        pytest.skip("the real data is not here")
    wanted = alone(path)
    servers = endpoints(start_cluster(start, 1))
    addresses = start_dense(trainers, denses)
    data = ["--data", str(path), "--eval-last", str(HELD_OUT), "--ps", servers]
    batch = ["--batch-size", str(64 // embeds), "--mode", "sync", "--sync-divisor", "samples"]
    start_embed(trainers, embeds, addresses, *data, *batch)

    told = [trainer.summary() for trainer in trainers]

    dense, embed = told[:denses], told[denses:]
    assert embed[0]["auc"] == pytest.approx(wanted, abs=AUC_APART_MAX)
    assert embed[0]["eval_samples"] == HELD_OUT
    assert sum(one["samples"] for one in dense) == sum(one["samples"] for one in embed) == 8000
    assert all(one["train_auc"] > 0.65 for one in dense)
    assert '"progress"' in trainers[0].out


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_dense_trainer_that_is_killed_ends_all_others_with_its_name(
    trainers: list[Trainer], start: Start
) -> None:
    """SIGKILL in the middle of training: both embedding trainers and the other dense one say who went."""
    servers = endpoints(start_cluster(start, 1))
    addresses = start_dense(trainers, 2)
    endless = ["--rows", "1000000000", "--scale", "0.001", "--batch-size", "64", "--ps", servers]
    start_embed(trainers, 2, addresses, *endless)
    for trainer in trainers:
        trainer.until(re.compile(r'("step": \d)'))

    trainers[1].kill()

    assert [trainer.end() for trainer in trainers] == [1, -9, 1, 1]
    for embed in trainers[2:]:
        assert f"trainer run: dense trainer {addresses[1]} went away" in embed.said
    last = trainers[0].said.splitlines()[-1]
    assert addresses[1] in last or "rank 1" in last
