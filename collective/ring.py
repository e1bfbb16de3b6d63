"""Ring AllReduce: the sum of a tensor over all ranks, in place, the same bits on each of them.

Rooms before and after: ``hooks`` calls it for buckets of gradients, anybody for a tensor; ``neighbours``
carries the bytes.

The tensor is cut into one chunk a rank. In the first half (reduce-scatter) chunk c starts at rank c
and travels once around the ring; each rank adds its own part, so the order of addition is fixed: c,
c + 1, ... In the second half (all-gather) the finished chunks travel around once more. A rank sends
and receives 2 (W - 1) / W of the tensor, whatever W is. A chunk travels in segments, and a segment
goes on as soon as it was added, so sending, receiving and adding overlap.

What always holds: all ranks end with the same bits, in every run, since each element is summed by
one order and the sum is copied. Half floats are added in float32 and rounded once. Bytes that are still to leave are
not overwritten: only its sum takes a segment's place, and that comes after what left, which it holds.
"""

import contextlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from collective.errors import TensorError
from collective.group import Group
from collective.neighbours import Neighbours

SEGMENT_BYTES = 512 << 10
"""Bytes of a segment: half of a processor's second cache, so that what came is still there when it is added. Smaller
ones cost more of Python's time, larger ones overlap less."""

_HEAD = struct.Struct("<4sQBBHH")
"""Magic, numbers, wire of partial sums and of sums, first step and the end."""

_MAGIC = b"PSR1"

_SUM_DTYPES = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.int64: torch.int64,
    torch.int32: torch.int32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}
"""What is reduced, and in which dtype it is added."""

_WIRES = tuple(_SUM_DTYPES)

_WIRE_NUMBERS = {dtype: number for number, dtype in enumerate(_WIRES)}


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
    with sums_of(tensor) as sums:
        ring = _Ring(
            group,
            sums,
            reduce_wire=wire or sums.dtype,
            gather_wire=wire or tensor.dtype,
            residual=None if feedback is None else feedback.of(sums),
        )
        group.run(what, ring.run)


@contextlib.contextmanager
def sums_of(tensor: Tensor) -> Iterator[Tensor]:
    """Give the numbers of a tensor as (n,) in host memory, in the dtype that sums are taken in; write them back at the end.

    They are the tensor's own memory unless device, layout or dtype ask for a copy.
    """
    with torch.no_grad():
        sums = tensor.detach().cpu().contiguous().view(-1).to(sum_dtype(tensor.dtype))
        yield sums
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
        self._bytes = _bytes_of(sums)
        self._wires = (reduce_wire, gather_wire)
        self._residual = residual
        self._bounds = chunk_bounds(sums.numel(), group.world_size)
        self._reducing = group.world_size - 1  # steps of the first half, and of the second
        self._steps = steps or range(2 * self._reducing)
        self._segment = max(1, SEGMENT_BYTES // sums.element_size())

    def run(self) -> None:
        """Send the chunks around, once or twice."""
        rank, world_size = self._group.rank, self._group.world_size
        neighbours = self._group.neighbours()
        self._greet(neighbours)
        if self._residual is not None:
            self._sums.add_(self._residual)
        first, last = self._steps.start, self._steps.stop - 1
        for part in self._segments((rank - first) % world_size):
            neighbours.put(self._leaving(part, is_sum=first == self._reducing))
        add = self._adder(neighbours)
        for step in self._steps:
            for part in self._segments((rank - step - 1) % world_size):
                if step < self._reducing:
                    add(part)
                    if step < last:
                        neighbours.put(self._leaving(part, is_sum=step + 1 == self._reducing))
                else:
                    came = self._keep(neighbours, part)
                    if step < last:
                        neighbours.put(came)
        neighbours.flush()

    def _greet(self, neighbours: Neighbours) -> None:
        """Tell the right neighbour what is summed here, and hear it from the left one."""
        dtypes = [_WIRE_NUMBERS[wire] for wire in self._wires]
        steps = self._steps
        mine = _HEAD.pack(_MAGIC, self._sums.numel(), *dtypes, steps.start, steps.stop)
        theirs = bytearray(_HEAD.size)
        neighbours.put(memoryview(mine))
        neighbours.fill(memoryview(theirs))
        if mine != theirs:
            left = self._group.ranks[(self._group.rank - 1) % self._group.world_size]
            raise ConnectionError(
                f"all ranks must sum the same in the same order; rank {left} of the run came with "
                f"{_said(theirs)} where this one has {_said(mine)}"
            )

    def _segments(self, chunk: int) -> Iterator[slice]:
        """Yield the segments of a chunk; none if it is empty."""
        end = self._bounds[chunk + 1]
        for start in range(self._bounds[chunk], end, self._segment):
            yield slice(start, min(start + self._segment, end))

    def _adder(self, neighbours: Neighbours) -> Callable[[slice], None]:
        """Return what receives a segment of partial sums and adds it."""
        wire = self._wires[0]
        room = neighbours.room(self._segment * wire.itemsize).view(wire)
        room_bytes, size = _bytes_of(room), wire.itemsize
        if wire != self._sums.dtype:

            def add_narrow(part: slice) -> None:
                count = part.stop - part.start
                neighbours.fill(room_bytes[: count * size])
                self._sums[part].add_(room[:count])

            return add_narrow
        # Not by torch, which would wake threads of its own for each segment.
        sums, came = self._sums.numpy(), room.numpy()

        def add(part: slice) -> None:
            count = part.stop - part.start
            neighbours.fill(room_bytes[: count * size])
            with np.errstate(all="ignore"):  # who sums what is not finite looks at the sum
                np.add(sums[part], came[:count], out=sums[part])

        return add

    def _keep(self, neighbours: Neighbours, part: slice) -> memoryview:
        """Receive a segment of the sum, and return it as it came."""
        wire = self._wires[1]
        if wire == self._sums.dtype:
            came = self._as_it_is(part)
            neighbours.fill(came)
            return came
        narrow = torch.empty(part.stop - part.start, dtype=wire)
        came = _bytes_of(narrow)
        neighbours.fill(came)
        self._sums[part].copy_(narrow)
        return came

    def _leaving(self, part: slice, *, is_sum: bool) -> memoryview:
        """Return a segment as it travels. What rounding takes away is kept for the next time."""
        wire = self._wires[is_sum]
        if wire == self._sums.dtype:
            return self._as_it_is(part)
        numbers = self._sums[part]
        rounded = numbers.to(wire)
        if self._residual is not None:
            # Of infinity and what is no number nothing is kept: it would come back with every sum.
            lost = torch.nan_to_num(numbers - rounded, nan=0.0, posinf=0.0, neginf=0.0)
            self._residual[part] = lost
        if is_sum:
            numbers.copy_(rounded)  # this rank ends with the bits that the others get
        return _bytes_of(rounded)

    def _as_it_is(self, part: slice) -> memoryview:
        size = self._sums.element_size()
        return self._bytes[part.start * size : part.stop * size]


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor."""
    return tensor.view(torch.uint8).numpy().data


def _said(head: bytes | bytearray) -> str:
    """Return in words what a rank says at the beginning of an operation."""
    magic, count, reduce_wire, gather_wire, first, end = _HEAD.unpack(head)
    if magic != _MAGIC:
        return "bytes of another operation"
    wires = [str(_WIRES[wire]).removeprefix("torch.") for wire in (reduce_wire, gather_wire)]
    return f"{count} numbers (partial sums in {wires[0]}, sums in {wires[1]}, steps {first} to {end - 1})"
