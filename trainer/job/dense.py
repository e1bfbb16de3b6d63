"""A run with role dense: takes micro-batches of pooled rows, answers with their gradients, steps the dense part.

Rooms before and after: ``job`` calls ``run_dense``; ``dense.elsewhere`` is the other side of the connections, which
``collective.hetero`` keeps.

The dense gradient of a step is that of the mean loss over the samples of all embedding trainers, summed over the
dense trainers, who got micro-batches as they were free. So all of them step alike. It needs no data and no servers:
what the rows look like, the embedding trainers say.

What always holds: the weights do not change while micro-batches of a step are computed. If this trainer fails, the
others are told why. Owner: the training thread.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from rich.console import Console
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn import functional

import pserver
from collective import Group, GroupError, check_same, give_from_first
from collective.hetero import Fact, Receiver, StepEnd, Work
from collective.hetero_wire import Kind
from collective.precision import MixedPrecision
from trainer.config import RunSettings
from trainer.data import Data
from trainer.dataset import Batch
from trainer.dense.memory import memory_facts
from trainer.dense.module import (
    choose_device,
    held_bytes,
    make_dense_optimizer,
    make_precision,
    recompute_named,
)
from trainer.dense.state import export_dense, load_dense
from trainer.errors import TrainerError
from trainer.job.meet import meet, tls_files
from trainer.job.part import PartTrained, part_summary
from trainer.job.progress import ProgressView, Tell, tell_user
from trainer.job.summary import Summary
from trainer.loop import StepReport
from trainer.metrics import metrics_page
from trainer.model import make_model


def run_facts(settings: RunSettings, data: Data, *, dim: int) -> dict[str, Fact]:
    """Return what all trainers of a run with roles must agree on, as an embedding trainer knows it."""
    return {
        "model": settings.model,
        "dim": dim,
        "num_slots": data.num_slots,
        "num_dense": data.num_dense,
        "mode": settings.mode,
        "resume": int(settings.resume),
    }


@dataclass(slots=True)
class _Step:
    """What this trainer computed of a step. Owner: the training thread."""

    loss: float = 0.0
    logits: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)


class DensePart:
    """The dense module of a dense trainer, and its optimizer.

    Attributes:
        steps: that the module took.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        optimizer: str,
        group: Group,
        device: torch.device,
        precision: MixedPrecision | None = None,
    ) -> None:
        """Give every dense trainer the parameters of the first. Every one makes this.

        Args:
            module: its parameters are changed.
            optimizer: torch's, see ``make_dense_optimizer``.
            group: of the dense trainers.
            device: of the module.
            precision: in what it computes while it trains; None: float32.

        Raises:
            pserver.ConfigError: the optimizer is unknown.
            collective.CollectiveError: another dense trainer did not come, or has another module.
        """
        self.steps = 0
        self._module = module.to(device)
        self._device = device
        self._group = group
        self._precision = precision or MixedPrecision()
        self._optimizer = make_dense_optimizer(optimizer, module.parameters())
        self._state = [*module.named_parameters(), *module.named_buffers()]
        give_from_first(self._state, group)
        check_same(self._state, group, what="first values")
        self._step = _Step()

    def score(self, work: Work) -> None:
        """Answer with the logits of a micro-batch."""
        self._module.eval()
        rows, dense = (tensor.to(self._device) for tensor in work.tensors)
        with torch.no_grad():
            work.answer([self._module(rows, dense).cpu()])

    def learn(self, work: Work) -> None:
        """Answer with the gradients of a micro-batch's summed loss, and the logits; keep the module's."""
        self._module.train()
        rows, dense, labels = (tensor.to(self._device) for tensor in work.tensors)
        rows.requires_grad_()
        with self._precision.forward():
            logits = self._module(rows, dense)
        logits = logits.float()
        loss = functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
        loss.backward()  # type: ignore[no-untyped-call]
        assert rows.grad is not None
        logits = logits.detach().cpu()
        work.answer([rows.grad.cpu(), logits])
        self._step.loss += loss.item()
        self._step.logits.append(logits)
        self._step.labels.append(work.tensors[2])

    def end_step(self) -> StepReport:
        """Step with the mean over the samples of all dense trainers; return what was computed here."""
        self.steps += 1
        done, self._step = self._step, _Step()
        labels = torch.cat([*done.labels, torch.empty(0)])
        total = torch.tensor([float(len(labels))], dtype=torch.float64)
        self._group.all_reduce(total, what=f"samples of step {self.steps}")
        parameters = [p for p in self._module.parameters() if p.requires_grad]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).cpu()
        self._group.all_reduce(flat, what=f"gradients of step {self.steps}")
        flat /= max(1.0, float(total))
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, mean in zip(parameters, torch.split(flat, sizes), strict=True):
            parameter.grad = mean.view_as(parameter).to(self._device)
        self._optimizer.step()
        self._optimizer.zero_grad()
        logits = torch.cat([*done.logits, torch.empty(0)])
        loss = done.loss / max(1, len(labels))
        return StepReport(
            self.steps, _batch(labels), loss, torch.sigmoid(logits).numpy(), float(flat.norm())
        )

    def export(self, work: Work) -> None:
        """Answer with weights and optimizer state, as bytes."""
        data = save(export_dense(self._module, self._optimizer))
        work.answer([torch.frombuffer(bytearray(data), dtype=torch.uint8)])

    def load(self, data: Tensor) -> None:
        """Take what ``export`` answered."""
        load_dense(self._module, self._optimizer, load(data.numpy().tobytes()))

    def held_bytes(self) -> dict[str, int]:
        """Return the bytes that are held here of parameters, gradients and optimizer state."""
        return held_bytes(self._module.parameters(), self._optimizer)

    def finish(self) -> None:
        """Compare the parameters with the other dense trainers' at the end."""
        check_same(self._state, self._group, what=f"the end, after {self.steps} steps")


def run_dense(
    settings: RunSettings, *, on_step: Callable[[StepReport], None], tell: Tell
) -> Summary:
    """Be one dense trainer until all embedding trainers are through.

    Args:
        settings: of the run, with role dense.
        on_step: called after each step that this trainer computed something of.
        tell: is told the progress.

    Raises:
        pserver.ConfigError: a setting cannot work.
        collective.CollectiveError: another trainer went away, did not come, or does not agree.
    """
    assert settings.listen is not None, "the settings were checked"
    device = choose_device(settings.device)
    facts: dict[str, Fact] = {"model": settings.model}
    if settings.dim is not None:
        facts["dim"] = settings.dim
    try:
        receiver = Receiver(
            settings.listen,
            bytes_max=settings.stage_queue_bytes,
            facts=facts,
            tls=tls_files(settings),
        )
    except GroupError as error:
        raise pserver.ConfigError(f"--listen: {error}") from error
    try:
        number = f"dense trainer {settings.trainer_id or 0} of {settings.trainers}"
        Console(stderr=True).out(f"{number} listens on {receiver.address}", highlight=False)
        group = meet(settings, timeout_s=settings.barrier_timeout)
        facts = receiver.gather(settings.barrier_timeout)
        part = _dense_part(settings, facts, group=group, device=device)
        if facts.get("resume"):
            part.load(receiver.take_state(settings.barrier_timeout))
        trained = _train(settings, part, receiver, on_step=on_step, tell=tell)
    except BaseException as error:
        receiver.close(str(error) or type(error).__name__)
        raise
    receiver.close()
    plural = "s" if receiver.trainers > 1 else ""
    data = f"rows of {receiver.trainers} embedding trainer{plural}"
    return part_summary(settings, trained, data=data, mode=str(facts["mode"]))


def _dense_part(
    settings: RunSettings, facts: dict[str, Fact], *, group: Group, device: torch.device
) -> DensePart:
    """Return the dense part for rows as the embedding trainers have them."""
    slots, features, dim = (int(facts[name]) for name in ("num_slots", "num_dense", "dim"))
    try:
        module = make_model(
            settings.model, num_slots=slots, num_dense=features, dim=dim, seed=settings.seed
        )
    except TrainerError as error:
        raise pserver.ConfigError(f"the embedding trainers' rows: {error}") from error
    recompute_named(settings, module)
    return DensePart(
        module,
        optimizer=settings.dense_optimizer,
        group=group,
        device=device,
        precision=make_precision(settings),
    )


def _train(
    settings: RunSettings,
    part: DensePart,
    receiver: Receiver,
    *,
    on_step: Callable[[StepReport], None],
    tell: Tell,
) -> PartTrained:
    """Answer what comes until all embedding trainers are through."""
    trained, begin_s, wait_s = PartTrained(), time.perf_counter(), 0.0
    with (
        metrics_page(settings, tell_user) as metrics,
        ProgressView(title=f"dense part of {settings.model}", steps=None, tell=tell) as view,
    ):
        metrics.begin(auc=lambda: view.auc, dense_wait_s=lambda: wait_s)
        while True:
            asked_s = time.perf_counter()
            event = receiver.take(settings.barrier_timeout)
            if event is None:
                break
            if isinstance(event, Work) and event.kind != Kind.TRAIN:
                answer = part.score if event.is_score else part.export
                answer(event)
                continue
            wait_s += time.perf_counter() - asked_s
            if isinstance(event, StepEnd):
                report = part.end_step()
                event.answer()
                if report.batch.num_samples:
                    trained.watch.step(report, queue_depth=0)
                    view.update(report, queue_depth=0)
                    metrics.step(report, loss=trained.watch.loss)
                    on_step(report)
                trained.seconds = time.perf_counter() - begin_s
            else:
                part.learn(event)
        metrics.end()
    part.finish()
    trained.auc = view.auc
    trained.wait_share = wait_s / trained.seconds if trained.seconds else 0.0
    trained.facts = {
        "embed_wait_share": trained.wait_share,
        "stage_queue_bytes_max": float(receiver.peak_bytes),
        **memory_facts(part.held_bytes()),
    }
    return trained


def _batch(labels: Tensor) -> Batch:
    """Return samples of which only the labels are known here."""
    count = len(labels)
    return Batch(
        keys=np.empty(0, np.uint64),
        offsets=np.zeros(count, np.int64),
        num_slots=1,
        dense=np.empty((count, 0), np.float32),
        labels=labels.numpy(),
        teacher=None,
        position=0,
    )
