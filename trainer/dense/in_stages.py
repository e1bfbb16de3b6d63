"""The dense part cut into the stages of a pipeline, of which this trainer has some.

Rooms before and after: ``loop`` and ``CtrModel`` use it in the trainer of the first stage, which has the rows;
``job.stage`` in the others; ``collective.pipeline`` runs the stages.

Rank r of a run with P trainers a pipeline is place r mod P of pipeline ⌊r / P⌋. All trainers of a pipeline read the same
rows: the first needs their keys, the last their labels. The last one's logits are given to all, so that each can
tell loss and AUC. With several pipelines the gradients are averaged over them in ``step``, by samples.

What always holds: after ``finish`` the whole dense part is in every trainer, so that the first can score it. Owner:
the training thread.
"""

from collections.abc import Mapping
from types import TracebackType

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

import pserver
from collective import GroupError, give_from_first
from collective.group import Group
from collective.mesh import Mesh, make_mesh
from collective.pipeline import Pipeline
from collective.pipeline_clock import PARTS, bubble_share
from collective.pipeline_cut import Stage, StageEnd, cut_model
from collective.pipeline_timetable import bubble_formula, make_timetable
from trainer.config import RunSettings
from trainer.data import Data
from trainer.dense import stage_state
from trainer.dense.module import choose_device, make_precision, scale_facts
from trainer.dense.split import SplitDense
from trainer.dense.stage_steps import StageSteps
from trainer.job.meet import meet
from trainer.modes.base import Mode
from trainer.settings.computing import layer_names, sharding_degree
from trainer.settings.split import BY_MODEL, cut_names, micro_batches, share_of


class DenseInStages(SplitDense):
    """A dense module of which this trainer computes and steps some stages.

    Attributes:
        whole: the module; parameters of other trainers' stages are those of the start until ``finish``.
        steps: what steps this trainer's stages.
        precision: in what they compute.
    """

    def __init__(
        self, whole: nn.Module, settings: RunSettings, example: tuple[Tensor, ...]
    ) -> None:
        """Meet the other trainers, and cut the module. Every trainer makes one.

        Args:
            whole: the module; its first values are those of trainer 0.
            settings: of the run, with several stages.
            example: arguments to choose cuts by.

        Raises:
            GroupError: the module cannot be cut so, or the numbers make no pipeline.
            pserver.ConfigError: the optimizer is unknown.
            collective.CollectiveError: another trainer did not come.
        """
        super().__init__()
        self.whole = whole
        group = meet(settings, timeout_s=settings.barrier_timeout)
        self._mesh, self._talk = _groups(group, settings)
        stages = _cut(whole, settings, example, group)
        give_from_first(whole.named_parameters(), group)
        timetable = make_timetable(
            settings.schedule,
            ranks=self._mesh.pipeline.world_size,
            micro_batches=micro_batches(settings),
            virtual=settings.virtual,
        )
        self._device = choose_device(settings.device)
        self.precision = make_precision(settings)
        self._pipeline = Pipeline(
            stages,
            timetable,
            self._mesh.pipeline,
            self._loss,
            device=self._device,
            queue_bytes_max=settings.stage_queue_bytes,
            within=self.precision.forward,
            tells=lambda: torch.cat(self._logits) if self._logits else torch.zeros(0),
        )
        self._own = dict(self._pipeline.named_parameters())
        self.steps = StageSteps(
            self._own, self._mesh, settings=settings, scale=self.precision.scale
        )
        self.gathers_together = self.steps.is_shared
        self._is_saved = share_of(settings)[0] == 0  # one pipeline's part is all there is to save
        self._clip_norm = settings.clip_norm
        self._rule = settings.dense_optimizer
        self._gathered = 0
        self._loss_now = 0.0
        self._samples = 0
        self._logits: list[Tensor] = []
        ranks = self._talk.world_size
        self._times = torch.zeros(ranks, len(PARTS) + 1, dtype=torch.float64)
        self._is_finished = False

    @override
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and not self._is_finished:
            rank = self._mesh.pipeline.ranks[self._mesh.pipeline.rank]
            self._pipeline.queue.fail(f"trainer {rank} failed: {str(error) or repr(error)}")

    @property
    def waited_s(self) -> float:
        """Return the seconds that the training thread waited for other trainers of the pipeline."""
        seconds = self._pipeline.clock.seconds
        rows_s = 0.0 if self._pipeline.takes_inputs else seconds["rows"]
        return seconds["bubble"] + seconds["hand_over"] + rows_s

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        self._pipeline.clock.to("rows")
        super().zero_grad(set_to_none)

    @override
    def learn(self, rows: Tensor, dense: Tensor, labels: Tensor) -> tuple[float, Tensor]:
        leaf = rows.detach().requires_grad_()
        loss, logits = self._step((leaf, dense), labels)
        with self._pipeline.clock.during("rows"):
            if leaf.grad is not None:  # of all micro-batches: one push
                if self.precision.scale is not None:
                    self.precision.scale.take_off([leaf.grad])
                rows.backward(leaf.grad)  # type: ignore[no-untyped-call]
        return loss, logits

    def follow(self, labels: Tensor) -> tuple[float, Tensor]:
        """Do a step's work of stages behind the first; return the batch's mean loss and (B,) logits."""
        return self._step(None, labels)

    @override
    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        """Return the (B,) logits by the whole module, as it is after ``finish``."""
        logits: Tensor = self.whole(rows, dense)
        return logits

    @override
    def settle(self, mode: Mode | None = None) -> float | None:
        self._pipeline.clock.to("dense_step")
        self.steps.average(self._samples)
        if mode is None:
            if self.steps.looks_at_norms:
                self.steps.cut(self.steps.squares(0.0, 0) ** 0.5)
            return None
        samples = self._samples
        norm = mode.clip(
            (),
            dense_squares=0.0,
            over_ranks=lambda rows: self.steps.squares(rows, samples),
        )
        if self.precision.scale is not None and self._clip_norm is None:
            norm = self.steps.squares(norm * norm, samples) ** 0.5
        self.steps.cut(norm)
        if not self.steps.is_made:
            mode.forget_step()
        return norm

    @property
    @override
    def is_made(self) -> bool:
        return self.steps.is_made

    @override
    def step(self) -> None:
        self.steps.step(self._loss_now, self._samples)
        self._samples, self._loss_now = 0, 0.0
        self._pipeline.clock.to("rest")

    @override
    def finish(self) -> None:
        """End training well: take part until all pipelines are at their end, and gather the whole."""
        self.steps.zero_grad()
        self.steps.take_part()
        self._pipeline.clock.to("rest")
        clock, own = self._pipeline.clock, self._talk.rank
        self._times[own] = torch.tensor(
            [*clock.seconds.values(), clock.total_s], dtype=torch.float64
        )
        self._pipeline.close()
        self._is_finished = True
        self._talk.all_reduce(self._times, what="times of the pipeline")
        found = stage_state.gather(self.whole, self._parts(), self._talk)
        with torch.no_grad():
            for name, value in (*self.whole.named_parameters(), *self.whole.named_buffers()):
                value.copy_(found[name])
        self.whole.to(self._device)

    @override
    def gather_state(self) -> dict[str, Tensor]:
        self._gathered += 1
        self._pipeline.queue.tell(-self._gathered, [])  # hears of it if another one failed
        own = self.steps.gather_state()
        if not self._is_saved:
            return {}
        weights = stage_state.gather(self.whole, self._parts(), self._talk)
        state = stage_state.gather_optimizer(self.whole, own, rule=self._rule, group=self._talk)
        return {f"dense.{name}": value for name, value in weights.items()} | state

    @override
    def resume(self, steps: int = -1, tensors: Mapping[str, Tensor] | None = None) -> int:
        scale = self.precision.scale
        told = self._pipeline.queue.tell(0, [float(steps), *(scale.export() if scale else ())])
        found, *numbers = max(told)  # of the trainer that has servers: steps differ
        if scale is not None:
            scale.load(numbers)
        steps = int(found)
        state = stage_state.spread(tensors, self.whole, rule=self._rule, group=self._talk)
        self.steps.resume(steps, state)
        return steps

    def _parts(self) -> dict[str, Tensor]:
        """Return parameters and buffers of this trainer's stages by name."""
        return {**self._own, **dict(self._pipeline.named_buffers())}

    @override
    def held_bytes(self) -> dict[str, int]:
        return self.steps.held_bytes()

    @override
    def facts(self, *, seconds: float) -> dict[str, float]:
        timetable = self._pipeline.timetable
        ranks = self._mesh.pipeline.world_size
        parts = dict(zip(PARTS, self._times.sum(0).tolist(), strict=False))
        return {
            "bubble_share": bubble_share(parts["bubble"], parts["compute"]),
            "bubble_formula": bubble_formula(ranks, timetable.micro_batches),
            "bubble_planned": timetable.bubble_share,
            "stage_queue_bytes_max": float(self._pipeline.queue.peak_bytes),
            **{
                f"place_{place}_{part}_s": seconds
                for place, times in enumerate(self._times.tolist())
                for part, seconds in zip((*PARTS, "total"), times, strict=True)
            },
            **scale_facts(self.precision.scale),
        }

    def _step(self, inputs: tuple[Tensor, ...] | None, labels: Tensor) -> tuple[float, Tensor]:
        """Compute the gradients of a batch, and give the logits of the last stage to all."""
        self._logits.clear()
        scale = 1.0 if self.precision.scale is None else self.precision.scale.value
        stepped = self._pipeline.step(inputs, labels, scale=scale)
        self._samples, self._loss_now = len(labels), stepped.loss
        assert stepped.told is not None, "the last stage's trainer tells its logits"
        return stepped.loss, stepped.told

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a micro-batch; keeps its logits."""
        logits = logits.float()
        self._logits.append(logits.detach().cpu())
        return functional.binary_cross_entropy_with_logits(logits, labels)


def _cut(
    whole: nn.Module, settings: RunSettings, example: tuple[Tensor, ...], group: Group
) -> list[Stage]:
    """Return the stages of a module, as the settings say."""
    is_marked = any(isinstance(module, StageEnd) for module in whole.modules())
    if settings.cut == BY_MODEL and not is_marked:
        raise GroupError("cut model needs StageEnd modules in the model, which has none")
    return cut_model(
        whole,
        settings.stages,
        cuts=cut_names(settings),
        example=example,
        group=group,
        uncut=layer_names(settings),
    )


def _groups(group: Group, settings: RunSettings) -> tuple[Mesh, Group]:
    """Return the groups of this trainer, and one more of its pipeline, for what is no parcel."""
    ranks = settings.stages // settings.virtual
    mesh = make_mesh(group, pipeline=ranks, sharding=sharding_degree(settings))
    places = range(group.world_size)
    pipelines = [places[begin : begin + ranks] for begin in places[::ranks]]
    return mesh, group.split(pipelines, name="logits")


def example_of(data: Data, *, dim: int, samples: int) -> tuple[Tensor, Tensor]:
    """Return rows and dense features of a batch's shapes."""
    return torch.zeros(samples, data.num_slots, dim), torch.zeros(samples, data.num_dense)


def make_dense_in_stages(
    settings: RunSettings, whole: nn.Module, example: tuple[Tensor, ...]
) -> DenseInStages:
    """Return this trainer's stages; see ``DenseInStages``.

    Raises:
        pserver.ConfigError: the module cannot be cut so, or the numbers make no pipeline.
        collective.CollectiveError: another trainer did not come.
    """
    try:
        return DenseInStages(whole, settings, example)
    except GroupError as error:
        raise pserver.ConfigError(f"stages of {settings.model}: {error}") from error
