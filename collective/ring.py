"""Ring AllReduce: the sum of a tensor over all ranks, in place, the same bits on each of them.

Rooms before and after: ``hooks`` calls it for buckets of gradients, anybody for a tensor; ``group``
carries the messages.

The tensor is cut into one chunk a rank. In the first half (reduce-scatter) chunk c starts at rank c
and travels once around the ring; each rank adds its own part, so the order of addition is fixed: c,
c + 1, ... In the second half (all-gather) the finished chunks travel around once more. A rank sends
and receives 2 (W - 1) / W of the tensor, whatever W is. A chunk travels in segments, and a segment
goes on as soon as it was added, so sending, receiving and adding overlap.

What always holds: all ranks end with the same bits, in every run, since each element is summed by
one order and the sum is copied. Half floats are added in float32 and rounded once.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from collective.errors import TensorError
from collective.group import Group, Work

SEGMENT_BYTES = 1 << 20
"""Bytes of a segment: from 256 KiB to 4 MiB the time of large tensors differed by less than the noise
of two shared cores; smaller ones cost more calls, larger ones overlap less."""

_AHEAD = 8
"""Segments that a rank is ready to receive beyond those it has taken, and that it sends beyond as many:
8 MiB of buffers. A send ends when the neighbour is ready for it, so a rank that waited for its own
sends first could wait for ever; here it waits for what it receives only. Going around the ring, a rank
has at most W times as many on their way."""

_SUM_DTYPES = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.int64: torch.int64,
    torch.int32: torch.int32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}
"""What is reduced, and in which dtype it is added."""


@dataclass(slots=True)
class Feedback:
    """What rounding to bfloat16 took away from a tensor, to be added the next time.

    One for each tensor that is reduced again and again: then what is lost by rounding does not add
    up. Owner: whoever reduces the tensor.

    Attributes:
        residual: (n,) float32; empty before the first time.
    """

    residual: Tensor = field(default_factory=lambda: torch.empty(0))

    def of(self, numbers: Tensor) -> Tensor:
        """Return the residual of (n,) numbers: zeros the first time."""
        if self.residual.numel() != numbers.numel():
            self.residual = torch.zeros_like(numbers)
        return self.residual


def ring_all_reduce(
    tensor: Tensor,
    group: Group,
    *,
    wire: torch.dtype | None = None,
    feedback: Feedback | None = None,
    what: str = "ring all-reduce",
) -> None:
    """Replace a tensor by its sum over the ranks of a group.

    Args:
        tensor: any shape and layout, float32, float64, bfloat16, float16, int64 or int32; of the same
            size and dtype on all ranks. Written. One in device memory goes through host memory.
        group: every rank of it calls this, in the same order.
        wire: ``torch.bfloat16`` sends float32 in half the bytes, rounded at each hop.
        feedback: with ``wire``: remembers what rounding took away, for the next time.
        what: the operation, in messages.

    Raises:
        TensorError: the dtype cannot be summed, or ``wire`` does not fit it. Nothing was sent.
        MissingRanksError: a rank did not come in time, or went away; the tensor is of no more use.
    """
    check_tensor(tensor, wire)
    if feedback is not None and wire is None:
        raise TensorError("feedback is of use with wire=torch.bfloat16 only")
    if group.world_size == 1 or tensor.numel() == 0:
        return
    with torch.no_grad():
        flat = (
            tensor.detach().cpu().contiguous().view(-1)
        )  # copies only where device or layout ask for it
        sums = flat.to(sum_dtype(tensor.dtype))
        ring = _Ring(
            group,
            sums,
            reduce_wire=wire or sums.dtype,
            gather_wire=wire or tensor.dtype,
            residual=None if feedback is None else feedback.of(sums),
        )
        group.run(what, ring.run)
        if sums.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(sums.view(tensor.shape))


def reduce_scatter(sums: Tensor, group: Group, *, what: str) -> slice:
    """Sum over the ranks, each rank one chunk; the other chunks hold partial sums afterwards.

    Args:
        sums: (n,) contiguous, in a dtype that is added as it is, in host memory. Written.
        group: as of ``ring_all_reduce``.
        what: the operation, in messages.

    Returns:
        Which part of ``sums`` this rank has the sum of.
    """
    world_size = group.world_size
    steps = range(world_size - 1)
    if steps:
        ring = _Ring(group, sums, reduce_wire=sums.dtype, gather_wire=sums.dtype, steps=steps)
        group.run(what, ring.run)
    return own_chunk(sums.numel(), group)


def all_gather(sums: Tensor, group: Group, *, wire: torch.dtype, what: str) -> None:
    """Give every rank all chunks, each from the rank that ``reduce_scatter`` gave its sum to.

    Args:
        sums: (n,) contiguous, in host memory; this rank's chunk is read, the others are written.
        group: as of ``ring_all_reduce``.
        wire: dtype on the way; a narrower one rounds this rank's own chunk too.
        what: the operation, in messages.
    """
    steps = range(group.world_size - 1, 2 * (group.world_size - 1))
    if steps:
        ring = _Ring(group, sums, reduce_wire=sums.dtype, gather_wire=wire, steps=steps)
        group.run(what, ring.run)
    elif wire != sums.dtype:
        sums.copy_(sums.to(wire))


def chunk_bounds(count: int, world_size: int) -> list[int]:
    """Return where each rank's chunk begins, and the end."""
    return [count * chunk // world_size for chunk in range(world_size + 1)]


def own_chunk(count: int, group: Group) -> slice:
    """Return the part of (count,) numbers that this rank has the sum of after the first half."""
    bounds, chunk = chunk_bounds(count, group.world_size), (group.rank + 1) % group.world_size
    return slice(bounds[chunk], bounds[chunk + 1])


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return in which dtype tensors of a dtype are added."""
    return _SUM_DTYPES[dtype]


def check_tensor(tensor: Tensor, wire: torch.dtype | None) -> None:
    """Refuse what cannot be summed.

    Raises:
        TensorError: as of ``ring_all_reduce``.
    """
    if tensor.dtype not in _SUM_DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in _SUM_DTYPES)
        raise TensorError(f"all-reduce takes {names}, got {tensor.dtype}")
    if wire not in (None, torch.bfloat16):
        raise TensorError(f"wire must be torch.bfloat16 or None, got {wire}")
    if wire is not None and tensor.dtype != torch.float32:
        raise TensorError(f"wire {wire} is for float32 tensors, got {tensor.dtype}")


class _Ring:
    """One all-reduce of one rank. What arrives in step t is sent on in step t + 1."""

    def __init__(
        self,
        group: Group,
        sums: Tensor,
        *,
        reduce_wire: torch.dtype,
        gather_wire: torch.dtype,
        residual: Tensor | None = None,
        steps: range | None = None,
    ) -> None:
        """Take the numbers.

        Args:
            group: of at least two ranks.
            sums: (n,) this rank's numbers; written.
            reduce_wire: in which partial sums travel.
            gather_wire: in which finished sums travel.
            residual: (n,) what rounding took away the last time; written; None to forget it.
            steps: part of the 2 (W - 1) steps; all of them if not given.
        """
        self._group = group
        self._sums = sums
        self._wires = (reduce_wire, gather_wire)
        self._residual = residual
        self._bounds = chunk_bounds(sums.numel(), group.world_size)
        self._reducing = group.world_size - 1  # steps of the first half, and of the second
        self._steps = steps or range(2 * self._reducing)
        self._segment = max(1, SEGMENT_BYTES // sums.element_size())
        self._ready: deque[Tensor] = deque()
        self._sending: deque[tuple[Work, Tensor]] = deque()
        self._may_send = _AHEAD

    def run(self) -> None:
        """Send the chunks around, once or twice."""
        try:
            self._run()
        finally:
            self._sending.clear()  # what is on its way keeps connections open

    def _run(self) -> None:
        group = self._group
        left = (group.rank - 1) % group.world_size
        if self._residual is not None:
            self._sums.add_(self._residual)
        receiving: deque[tuple[int, slice, Tensor, Work]] = deque()
        coming = self._coming()
        first = self._steps.start
        for part in self._segments((group.rank - first) % group.world_size):
            self._ready.append(self._leaving(part, is_sum=first == self._reducing))
        while True:
            for step, part in islice(coming, _AHEAD - len(receiving)):
                buffer = self._buffer(step, part)
                receiving.append((step, part, buffer, group.receive(buffer, left)))
            self._send()
            if not receiving:
                break
            step, part, buffer, work = receiving.popleft()
            group.wait(work)
            self._take(step, part, buffer)
            self._may_send += 1
        for work, _ in self._sending:
            group.wait(work)

    def _coming(self) -> Iterator[tuple[int, slice]]:
        """Yield each step and segment that the left neighbour sends, in its order."""
        for step in self._steps:
            for part in self._segments((self._group.rank - step - 1) % self._group.world_size):
                yield step, part

    def _segments(self, chunk: int) -> Iterator[slice]:
        """Yield the segments of a chunk; none if it is empty."""
        end = self._bounds[chunk + 1]
        for start in range(self._bounds[chunk], end, self._segment):
            yield slice(start, min(start + self._segment, end))

    def _buffer(self, step: int, part: slice) -> Tensor:
        """Return where a segment is received: in place where it needs no more work."""
        wire = self._wires[step >= self._reducing]
        if step >= self._reducing and wire == self._sums.dtype:
            return self._sums[part]
        count = part.stop - part.start
        if step >= self._reducing:  # sent on as it is, so nobody knows when it is free again
            return torch.empty(count, dtype=wire)
        spare = self._group.spare
        block = spare.pop() if spare else torch.empty(SEGMENT_BYTES, dtype=torch.uint8)
        return block[: count * wire.itemsize].view(wire)

    def _take(self, step: int, part: slice, buffer: Tensor) -> None:
        """Add or keep what arrived in a step, and send it on unless the ring is closed."""
        if step < self._reducing:
            self._sums[part].add_(buffer)
            self._group.spare.append(_whole(buffer))
            if step + 1 in self._steps:
                self._ready.append(self._leaving(part, is_sum=step + 1 == self._reducing))
            return
        if buffer.dtype != self._sums.dtype:
            self._sums[part].copy_(buffer)
        if step + 1 in self._steps:
            self._ready.append(buffer)

    def _leaving(self, part: slice, *, is_sum: bool) -> Tensor:
        """Return a segment as it travels. What rounding takes away is kept for the next time."""
        numbers = self._sums[part]
        wire = self._wires[is_sum]
        if wire == numbers.dtype:
            return numbers
        rounded = numbers.to(wire)
        if self._residual is not None:
            self._residual[part] = numbers - rounded
        if is_sum:
            numbers.copy_(rounded)  # this rank ends with the bits that the others get
        return rounded

    def _send(self) -> None:
        """Begin to send what is ready to the right neighbour, as far ahead as it may be."""
        group = self._group
        right = (group.rank + 1) % group.world_size
        while self._ready and self._may_send:
            tensor = self._ready.popleft()
            self._sending.append((group.send(tensor, right), tensor))
            self._may_send -= 1
        while len(self._sending) > group.world_size * _AHEAD:
            group.wait(self._sending.popleft()[0])  # it is done, see _AHEAD


def _whole(buffer: Tensor) -> Tensor:
    """Return the block of bytes that a buffer is the beginning of."""
    return torch.empty(0, dtype=torch.uint8).set_(buffer.untyped_storage())
