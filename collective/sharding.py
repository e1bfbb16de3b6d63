"""Splits an optimizer over the ranks of data-parallel training: ZeRO stages 1 and 2.

Rooms before and after: a training program steps a ``ShardedOptimizer`` where it stepped torch's; sums go
around the ring (``ring``).

The parameters lie one behind the other in one flat tensor, of which each rank owns a chunk: it keeps optimizer state
for that chunk alone. A step sums the gradients so that each rank has its chunk's average, steps it, and gathers all
chunks. With P parameters of 4 bytes, N ranks and k numbers of state a parameter (Adam: 2), a rank holds

=====  ==============  ==============  ===================================
stage  parameters      gradients       state
=====  ==============  ==============  ===================================
0      4 P             4 P             4 k P           (no sharding)
1      4 P             4 P + 4 P / N   4 k P / N
2      4 P             4 P / N         4 k P / N
=====  ==============  ==============  ===================================

Between steps, that is: in stage 2 gradients are whole while backward runs, and given back as they are summed. While it
sums, a step holds them once more, as one tensor.
Stage 3 is torch's: ``full_sharding``.

Of many ranks a few may share one optimizer, and others a second copy of it (``replicas``): then N is those few, and
each chunk is summed over its copies too (``mesh``).

What always holds: all ranks have the same bits in all parameters after a step, and they are those that the
unsharded optimizer would give, if it steps each number by itself (SGD, Adam, AdamW, Adagrad, RMSprop; not
those that look at whole tensors, such as Adafactor, LBFGS or Muon). Owner: the training thread.

Source:
    Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from collective.errors import GroupError, TensorError
from collective.group import Group, alone
from collective.precision import LossScale
from collective.ring import all_gather, own_chunk, reduce_scatter, ring_all_reduce

MakeOptimizer = Callable[[Sequence[Tensor]], Optimizer]

_WHOLE_TENSOR = ("Adafactor", "LBFGS", "Muon", "SparseAdam")
"""Optimizers of torch whose step of a number depends on its tensor, or that take no plain gradients."""


@dataclass(frozen=True, slots=True)
class Averaged:
    """What an average was of.

    Attributes:
        weight: Σ weight over the ranks; 0: nobody had a batch, and there is nothing to step with.
        ranks: that go on.
    """

    weight: float
    ranks: int


class ShardedOptimizer:
    """An optimizer of which each rank holds a part. Made on every rank, for the same parameters.

    Use: backward on each rank's own batch, then ``step(weight)``.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        make: MakeOptimizer,
        group: Group,
        *,
        stage: int = 1,
        replicas: Group | None = None,
    ) -> None:
        """Lay the parameters into one tensor, which they are views of from now on.

        Args:
            named: names and parameters, in the same order and with the same values on all ranks.
            make: makes the optimizer of the tensors that it gets, such as
                ``lambda parameters: torch.optim.Adam(parameters, lr=0.001)``.
            group: the ranks that share the optimizer.
            stage: 1: optimizer state is split; 2: gradients too.
            replicas: the ranks that hold the same chunk, in other such groups; None: there is one group.

        Raises:
            GroupError: an unknown stage, or an optimizer that looks at whole tensors.
            TensorError: a parameter that is not float32 in host memory.
        """
        if stage not in (1, 2):
            raise GroupError(f"stage must be 1 or 2, got {stage}; 3 is torch's fully_shard")
        wanted = [(name, p) for name, p in named if p.requires_grad]
        for name, parameter in wanted:
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                raise TensorError(
                    f"{name}: sharded parameters are float32 on cpu, got {parameter.dtype} "
                    f"on {parameter.device}"
                )
        self._group = group
        self._replicas = alone() if replicas is None else replicas
        self._stage = stage
        self._names = [name for name, _ in wanted]
        self._parameters = [parameter for _, parameter in wanted]
        count = sum(parameter.numel() for parameter in self._parameters)
        self._flat = torch.empty(count)
        self._chunk = nn.Parameter(self._flat[own_chunk(count, group)])  # a view: stepped in place
        self.optimizer = make([self._chunk])
        name = type(self.optimizer).__name__
        if name in _WHOLE_TENSOR:
            raise GroupError(f"{name} looks at whole tensors, so it cannot step a chunk of them")
        for parameter, part in zip(self._parameters, self._parts(self._flat), strict=True):
            part.copy_(parameter.detach().reshape(-1))
            parameter.data = part.view(parameter.shape)

    @property
    def chunk(self) -> nn.Parameter:
        """Return the part of all parameters that this rank steps; its gradient is there after ``average``."""
        return self._chunk

    def step(self, weight: float = 1.0, *, scale: LossScale | None = None) -> float:
        """Average the gradients over the ranks, and step all parameters. All ranks call it.

        Args:
            weight: of this rank's gradients, such as the samples of its batch; 0: it had none.
            scale: by which the loss was multiplied (``precision``), the same on all ranks; it is told of the step.
                If a number of the average is not finite, on whatever rank, no rank steps.

        Returns:
            Σ weight over the ranks; 0: nobody had a batch, and nothing was stepped.

        Raises:
            MissingRanksError: a rank did not come; parameters hold neither old nor new values.
        """
        total = self.average(weight).weight
        if not total:
            return 0.0
        is_made = True
        if scale is not None:
            assert self._chunk.grad is not None, "it was averaged"
            scale.take_off([self._chunk.grad])
            is_made = self._is_finite(self._chunk.grad)
            scale.update(is_made=is_made)
        if is_made:
            self.apply()
        return total

    def average(self, weight: float = 1.0, *, goes_on: bool = True) -> Averaged:
        """Average the gradients over the ranks, so that ``chunk`` has its own. All ranks call it.

        Args:
            weight: of this rank's gradients.
            goes_on: whether this rank has more batches, or may have; False: it takes part for the others' sake.

        Raises:
            MissingRanksError: a rank did not come.
        """
        # The weight is summed in the ring's order too, so all ranks divide by the same bits.
        words = torch.tensor([weight, float(goes_on)], dtype=torch.float64)
        for group in (self._group, self._replicas):
            group.all_reduce(words, what="sharded step: weights")
        found = Averaged(float(words[0]), int(words[1]))
        if not found.weight > 0.0:
            return Averaged(0.0, found.ranks)
        sums = self._weighed(weight)
        own = reduce_scatter(sums, self._group, what="sharded step: gradients")
        # A copy: a view would keep the whole in memory until the next step.
        chunk = sums[own].clone()
        del sums
        ring_all_reduce(chunk, self._replicas, what="sharded step: gradients of replicas")
        self._chunk.grad = chunk.div_(found.weight)
        return found

    def apply(self) -> None:
        """Step this rank's chunk by its gradient, and gather those of all. All ranks call it.

        Raises:
            MissingRanksError: a rank did not come; parameters hold neither old nor new values.
        """
        self.optimizer.step()
        what = "sharded step: parameters"
        all_gather(self._flat, self._group, wire=self._flat.dtype, what=what)

    def _is_finite(self, gradient: Tensor) -> bool:
        """Return whether the averages of all chunks are finite."""
        is_bad = torch.zeros(1)
        is_bad += float(not gradient.isfinite().all())
        self._group.maximum(is_bad, what="sharded step: are gradients finite")
        return not is_bad

    def zero_grad(self) -> None:
        """Forget the gradients; call it before the next backward."""
        for parameter in self._parameters:
            parameter.grad = None

    def held_bytes(self) -> dict[str, int]:
        """Return the bytes this rank holds now, of parameters, gradients and optimizer state."""
        grads = [p.grad for p in (*self._parameters, self._chunk) if p.grad is not None]
        state = [
            value
            for values in self.optimizer.state.values()
            for value in values.values()
            if isinstance(value, Tensor) and value.dim()  # not Adam's count of steps
        ]
        return {
            "parameters": _num_bytes([self._flat]),
            "gradients": _num_bytes(grads),
            "state": _num_bytes(state),
        }

    def gather_state(self) -> dict[str, dict[str, Tensor]]:
        """Return the optimizer's state by parameter and key, as of one that is not shared. All ranks call it.

        Raises:
            MissingRanksError: a rank did not come.
        """
        found: dict[str, dict[str, Tensor]] = {name: {} for name in self._names}
        for key, value in self.optimizer.state[self._chunk].items():
            parts = [value.clone() for _ in self._names]
            if value.dim():
                flat = torch.zeros(self._flat.numel(), dtype=value.dtype)
                flat[own_chunk(flat.numel(), self._group)] = value
                all_gather(flat, self._group, wire=flat.dtype, what=f"gathering {key}")
                parts = self._parts(flat)
            for name, parameter, part in zip(self._names, self._parameters, parts, strict=True):
                found[name][key] = part.view(parameter.shape).clone() if value.dim() else part
        return found

    def take_state(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take what ``gather_state`` returned, on whatever number of ranks. Every rank gets all of it.

        Raises:
            TensorError: a parameter's state is missing, or has another shape.
        """
        missing = [name for name in self._names if name not in state]
        if missing:
            raise TensorError(f"optimizer state lacks {missing[0]}; it is of another model")
        own = own_chunk(self._flat.numel(), self._group)
        for key in state[self._names[0]] if self._names else ():
            values = [state[name][key] for name in self._names]
            if not values[0].dim() and self._parameters[0].dim():
                self.optimizer.state[self._chunk][key] = values[0].clone()
                continue
            for name, parameter, value in zip(self._names, self._parameters, values, strict=True):
                if value.shape != parameter.shape:
                    raise TensorError(
                        f"{key} of {name} has shape {list(value.shape)}, must be {list(parameter.shape)}"
                    )
            flat = torch.cat([value.reshape(-1) for value in values])
            self.optimizer.state[self._chunk][key] = flat[own].clone()

    def _weighed(self, weight: float) -> Tensor:
        """Return weight · gradients as one tensor. In stage 2 each is given back as it is read."""
        sums = torch.zeros_like(self._flat)
        for parameter, part in zip(self._parameters, self._parts(sums), strict=True):
            if parameter.grad is not None and weight != 0.0:
                part.copy_(parameter.grad.reshape(-1)).mul_(weight)
            if self._stage == 2:
                parameter.grad = None
        return sums

    def _parts(self, flat: Tensor) -> list[Tensor]:
        """Return each parameter's part of a flat tensor."""
        sizes = [parameter.numel() for parameter in self._parameters]
        return list(torch.split(flat, sizes)) if sizes else []


def _num_bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
