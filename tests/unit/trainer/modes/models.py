"""What the tests of the modes share: a small torch model, its data, and trainers that run it."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import pserver
from tests.unit.trainers import at_once
from trainer.embedding import EmbeddingBag
from trainer.modes import make_mode
from trainer.modes.base import Mode
from trainer.modes.dense import DenseOnServers
from trainer.strategy import Strategy

NUM_KEYS, SLOTS, DIM = 40, 3, 4


@dataclass(frozen=True)
class Data:
    """One step's samples: (B, SLOTS) keys and (B,) labels."""

    keys: np.ndarray
    labels: np.ndarray

    def split(self, count: int) -> list["Data"]:
        """Return equal shares, one a trainer."""
        pairs = zip(np.split(self.keys, count), np.split(self.labels, count), strict=True)
        return [Data(keys, labels) for keys, labels in pairs]


def batches(count: int, *, size: int = 8, seed: int = 0) -> list[Data]:
    """Return steps of random samples."""
    rng = np.random.default_rng(seed)
    return [
        Data(
            rng.integers(0, NUM_KEYS, (size, SLOTS)).astype(np.uint64),
            rng.random(size, np.float32),
        )
        for _ in range(count)
    ]


class Running:
    """A trainer in the middle of its run: rows and dense part both on the servers."""

    def __init__(self, client: pserver.Client, strategy: Strategy, place: tuple[int, int]) -> None:
        """Join; ``place`` is the trainer's id and how many there are."""
        self.mode: Mode = make_mode(client, strategy, trainer_id=place[0], trainers=place[1])

    def build(self, optimizer: str) -> "Running":
        """Make the model; every trainer but 0 begins with other weights, which are not used."""
        self.bag = EmbeddingBag(
            self.mode,
            "t",
            dim=DIM,
            pooling="mean",
            optimizer=optimizer,
            initializer="uniform:low=-0.5,high=0.5",
        )
        self.head = nn.Linear(DIM, 1)
        rng = np.random.default_rng(self.mode.trainer_id)  # torch's own is shared by all threads
        with torch.no_grad():
            for parameter in self.head.parameters():
                parameter.copy_(torch.from_numpy(rng.random(tuple(parameter.shape), np.float32)))
        self.dense = DenseOnServers(
            self.mode, self.head.parameters(), table="d", optimizer=optimizer
        )
        return self

    def step(self, data: Data) -> float:
        """Train on some samples, and return their mean loss before."""
        self.dense.zero_grad()
        out = self.head(self.bag(data.keys)).squeeze(1)
        loss = (out - torch.from_numpy(data.labels)).square().mean()
        loss.backward()
        self.mode.clip(self.head.parameters())
        self.dense.step()
        mean = float(loss.item())
        self.mode.end_step(samples=len(data.labels), loss=mean)
        return mean

    def run(self, steps: Sequence[Data]) -> list[float]:
        """Train on all, finish, and return the losses."""
        losses = [self.step(data) for data in steps]
        self.mode.finish()
        return losses


@dataclass(frozen=True)
class Outcome:
    """What a run left: rows of all keys, dense values, each trainer's losses and watch list."""

    rows: np.ndarray
    dense: np.ndarray
    losses: list[list[float]]
    facts: list[dict[str, float]]


def train(
    shares: Sequence[Sequence[Data]],
    *,
    shards: int = 1,
    optimizer: str = "sgd:lr=0.1",
    strategy: Strategy | None = None,
    window: int = 4,
) -> Outcome:
    """Train on shares of the data, one trainer each, all at once."""
    chosen = strategy or Strategy(mode="sync")
    count = len(shares)
    with pserver.Cluster(shards) as cluster, cluster.connect() as reader:
        settings = pserver.ClientSettings(window=window)
        clients = [cluster.connect(settings=settings) for _ in shares]

        def run(trainer_id: int) -> tuple[list[float], dict[str, float]]:
            with clients[trainer_id] as client:
                running = Running(client, chosen, (trainer_id, count)).build(optimizer)
                losses = running.run(shares[trainer_id])
                return losses, running.mode.facts()

        results = at_once(*(functools.partial(run, number) for number in range(count)))
        return Outcome(
            rows=reader.peek("t", np.arange(NUM_KEYS)),
            dense=reader.pull_dense("d").values,
            losses=[losses for losses, _ in results],
            facts=[facts for _, facts in results],
        )


def shares_of(steps: Sequence[Data], count: int) -> list[list[Data]]:
    """Return what each of some trainers gets of each step."""
    split = [data.split(count) for data in steps]
    return [[parts[number] for parts in split] for number in range(count)]


def each(outcome: Outcome) -> Iterator[np.ndarray]:
    """Yield what two runs are compared by."""
    yield outcome.rows
    yield outcome.dense
