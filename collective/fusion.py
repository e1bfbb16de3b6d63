"""Averages a model's gradients over the ranks, in a few large pieces, while backward runs.

Rooms before and after: a training loop calls ``Reducer``; a bucket goes through ``worker`` to a
``Summer``.

Parameters are put into buckets in the order in which backward is done with them, the last layers
first. When the last gradient of a bucket is there it leaves, while backward goes on with earlier
layers. The bucket that leaves last is small, so that little is left to wait for at the end.

The average is Σ weight · gradient / Σ weight over the ranks, where a step's weight is its samples (or
1): what one process would compute on the joined batch, if the loss is a mean over samples. The weight
travels in each bucket, and so does how many ranks go on. A rank that is at its end takes part with weight 0
(``without_batch``) while another goes on, so ranks with different numbers of batches end well, and the divisor
follows.

What always holds: all ranks end a step with the same bits in every gradient. A parameter without a
gradient counts as zeros. Owner: the training thread; sums run in the worker's thread.
"""

import functools
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from collective.algorithm import Summer
from collective.errors import TensorError
from collective.ring import Feedback, sum_dtype
from collective.worker import Worker

MIB = 1 << 20

WORDS = 2
"""Numbers at the end of a bucket's tensor: the weight, and 1 for a rank that goes on."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters whose gradients travel as one tensor.

    Attributes:
        names: of the parameters, in the order of the tensor.
        parameters: the same parameters.
        count: numbers in all, without the two words at the end (``WORDS``).
    """

    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    count: int

    @property
    def num_bytes(self) -> int:
        """Return the bytes that travel, the words at the end included."""
        return (self.count + WORDS) * self.dtype.itemsize

    @property
    def dtype(self) -> torch.dtype:
        """Return in what the gradients travel: halves as float32, for the weight's sake too."""
        return sum_dtype(self.parameters[0].dtype)


def plan_buckets(
    named: Iterable[tuple[str, nn.Parameter]], *, fuse_mb: float = 32.0, last_mb: float = 1.0
) -> list[Bucket]:
    """Put parameters into buckets, in the order in which they leave.

    Args:
        named: names and parameters in the order of forward; those without gradients are left out.
        fuse_mb: MiB of a bucket at the most, unless one parameter alone is larger.
        last_mb: MiB of the one that leaves last, that is of the first layers.

    Returns:
        Buckets of one dtype each.
    """
    groups: list[list[tuple[str, nn.Parameter]]] = []
    room = last_mb * MIB
    # From the first layer on: the last bucket to leave is filled first, up to its own size.
    for name, parameter in named:
        if not parameter.requires_grad:
            continue
        size = parameter.numel() * parameter.element_size()
        if not groups or size > room or groups[-1][0][1].dtype != parameter.dtype:
            room = (fuse_mb if groups else last_mb) * MIB
            groups.append([])
        groups[-1].append((name, parameter))
        room -= size
    return [
        Bucket(
            names=tuple(name for name, _ in reversed(group)),
            parameters=tuple(parameter for _, parameter in reversed(group)),
            count=sum(parameter.numel() for _, parameter in group),
        )
        for group in reversed(groups)
    ]


def plan_text(buckets: Sequence[Bucket], summer: Summer) -> str:
    """Return the plan as lines: number, bytes, way, parameters."""
    lines = []
    for number, bucket in enumerate(buckets):
        names = f"{bucket.names[0]} .. {bucket.names[-1]} ({len(bucket.names)} parameters)"
        way: str = summer.way(bucket.num_bytes)
        if summer.wire is not None and bucket.dtype == torch.float32:
            way += f" as {str(summer.wire).removeprefix('torch.')}"
        lines.append(f"bucket {number}: {bucket.num_bytes / MIB:.3f} MiB by {way}: {names}")
    return "\n".join(lines)


class Reducer:
    """Averages gradients of one model. Made on every rank, for the same model.

    Use: ``begin(weight)``, backward (once or several times), ``wait()``, optimizer step; at the end
    the optimizer steps while ``without_batch()``.
    """

    def __init__(self, summer: Summer, buckets: Sequence[Bucket]) -> None:
        """Hook the parameters.

        Args:
            summer: how a bucket is summed.
            buckets: of ``plan_buckets``; the same on all ranks.

        Raises:
            TensorError: a parameter's dtype cannot be averaged.
        """
        for bucket in buckets:
            if not bucket.parameters[0].is_floating_point():
                raise TensorError(f"{bucket.names[0]}: only floats are averaged")
        self._summer = summer
        self._buckets = list(buckets)
        self._worker = Worker(name="collective")
        self._flats = [torch.zeros(bucket.count + WORDS, dtype=bucket.dtype) for bucket in buckets]
        self._feedbacks = [Feedback() for _ in buckets]  # used where a narrow wire rounds
        self._sent: list[Future[None] | None] = [None] * len(buckets)
        self._missing = [0] * len(buckets)
        self._next = len(buckets)  # buckets leave in order: every rank sums the same one next
        self._weight = self._factor = self._goes_on = 0.0
        self._backwards_left = 0
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                functools.partial(self._ready, index)
            )
            for index, bucket in enumerate(buckets)
            for parameter in bucket.parameters
        ]

    @property
    def buckets(self) -> Sequence[Bucket]:
        """Return the plan, in the order in which buckets leave."""
        return self._buckets

    def begin(self, weight: float, *, backwards: int = 1) -> None:
        """Begin a step.

        Args:
            weight: of this rank's gradients, such as the samples of its batch; 0: they do not count.
            backwards: backward passes that add up before gradients leave (gradient merge).
        """
        assert self._next == len(self._buckets), "the step before was not waited for"
        self.weigh(weight)
        self._goes_on = 1.0
        self._backwards_left = backwards
        self._next = 0
        self._missing = [len(bucket.parameters) * backwards for bucket in self._buckets]

    def weigh(self, weight: float, *, share: float = 1.0) -> None:
        """Say anew what this step's gradients count; before its last backward pass.

        Args:
            weight: of all that was added up, such as the samples of several batches.
            share: what the gradients are multiplied by, such as 1 / batches for their mean.
        """
        self._weight = weight
        self._factor = weight * share

    def wait(self) -> float:
        """Wait until every gradient is the average over the ranks, and return the summed weight.

        Returns:
            Σ weight over the ranks. If it is 0 no rank had samples, and gradients are left alone.

        Raises:
            MissingRanksError: a rank did not come; the error names the bucket.
        """
        self._leave(all_of_them=True)
        total = 0.0
        for bucket, flat, sent in zip(self._buckets, self._flats, self._sent, strict=True):
            assert sent is not None
            sent.result()
            total = float(flat[-WORDS])
            if total > 0.0:
                _unpack(bucket, flat, total)
        return total

    def without_batch(self) -> bool:
        """Take part in a step of the others, for a rank that has no more batches.

        Every rank calls this at its end, and steps its optimizer while it returns True.

        Returns:
            Whether some rank goes on, so that gradients hold an average, unless nobody had samples
            in this step. If not, all are at their end.

        Raises:
            MissingRanksError: as of ``wait``.
        """
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.grad = None
        self.begin(0.0)
        self._goes_on = 0.0
        self.wait()
        return float(self._flats[-1][-1]) > 0.0

    def close(self) -> None:
        """Take the hooks off, and end the worker's thread."""
        for hook in self._hooks:
            hook.remove()
        self._worker.close()

    def _ready(self, index: int, _: Tensor) -> None:
        """Count a gradient that is there; called by backward."""
        if self._next == len(self._buckets) and not self._backwards_left:
            return  # outside of a step: somebody computes gradients for another purpose
        self._missing[index] -= 1
        self._leave(all_of_them=False)

    def _leave(self, *, all_of_them: bool) -> None:
        """Send the next buckets whose gradients are all there, in order."""
        while self._next < len(self._buckets) and (all_of_them or not self._missing[self._next]):
            number = self._next
            flat = self._flats[number]
            _pack(self._buckets[number], flat, self._factor)
            flat[-WORDS], flat[-1] = self._weight, self._goes_on
            add_up = functools.partial(
                self._summer.sum,
                flat,
                what=f"bucket {number} of {len(self._buckets)}",
                exact=WORDS,
                feedback=self._feedbacks[number],
            )
            self._sent[number] = self._worker.submit(add_up)
            self._next += 1
        if self._next == len(self._buckets):
            self._backwards_left = 0


def _pack(bucket: Bucket, flat: Tensor, factor: float) -> None:
    """Write factor · gradients into a bucket's tensor."""
    start = 0
    for parameter in bucket.parameters:
        part = flat[start : start + parameter.numel()]
        if parameter.grad is None or factor == 0.0:
            part.zero_()
        else:
            part.copy_(parameter.grad.detach().reshape(-1)).mul_(factor)
        start += parameter.numel()


def _unpack(bucket: Bucket, flat: Tensor, total: float) -> None:
    """Write the average into the gradients."""
    start = 0
    for parameter in bucket.parameters:
        part = flat[start : start + parameter.numel()].view(parameter.shape)
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        parameter.grad.copy_(part.div_(total))
        start += parameter.numel()
