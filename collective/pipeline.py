"""Trains a model whose stages lie on several ranks: one rank's part of every step.

Rooms before and after: ``pipeline_cut`` gives the stages, ``pipeline_timetable`` the order;
``pipeline_queue`` carries what goes between ranks, and ``pipeline_clock`` says where the time goes.

A batch is split into micro-batches, which follow each other through the stages; ``step`` computes the gradients of
the mean loss over the batch, as one process would. Micro-batches differ in size where the batch does not divide, and
weigh by their samples; one without samples passes as an empty parcel.

torch.distributed.pipelining is not what runs here, though its split of backward is: its executor needs
as many micro-batches as stages, sends only between neighbours that agreed on shapes, and takes the default
process group (read in torch 2.13; pytorch issues 126600, 127964, 132644). What splits backward is imported
for ``zero_bubble`` only: torch's compiler and more come with it, and every trainer imports this file.

What always holds: after ``step`` returned on any rank, all ranks have all gradients of that step. If it raises on
one, it raises on all within the limit of the group: there with the exception, elsewhere with a
``StageError`` that says which. Owner: the training thread.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from collective.errors import GroupError, TensorError
from collective.group import Group
from collective.pipeline_clock import StepClock
from collective.pipeline_cut import Stage
from collective.pipeline_parcel import Parcel
from collective.pipeline_queue import BYTES_MAX, PipelineQueue
from collective.pipeline_timetable import Kind, Timetable

Loss = Callable[[Tensor, Tensor], Tensor]
"""Takes the output and the targets of some samples, and returns the mean over them."""

_NAMES: Mapping[Kind, str] = {"F": "forward", "B": "backward", "W": "backward of the weights"}


@dataclass(frozen=True, slots=True)
class Stepped:
    """What a step was, the same on all ranks.

    Attributes:
        loss: mean over the samples; 0 if there were none.
        samples: of the batch.
        told: what the rank of the last stage told all; None: nothing.
    """

    loss: float
    samples: int
    told: Tensor | None = None


@dataclass(slots=True)
class _Held:
    """What one stage keeps of one micro-batch from its forward to its last backward."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    groups: list[dict[str, Any]] = field(default_factory=list)
    """Of torch's split backward: where the weights' gradients begin."""
    roots: tuple[list[Tensor], list[Tensor]] | None = None
    """Outputs and their gradients, if no stage waits for its inputs': all is done with the weights."""


class Pipeline:
    """One rank's stages. Made on every rank of a group; close it at the end.

    Attributes:
        queue: what is on its way; its ``waiting_bytes`` and ``peak_bytes`` are the gauges.
        clock: where the time goes.
        timetable: that it works by.
    """

    def __init__(  # noqa: PLR0913 - a rank's parts, by name
        self,
        stages: Sequence[Stage],
        timetable: Timetable,
        group: Group,
        loss: Loss,
        *,
        device: str | torch.device = "cpu",
        queue_bytes_max: int = BYTES_MAX,
        within: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
        tells: Callable[[], Tensor | None] = lambda: None,
    ) -> None:
        """Take this rank's stages, and connect to the others.

        Args:
            stages: all of the model's, the same on all ranks; only this rank's are kept.
            timetable: of as many stages and ranks.
            group: the ranks; while this is open nobody else sends or receives in it.
            loss: of the last stage.
            device: of this rank's stages.
            queue_bytes_max: bytes on their way that may wait on this rank.
            within: context of each forward pass and its loss, such as ``MixedPrecision.forward``.
            tells: returns what the rank of the last stage tells all beside the loss, such as the outputs.

        Raises:
            GroupError: stages, timetable and group do not belong together.
        """
        ranks = len(timetable.columns)
        if (len(stages), group.world_size) != (timetable.stages, ranks):
            raise GroupError(
                f"the timetable is for {timetable.stages} stages on {ranks} ranks, got "
                f"{len(stages)} stages and a group of {group.world_size}"
            )
        if len(stages[-1].gives) != 1:
            raise GroupError(f"the last stage must give one tensor, got {stages[-1].gives}")
        self.timetable = timetable
        self._group = group
        self._loss = loss
        self._device = torch.device(device)
        self._within = within
        self._tells = tells
        self._stages = {s.index: s for s in stages if timetable.rank_of(s.index) == group.rank}
        for stage in self._stages.values():
            stage.module.to(self._device)
        if timetable.schedule == "zero_bubble":
            self._split = importlib.import_module("torch.distributed.pipelining._backward")
        self._last = len(stages) - 1
        self._steps = 0
        self._held: dict[tuple[int, int], _Held | None] = {}
        self._near: dict[tuple[str, int, int], tuple[Tensor | None, ...]] = {}
        self._batch: tuple[list[list[Tensor]], list[Tensor], int] = ([], [], 0)
        self._loss_sum = 0.0
        self._scale = 1.0
        self.clock = StepClock()
        self.queue = PipelineQueue(group, bytes_max=queue_bytes_max)

    @property
    def takes_inputs(self) -> bool:
        """Return whether this rank has the first stage."""
        return 0 in self._stages

    @property
    def takes_targets(self) -> bool:
        """Return whether this rank has the last stage."""
        return self._last in self._stages

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters by their names in the whole model."""
        for stage in self._stages.values():
            yield from stage.module.named_parameters()

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's buffers by their names in the whole model."""
        for stage in self._stages.values():
            yield from stage.module.named_buffers()

    def step(
        self,
        inputs: Sequence[Tensor] | None = None,
        targets: Tensor | None = None,
        *,
        scale: float = 1.0,
    ) -> Stepped:
        """Add the gradients of a batch's mean loss to this rank's parameters. All ranks call it.

        Args:
            inputs: arguments of the model, each (samples, ...); read on the rank of the first stage.
                Those that require gradients, such as pooled rows, get theirs.
            targets: (samples, ...); read on the rank of the last stage.
            scale: what all gradients are multiplied by, such as a ``LossScale``; the loss that is told is not. Read there
                too.

        Raises:
            TensorError: numbers of samples that differ, or a value between stages that is no
                tensor. Gradients hold neither the old nor the new sums.
            StageError, MissingRanksError: another rank failed, or did not come.
        """
        doing = "its batch"
        try:
            with self.clock.during("compute"):
                self._begin(inputs, targets)
                self._scale = scale
                for action in self.timetable.columns[self._group.rank]:
                    doing = f"{_NAMES[action.kind]} of micro-batch {action.micro_batch}"
                    doing = f"stage {action.stage}, {doing}"
                    self._act(action.kind, action.stage, action.micro_batch)
                doing = "the end of the step"
                return self._end()
        except BaseException as error:
            head = f"pipeline step {self._steps}: rank {self._group.ranks[self._group.rank]}"
            self.queue.fail(f"{head}, {doing}: {type(error).__name__}: {error}")
            raise

    def close(self) -> None:
        """Close the connections; all ranks call it."""
        self.queue.close()

    def _begin(self, inputs: Sequence[Tensor] | None, targets: Tensor | None) -> None:
        self._steps += 1
        self.clock.step(has_inputs=self.takes_inputs)
        self._held.clear()
        self._near.clear()
        self._loss_sum = 0.0
        count = self.timetable.micro_batches
        parts: list[list[Tensor]] = []
        wanted: list[Tensor] = []
        samples = -1
        if self.takes_inputs:
            names = self._stages[0].takes
            if inputs is None or len(inputs) != len(names):
                raise TensorError(f"the first stage takes {', '.join(names)}; give as many inputs")
            split = [torch.tensor_split(tensor.to(self._device), count) for tensor in inputs]
            parts = [list(part) for part in zip(*split, strict=True)]
            samples = _samples(inputs)
        if self.takes_targets:
            if targets is None:
                raise TensorError("the rank of the last stage needs targets")
            wanted = list(torch.tensor_split(targets.to(self._device), count))
            samples = _samples([*(inputs or ()), targets] if self.takes_inputs else [targets])
        self._batch = (parts, wanted, samples)

    def _end(self) -> Stepped:
        """Tell the loss, and that this rank is done; hear it of all."""
        self._end_of_device()
        more = self._tells() if self.takes_targets else None
        self.clock.to("bubble")
        own = [self._loss_sum, self._batch[2], self.clock.age_s]
        words = torch.tensor(own, dtype=torch.float64)
        came = self.queue.exchange(self._steps, (words, more))
        told = [numbers.tolist() for numbers, _ in came if numbers is not None]
        self.clock.waited(age_s=max(age_s for *_, age_s in told), came_s=0.0)
        counts = sorted({int(count) for _, count, _ in told if count >= 0})
        if len(counts) > 1:
            raise TensorError(f"inputs and targets differ in samples: {counts}")
        loss = sum(loss for loss, *_ in told)
        return Stepped(loss, counts[0], came[self.timetable.rank_of(self._last)][1])

    def _end_of_device(self) -> None:
        """Wait for what a device was told to compute, so that it is not counted as what follows."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _act(self, kind: Kind, stage: int, part: int) -> None:
        if kind == "F":
            self._forward(self._stages[stage], part)
        elif kind == "B":
            self._backward(stage, part)
        else:
            self._backward_weights(stage, part)

    def _forward(self, stage: Stage, part: int) -> None:
        inputs = self._inputs(stage.index, part)
        outputs: list[Tensor] = []
        if inputs is None:
            self._held[stage.index, part] = None
        else:
            with torch.enable_grad(), self._within():
                outputs = _tensors(stage, stage.module(*inputs))
                if stage.index == self._last:
                    outputs = [self._weighted_loss(outputs[0], part)]
            self._held[stage.index, part] = _Held(inputs, outputs)
        if stage.index < self._last:
            leaves = tuple(_leaf(output) for output in outputs)
            self._give("values", stage.index + 1, part, leaves)

    def _inputs(self, stage: int, part: int) -> list[Tensor] | None:
        """Return what a stage begins with; None if the micro-batch has no samples."""
        if stage == 0:
            inputs = self._batch[0][part]
            return inputs if len(inputs[0]) else None
        values = self._get("values", stage, part, source=stage - 1)
        return [_on(value, self._device) for value in values if value is not None] or None

    def _weighted_loss(self, output: Tensor, part: int) -> Tensor:
        """Return a micro-batch's share of the batch's mean loss."""
        _, targets, samples = self._batch
        loss = self._loss(output, targets[part]) * (len(targets[part]) / samples)
        self._loss_sum += float(loss.detach())
        return loss

    def _backward(self, stage: int, part: int) -> None:
        held = self._held[stage, part]
        grads: tuple[Tensor | None, ...] = ()
        if stage < self._last:
            grads = self._get("gradients", stage, part, source=stage + 1)
        given: list[Tensor | None] = []
        if held is not None:
            if stage == self._last:
                grads = (torch.full_like(held.outputs[0], self._scale),)
            given = self._gradients(held, stage, grads)
        if self.timetable.schedule != "zero_bubble":
            del self._held[stage, part]
        if stage > 0:
            leaves = tuple(None if grad is None else _leaf(grad) for grad in given)
            self._give("gradients", stage - 1, part, leaves)

    def _gradients(
        self, held: _Held, stage: int, grads: Iterable[Tensor | None]
    ) -> list[Tensor | None]:
        """Return the gradients of a micro-batch's inputs, and add those of weights or leave them."""
        pairs = [
            (output, grad.to(self._device))
            for output, grad in zip(held.outputs, grads, strict=True)
            if output.requires_grad and grad is not None
        ]
        outputs, roots = [output for output, _ in pairs], [grad for _, grad in pairs]
        if self.timetable.schedule != "zero_bubble":
            if pairs:
                torch.autograd.backward(outputs, roots)
            # The first stage's inputs are parts of the caller's, to whom their gradients went.
            return [value.grad for value in held.inputs] if stage else []
        if stage == 0 or not pairs or not any(value.requires_grad for value in held.inputs):
            held.roots = (outputs, roots)
            return [None for _ in held.inputs]
        # torch detaches the outputs in place, which views do not allow.
        outputs = [o.clone() if o._is_view() else o for o in outputs]  # noqa: SLF001
        weights = self._stages[stage].module.parameters()
        try:
            found, held.groups = self._split.stage_backward_input(
                outputs, roots, held.inputs, weights
            )
        except RuntimeError as error:
            # torch hides what a layer raised behind an error of its own about shapes.
            raise (error.__cause__ or error) from None
        held.outputs = []
        return list(found)

    def _backward_weights(self, stage: int, part: int) -> None:
        held = self._held.pop((stage, part))
        if held is None:
            return
        if held.roots is not None:
            if held.roots[0]:
                torch.autograd.backward(*held.roots)
            return
        # Groups may share operations, so the first must not free them; they go with `held`.
        weights = self._stages[stage].module.parameters()
        self._split.stage_backward_weight(weights, held.groups, retain_graph=True)

    def _give(
        self,
        what: Literal["values", "gradients"],
        stage: int,
        part: int,
        tensors: tuple[Tensor | None, ...],
    ) -> None:
        """Give tensors to a stage, here or elsewhere."""
        rank = self.timetable.rank_of(stage)
        if rank == self._group.rank:
            self._near[what, stage, part] = tensors
            return
        self._end_of_device()
        with self.clock.during("hand_over"):
            host = tuple(None if t is None else _on(t, torch.device("cpu")) for t in tensors)
            parcel = Parcel(host, age_s=self.clock.age_s)
            self.queue.send(rank, (what, self._steps, stage, part), parcel)

    def _get(
        self, what: Literal["values", "gradients"], stage: int, part: int, *, source: int
    ) -> tuple[Tensor | None, ...]:
        """Return the tensors that another stage gave."""
        rank = self.timetable.rank_of(source)
        if rank == self._group.rank:
            return self._near.pop((what, stage, part))
        self.clock.to("bubble")
        parcel = self.queue.take(rank, (what, self._steps, stage, part))
        self.clock.waited(age_s=parcel.age_s, came_s=parcel.came_s)
        self.clock.to("compute")
        return parcel.tensors


def _samples(tensors: Sequence[Tensor]) -> int:
    """Return the length of some tensors, which must be the same."""
    counts = sorted({len(tensor) for tensor in tensors})
    if len(counts) != 1:
        raise TensorError(f"inputs and targets differ in samples: {counts}")
    return counts[0]


def _tensors(stage: Stage, outputs: Sequence[object]) -> list[Tensor]:
    """Return what a stage gave, which must be tensors."""
    found: list[Tensor] = []
    for name, output in zip(stage.gives, outputs, strict=True):
        if not isinstance(output, Tensor):
            raise TensorError(
                f"stage {stage.index} gives {name!r}, a {type(output).__name__}; only tensors go "
                "between stages: cut elsewhere"
            )
        found.append(output)
    return found


def _leaf(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor without its history."""
    return tensor.detach().contiguous().requires_grad_(tensor.requires_grad)


def _on(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a leaf on a device."""
    if tensor.device == device:
        return tensor
    return tensor.detach().to(device).requires_grad_(tensor.requires_grad)
