"""What ``trainer.loop`` promises: order, fetching ahead, errors that surface, nothing left running."""

import itertools
import math
import threading
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

import pserver
from tests.unit.trainer.models import (
    IN_ORDER,
    Sum,
    bag,
    batch,
    broken,
    counts,
    ctr_model,
    frozen,
    numbered,
)
from trainer.ahead import read_ahead
from trainer.dataset import Batch, Generator
from trainer.errors import DataError
from trainer.loop import CtrModel, StepReport, train
from trainer.model import make_model


def reading_threads() -> list[str]:
    """Return the reading threads that run."""
    return [thread.name for thread in threading.enumerate() if thread.name == "trainer-read"]


class Teller:
    """Remembers what each step reported."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []

    def __call__(self, report: StepReport) -> None:
        self.reports.append(report)


# --- order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 1, 3, 30])
def test_batches_are_trained_in_order_whatever_is_fetched_ahead(
    client: pserver.Client, prefetch: int
) -> None:
    """Each batch is trained once, in the order of the data, and every push is applied at the end."""
    model, teller = ctr_model(client), Teller()

    steps = train(model, numbered(12), optimizer=frozen(model), prefetch=prefetch, on_step=teller)

    assert steps == 12
    assert [report.step for report in teller.reports] == list(range(1, 13))
    assert [report.batch.position for report in teller.reports] == list(range(1, 13))
    assert counts(client)["keys_pushed"] == 24
    assert not reading_threads()


def test_data_is_read_in_another_thread(client: pserver.Client) -> None:
    """Reading and dedupe happen in one thread of their own."""
    names = []

    def reading() -> Iterator[Batch]:
        for each in numbered(3):
            names.append(threading.current_thread().name)
            yield each

    model = ctr_model(client)
    train(model, reading(), optimizer=frozen(model))

    assert names == ["trainer-read"] * 3


@pytest.mark.parametrize("prefetch", [0, 3])
def test_reading_runs_ahead_by_a_few_batches_only(client: pserver.Client, prefetch: int) -> None:
    """What is read and not yet trained fits the prefetch, twice: pulls, and batches that are ready."""
    num_read, ahead = [0], [0]

    def reading() -> Iterator[Batch]:
        while True:
            num_read[0] += 1
            yield batch([1], [1.0])

    def on_step(report: StepReport) -> None:
        ahead[0] = max(ahead[0], num_read[0] - report.step)

    model = ctr_model(client)
    train(
        model,
        reading(),
        optimizer=frozen(model),
        prefetch=prefetch,
        steps_max=20,
        on_step=on_step,
    )

    assert ahead[0] <= prefetch + (prefetch + 1) + 1  # the last one is in the thread's hand


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_pulls_lag_behind_pushes_by_the_prefetch_and_no_more(
    client: pserver.Client, prefetch: int
) -> None:
    """With a window of one, the pull of a batch sees all pushes but the last ``prefetch``."""
    model, teller = ctr_model(client), Teller()
    data = [batch([7], [1.0]) for _ in range(10)]

    train(model, data, optimizer=frozen(model), prefetch=prefetch, on_step=teller)

    weights = [0.0]  # after each push: w += 1 - sigmoid(w seen), at a learning rate of 1
    for step in range(10):
        seen = weights[max(0, step - prefetch)]
        report = teller.reports[step]
        assert report.probabilities[0] == pytest.approx(1 / (1 + math.exp(-seen)), rel=1e-5)
        assert report.loss == pytest.approx(math.log1p(math.exp(-seen)), rel=1e-5)
        weights.append(weights[-1] + 1 - 1 / (1 + math.exp(-seen)))
    assert client.peek("t", [7]).item() == pytest.approx(weights[-1], rel=1e-5)


def test_no_data_is_no_step(client: pserver.Client) -> None:
    """A data set without batches trains nothing and ends."""
    model = ctr_model(client)

    assert train(model, [], optimizer=frozen(model)) == 0


def test_dense_part_is_trained_too(client: pserver.Client) -> None:
    """The dense optimizer steps once a batch, with that batch's gradient alone."""
    model = ctr_model(client, optimizer="sgd:lr=1e-12")
    optimizer = torch.optim.SGD(model.dense.parameters(), lr=1.0)

    train(model, [batch([1], [1.0]), batch([2], [1.0])], optimizer=optimizer)

    first = 0.5
    second = first + 1 - 1 / (1 + math.exp(-first))
    assert isinstance(model.dense, Sum)
    assert model.dense.bias.item() == pytest.approx(second, rel=1e-5)


# --- an end before the data's end ---------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("steps_max", [1, 2, 7])
def test_steps_max_stops_endless_data(
    client: pserver.Client, steps_max: int, prefetch: int
) -> None:
    """Training ends after ``steps_max`` steps, pulls nothing beyond, and the reading thread ends."""
    model = ctr_model(client)

    steps = train(
        model,
        (batch([number], [1.0]) for number in itertools.count()),
        optimizer=frozen(model),
        prefetch=prefetch,
        steps_max=steps_max,
    )

    assert steps == steps_max
    assert counts(client)["rows"] == counts(client)["keys_pushed"] == steps_max
    assert not reading_threads()


def test_steps_max_beyond_the_data_is_the_data(client: pserver.Client) -> None:
    """More steps than batches are as many steps as batches."""
    model = ctr_model(client)

    assert train(model, numbered(3), optimizer=frozen(model), steps_max=99) == 3


# --- errors -------------------------------------------------------------------------------------


def test_reading_error_comes_after_the_batches_before_it(client: pserver.Client) -> None:
    """What was read before the error is handed over first; then the error itself is raised."""
    error = DataError("file:4: bad")
    got = []

    with pytest.raises(DataError) as caught:  # noqa: PT012 - the batches before are the point
        for each, distinct in read_ahead(broken(3, error), bag(client), depth=1):
            got.append((each.position, distinct.keys.tolist()))

    assert caught.value is error
    assert got == [(1, [1, 2]), (2, [2, 3]), (3, [3, 4])]
    assert not reading_threads()


@pytest.mark.parametrize("kind", [DataError, OSError, SystemExit])
@pytest.mark.parametrize("prefetch", [0, 1])
def test_reading_error_ends_training(
    client: pserver.Client, kind: type[BaseException], prefetch: int
) -> None:
    """An error of any kind in the reading thread is raised by ``train``, which never hangs."""
    model, teller = ctr_model(client), Teller()

    with pytest.raises(kind):
        train(
            model,
            broken(3, kind("bad")),
            optimizer=frozen(model),
            prefetch=prefetch,
            on_step=teller,
        )

    assert [r.batch.position for r in teller.reports] == [1, 2, 3][: 3 - prefetch]
    assert not reading_threads()


def test_keys_that_are_refused_name_the_table(client: pserver.Client) -> None:
    """An error of dedupe comes out of the reading thread too."""
    bad = batch([1], [1.0])
    object.__setattr__(bad, "keys", np.array([1.5]))  # what no reader of ours would hand over

    model = ctr_model(client)
    with pytest.raises(pserver.ShapeError, match="embedding 't': keys came as float64"):
        train(model, [bad], optimizer=frozen(model))


def test_nothing_runs_on_when_a_step_fails(client: pserver.Client) -> None:
    """An error in a step ends the reading thread at once, while the error is still held."""

    def fail(report: StepReport) -> None:
        if report.step == 2:
            raise RuntimeError("on purpose")

    model = ctr_model(client)
    with pytest.raises(RuntimeError, match="on purpose"):
        train(
            model,
            (batch([number], [1.0]) for number in itertools.count()),
            optimizer=frozen(model),
            on_step=fail,
        )

    assert not reading_threads()


def test_abandoned_reading_ends_when_it_is_closed(client: pserver.Client) -> None:
    """Closing the generator ends its thread, though the data does not end."""
    reading = read_ahead((batch([1], [1.0]) for _ in itertools.count()), bag(client), depth=2)
    next(reading)
    assert reading_threads()

    reading.close()

    assert not reading_threads()


class Spoiled(nn.Module):
    """A dense part whose logits are not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    @override
    def forward(self, rows: Tensor, _dense: Tensor) -> Tensor:
        """Return (B,) logits."""
        return rows.sum((1, 2)) * float("nan") + self.bias


@pytest.mark.parametrize("count", [1, 20])
def test_failed_push_ends_training(client: pserver.Client, count: int) -> None:
    """A push that the servers refuse is raised by a later step, or at the end of the data."""
    model, teller = ctr_model(client, Spoiled()), Teller()

    with pytest.raises(pserver.NotFiniteError, match="'t'"):
        train(model, numbered(count), optimizer=frozen(model), on_step=teller)

    assert teller.reports
    assert not reading_threads()
    assert not client.peek("t", np.arange(30)).any()
    client.close(flush=False)  # the pushes after it failed too


def test_closed_client_ends_training() -> None:
    """A client that is closed under the loop is an error, not a wait."""
    client = pserver.embedded(1)
    model = ctr_model(client)

    with pytest.raises(pserver.RequestError, match="this client was closed"):
        train(model, numbered(9), optimizer=frozen(model), on_step=lambda _: client.close())

    assert not reading_threads()


# --- the same numbers ---------------------------------------------------------------------------


@cache
def losses(shards: int, *, prefetch: int = 1) -> list[float]:
    """Return the loss of each of 30 steps of deepfm."""
    teller = Teller()
    with pserver.embedded(shards, settings=IN_ORDER) as client:
        dense = make_model("deepfm", num_slots=26, num_dense=13, dim=4, seed=1)
        rows = bag(client, dim=4, optimizer="adagrad:lr=0.05", initializer="normal:std=0.01")
        model = CtrModel(rows, dense, device=torch.device("cpu"))
        train(
            model,
            Generator(1, batch_size=64, rows=30 * 64, scale=0.001),
            optimizer=torch.optim.Adam(dense.parameters(), lr=0.001),
            prefetch=prefetch,
            on_step=teller,
        )
    return [report.loss for report in teller.reports]


def test_losses_are_the_same_for_any_number_of_shards() -> None:
    """With one seed and a window of one, each step's loss is the same to the bit on 1, 2, 3 shards."""
    one, two, three = losses(1), losses(2), losses(3)

    assert len(one) == 30
    assert one == two == three
    assert losses.__wrapped__(2) == two
    assert one[-1] < one[0]


@pytest.mark.parametrize("prefetch", [0, 3])
def test_losses_are_the_same_in_each_run_for_any_prefetch(prefetch: int) -> None:
    """Rows fetched ahead are older, so losses differ; but in each run by the same to the bit."""
    some = losses(2, prefetch=prefetch)

    assert losses(1, prefetch=prefetch) == some
    assert len(some) == 30
    assert some != losses(2, prefetch=1)


# --- ragged bags --------------------------------------------------------------------------------


def test_g2_ragged_samples_train(client: pserver.Client) -> None:
    """A batch whose slots have no, one or several keys pulls and pushes each of them once (G2)."""
    ragged = Batch(
        keys=np.array([1, 2, 2, 3], np.uint64),
        offsets=np.array([0, 0, 3, 3], np.int64),  # sample 0: none, 1 2 2; sample 1: none, 3
        num_slots=2,
        dense=np.zeros((2, 0), np.float32),
        labels=np.array([1.0, 0.0], np.float32),
        teacher=None,
        position=2,
    )
    model, teller = ctr_model(client), Teller()

    train(model, [ragged], optimizer=frozen(model), on_step=teller)

    assert client.peek("t", [1, 2, 3]).flatten().tolist() == [0.25, 0.5, -0.25]
    assert teller.reports[0].probabilities.tolist() == [0.5, 0.5]
