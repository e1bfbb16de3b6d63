"""The training loop, as prose: fetch ahead, compute, push; and scoring held-out rows.

Rooms before and after: ``dataset`` brings batches, ``embedding`` rows, a model the logits;
``job`` puts them together, ``progress`` shows what each step reports.

What always holds:
    * With ``prefetch`` p, the pull for batch t + p leaves before batch t is computed, so it sees the
      pushes of batches up to t - 1 at the most; with p = 0 and a window of one, all of them.
    * A batch without samples is an empty part where the mode works in rounds, and has no weight where the
      dense part is stepped with other trainers; elsewhere it is no step, and
      all batches before it are trained on before the next one is waited for.
    * Batches are trained in the order of the data set. Reading and dedupe happen in a thread of
      their own, whose errors are raised here.
"""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

import pserver
from collective.precision import MixedPrecision
from trainer.ahead import read_ahead
from trainer.dataset.batch import Batch
from trainer.dense.split import SplitDense
from trainer.embedding import EmbeddingBag, Fetch
from trainer.evaluate import auc, copc, log_loss
from trainer.modes.base import Mode
from trainer.modes.dense_ranks import DenseOverRanks
from trainer.said import BagFacts


class DenseStep(Protocol):
    """What steps the dense part: a torch optimizer, ``DenseOnServers``, ``DenseOverRanks``, ``SplitDense``."""

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's own
        """Begin a step."""
        ...

    def step(self) -> object:
        """Use the gradients that are there."""
        ...


class CtrModel(nn.Module):
    """A table's rows and a dense part that together give one logit a sample."""

    def __init__(
        self,
        bag: EmbeddingBag,
        dense: nn.Module,
        *,
        device: torch.device,
        precision: MixedPrecision | None = None,
    ) -> None:
        """Join the two.

        Args:
            bag: a module with pooling "sum".
            dense: called with rows (B, F, D) and dense features (B, num_dense).
            device: of the dense part.
            precision: in what it computes while it trains; None: float32.
        """
        super().__init__()
        self.bag = bag
        self.dense = dense.to(device)
        self.precision = precision or MixedPrecision()
        self._device = device

    def fetch(self, batch: Batch, *, distinct: pserver.Distinct | None = None) -> Fetch:
        """Ask for the rows of a batch without waiting."""
        # One key a bag is a matrix of one column; ragged bags come with offsets.
        keys = batch.keys if batch.offsets is not None else batch.keys.reshape(-1, 1)
        return self.bag.fetch(keys, distinct=distinct)

    def pooled(self, batch: Batch, fetch: Fetch) -> Tensor:
        """Return the (B, F, D) pooled rows of a batch."""
        facts = BagFacts.of(batch.labels, batch.num_slots) if self.training else None
        rows: Tensor = self.bag(fetch, batch.offsets, batch.weights, facts)
        return rows.view(batch.num_samples, batch.num_slots, -1)

    @override
    def forward(self, batch: Batch, fetch: Fetch) -> Tensor:
        """Return the (B,) logits of a batch."""
        return self._logits(self.pooled(batch, fetch), batch)

    def _logits(self, rows: Tensor, batch: Batch) -> Tensor:
        dense = torch.from_numpy(batch.dense).to(self._device)
        if not self.training:
            return self.dense(rows, dense)  # type: ignore[no-any-return]
        with self.precision.forward():
            logits: Tensor = self.dense(rows, dense)
        return logits.float()

    def learn(
        self, batch: Batch, fetch: Fetch, *, loss_factor: float = 1.0
    ) -> tuple[float, Tensor]:
        """Hand over the gradients of a batch's mean loss; return the loss and the (B,) logits.

        Args:
            batch: of at least one sample.
            fetch: its rows.
            loss_factor: by which the dense part's gradients are multiplied; the rows' are not.
        """
        if isinstance(self.dense, SplitDense):
            dense = torch.from_numpy(batch.dense)
            return self.dense.learn(self.pooled(batch, fetch), dense, self.labels(batch))
        rows, scale = self.pooled(batch, fetch), self.precision.scale
        factor = loss_factor if scale is None else loss_factor * scale.value
        if factor != 1.0:
            rows.register_hook(lambda grad: grad / factor)  # type: ignore[no-untyped-call]
        logits = self._logits(rows, batch)
        loss = functional.binary_cross_entropy_with_logits(logits, self.labels(batch))
        self.precision.backward(loss if loss_factor == 1.0 else loss * loss_factor)
        return loss.item(), logits.detach()

    def labels(self, batch: Batch) -> Tensor:
        """Return the (B,) labels where the logits are."""
        return torch.from_numpy(batch.labels).to(self._device)


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did.

    Attributes:
        step: from 1.
        batch: what was trained on.
        loss: mean log loss of the batch, before the step; 0 if it had no samples.
        probabilities: (B,) float32 predictions, before the step.
        grad_norm: global norm of the step's gradients, before clipping; None without a mode.
    """

    step: int
    batch: Batch
    loss: float
    probabilities: NDArray[np.float32]
    grad_norm: float | None = None


def train(  # noqa: PLR0913 - a run's parts, by name
    model: CtrModel,
    batches: Iterable[Batch],
    *,
    optimizer: DenseStep,
    mode: Mode | None = None,
    prefetch: int = 1,
    steps_max: int | None = None,
    on_step: Callable[[StepReport], None] = lambda _: None,
) -> int:
    """Train on batches in order and return the number of steps.

    All that was pushed is applied when this returns, and the mode is finished.

    Args:
        model: its table and dense part are trained.
        batches: the data, epochs included.
        optimizer: of the dense part.
        mode: that the model's table goes through; none: a client, which pushes in backward.
        prefetch: batches whose rows are pulled ahead of their step.
        steps_max: stop after that many.
        on_step: called after each step.

    Raises:
        pserver.PserverError: a pull or push failed; the run cannot go on.
        trainer.TrainerError: the data could not be read.
        collective.CollectiveError: another trainer did not come to an average, or has another result.
    """
    model.train()
    in_rounds = isinstance(optimizer, DenseOverRanks | SplitDense) or (mode and mode.in_rounds)
    ahead: deque[tuple[int, Batch, Fetch]] = deque()
    step = num_fetched = 0

    def step_some(*, left: int) -> None:
        nonlocal step
        while len(ahead) > left:
            step += 1
            number, batch, fetch = ahead.popleft()
            with pserver.traced(number, ends=True), pserver.span("step", step=step):
                report = _step(model, batch, fetch, optimizer=optimizer, mode=mode, step=step)
            on_step(report)

    with contextlib.closing(read_ahead(batches, model.bag, depth=prefetch + 1)) as source:
        for number, (batch, distinct) in enumerate(source, 1):  # as the reading thread numbers them
            if not batch.num_samples and not in_rounds:
                step_some(left=0)
                continue
            ahead.append((number, batch, _fetch(model, number, batch, distinct, mode=mode)))
            step_some(left=prefetch)
            num_fetched += 1
            if num_fetched == steps_max:
                break
    step_some(left=0)
    if mode is None:
        model.bag.flush()
    else:
        mode.finish()
    if isinstance(optimizer, DenseOverRanks | SplitDense):
        optimizer.finish()
    return step


def _fetch(
    model: CtrModel,
    number: int,
    batch: Batch,
    distinct: pserver.Distinct,
    *,
    mode: Mode | None,
) -> Fetch:
    """Ask for the rows of the next batch."""
    with pserver.traced(number), pserver.span("fetch"):
        if mode is not None:
            mode.begin_fetch()
        return model.fetch(batch, distinct=distinct)


def _step(
    model: CtrModel,
    batch: Batch,
    fetch: Fetch,
    *,
    optimizer: DenseStep,
    mode: Mode | None,
    step: int,
) -> StepReport:
    """Compute one batch, push the rows' gradients, step the dense part."""
    over_ranks = optimizer if isinstance(optimizer, DenseOverRanks) else None
    with pserver.span("dense values"):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        model.bag.comm.pull_s += time.perf_counter() - begin  # for a dense part on the servers
        if over_ranks is not None:
            over_ranks.begin(batch.num_samples)
    if not batch.num_samples:
        _step_without_samples(optimizer, mode)
        return StepReport(step, batch, 0.0, np.empty(0, np.float32))
    factor = 1.0 if over_ranks is None else over_ranks.loss_factor
    with pserver.span("compute"):
        loss, logits = model.learn(batch, fetch, loss_factor=factor)
    norm, is_made = None, True
    with pserver.span("dense step"):
        if over_ranks is not None:
            norm = over_ranks.average(loss=loss)
            is_made = over_ranks.is_made
        elif isinstance(optimizer, SplitDense):
            norm = optimizer.settle(mode)
            is_made = optimizer.is_made
        elif mode is not None:
            norm, is_made = _settle(model, mode)
        if is_made or isinstance(optimizer, DenseOverRanks | SplitDense):
            optimizer.step()
        probabilities = torch.sigmoid(logits).cpu().numpy()
    report = StepReport(step, batch, loss, probabilities, norm)
    if mode is not None:
        with pserver.span("push"):
            begin = time.perf_counter()
            mode.end_step(samples=batch.num_samples if is_made else 0, loss=report.loss)
            model.bag.comm.push_s += time.perf_counter() - begin
    return report


def _settle(model: CtrModel, mode: Mode) -> tuple[float, bool]:
    """Cut the gradients of a trainer that averages nothing; return their norm, and whether to step."""
    parameters, scale = list(model.dense.parameters()), model.precision.scale
    if scale is None:
        return mode.clip(parameters), True
    scale.take_off([p.grad for p in parameters if p.grad is not None])
    norm = mode.clip(parameters)
    is_made = math.isfinite(norm)
    scale.update(is_made=is_made)
    if not is_made:
        mode.forget_step()
    return norm, is_made


def _step_without_samples(optimizer: DenseStep, mode: Mode | None) -> None:
    """Take part in a step of the others with nothing."""
    assert mode is not None, "only rounds and steps with others have some without samples"
    if isinstance(optimizer, DenseOverRanks):
        optimizer.average()
    if isinstance(optimizer, SplitDense):
        optimizer.settle(mode)
    if isinstance(optimizer, DenseOverRanks | SplitDense):
        optimizer.step()
    if mode.in_rounds:
        mode.end_step(samples=0)


@dataclass(frozen=True, slots=True)
class Score:
    """How good a model is on held-out rows.

    Attributes:
        samples: how many there were.
        auc: exact; NaN if they were of one class only.
        log_loss: in nats.
        copc: clicks over predicted clicks; NaN if none are predicted.
        auc_ceiling: the teacher's AUC on the same rows, the best that can be reached; None where
            the data is real.
        seconds: that scoring took.
    """

    samples: int
    auc: float
    log_loss: float
    copc: float
    auc_ceiling: float | None
    seconds: float


@torch.no_grad()
def score(model: CtrModel, batches: Iterable[Batch]) -> Score:
    """Score held-out rows; nothing on the servers changes.

    Args:
        model: put into evaluation mode while this runs.
        batches: the rows.
    """
    begin = time.perf_counter()
    was_training = model.training
    model.eval()
    probabilities, labels, teachers = [], [], []
    try:
        for batch in batches:
            logits = model(batch, model.fetch(batch))
            probabilities.append(torch.sigmoid(logits).cpu().numpy())
            labels.append(batch.labels)
            if batch.teacher is not None:
                teachers.append(batch.teacher)
    finally:
        model.train(was_training)
    empty = np.empty(0, np.float32)
    scores = np.concatenate([empty, *probabilities])
    truth = np.concatenate([empty, *labels])
    return Score(
        samples=truth.size,
        auc=auc(scores, truth),
        log_loss=log_loss(scores, truth),
        copc=copc(scores, truth),
        auc_ceiling=auc(np.concatenate(teachers), truth) if teachers else None,
        seconds=time.perf_counter() - begin,
    )
