"""What one rank of a pipeline sends another, as bytes and back.

Rooms before and after: ``pipeline_queue`` sends and receives the messages that are made and read here.

A parcel says its own shapes. Its first message has a size that both ends know: that of the parcel at the same place of the
step before, if it is not too large (``Sizes``). So from the second step on a parcel is one message; one that does not fit is a
first message with the shapes, and one more for each tensor. A message costs up to a millisecond on a busy machine, whatever
is in it.

What always holds: tensors of a parcel share no byte. Owner: immutable, but for ``Sizes``, which the sending or the receiving
thread owns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Bytes: TypeAlias = NDArray[np.uint8]

DIMS_MAX: Final = 8

TEXT_BYTES_MAX: Final = 4096

WHOLE_MAX: Final = 1 << 22
"""Bytes of a parcel that may be its first message: what copying them costs is less than what a message does."""

_FIRST: Final = 4096
"""Bytes of a first message when nothing is known."""

_ALIGNED: Final = 64

_HEAD: Final = 8

_SHAPE: Final = 3 + DIMS_MAX

What = Literal["values", "gradients", "done", "failed", "bye"]

_WHATS: tuple[What, ...] = get_args(What)

_Rest = Literal["nothing", "bytes", "shapes"]
"""What follows the first message: nothing, or bytes, with shapes before them where there are too many."""

_RESTS: tuple[_Rest, ...] = get_args(_Rest)

DTYPES: Final = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)

Label = tuple[What, int, int, int]
"""What it is, the step, the stage or rank it concerns, the micro-batch."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """What one rank sends another.

    Attributes:
        tensors: contiguous leaves in host memory, which keep ``requires_grad`` on the way; None
            where there is none, such as no gradient.
        text: of ``failed``.
        age_s: seconds since its step began, when it was given.
        came_s: when it began to arrive, as ``time.perf_counter`` has it here; 0 before.
    """

    tensors: tuple[Tensor | None, ...] = ()
    text: str = ""
    age_s: float = 0.0
    came_s: float = 0.0

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors if t is not None)


class Sizes:
    """The bytes of the first messages one way; both ends have the same, as they saw the same parcels.

    >>> sizes = Sizes()
    >>> for whole in (100, 9000, 5000):
    ...     (sizes.next, sizes.saw("done", whole=whole))
    (4096, None)
    (4096, None)
    (9000, None)
    """

    def __init__(self) -> None:
        """Begin with nothing known."""
        self._before: list[int] = []
        self._now: list[int] = []

    @property
    def next(self) -> int:
        """Return the bytes of the first message of the next parcel."""
        place = len(self._now)
        return self._before[place] if place < len(self._before) else _FIRST

    def saw(self, what: What, *, whole: int) -> None:
        """Take in a parcel, and the bytes that it would have as one message."""
        self._now.append(max(self.next, whole if whole <= WHOLE_MAX else 0))
        if what == "done":  # the end of a step
            if len(self._now) >= len(self._before):
                self._before = self._now
            self._now = []


def written(label: Label, parcel: Parcel, *, first_bytes: int) -> tuple[list[Tensor], int]:
    """Return a parcel as the messages that travel, and the bytes that it would have as one.

    Args:
        label: of the parcel.
        parcel: what goes; messages that do not fit into the first one are views of its tensors.
        first_bytes: of the first message.
    """
    text = np.frombuffer(parcel.text.encode()[:TEXT_BYTES_MAX], np.uint8)
    shapes = [number for tensor in parcel.tensors for number in _shape_numbers(tensor)]
    blocks = [_raw(t).numpy() for t in parcel.tensors if t is not None and t.numel()]
    blocks += [text] if text.size else []
    begin = 8 * (_HEAD + len(shapes))
    places, whole = _laid_out(begin, [block.size for block in blocks])
    rest: _Rest = "shapes" if begin > first_bytes else "bytes" if whole > first_bytes else "nothing"
    age_ns = round(1e9 * parcel.age_s)
    head = [_WHATS.index(label[0]), *label[1:], len(parcel.tensors), text.size, age_ns]
    numbers = [*head, _RESTS.index(rest), *(() if rest == "shapes" else shapes)]
    first = np.zeros(first_bytes, np.uint8)
    first[: 8 * len(numbers)].view(np.int64)[:] = numbers
    messages = [torch.from_numpy(first)]
    if rest == "nothing":
        for place, block in zip(places, blocks, strict=True):
            first[place : place + block.size] = block
        return messages, whole
    if rest == "shapes":
        messages.append(torch.tensor(shapes, dtype=torch.int64))
    messages += [_raw(t) for t in parcel.tensors if t is not None and t.numel()]
    return messages + ([torch.from_numpy(text.copy())] if text.size else []), whole


def read(
    first: Bytes,
    *,
    came_s: float,
    fill: Callable[[Tensor], None],
    admit: Callable[[int], None],
) -> tuple[Label, Parcel, int]:
    """Return a parcel of which the first message came, and the bytes that it would have as one message.

    Args:
        first: the message; the parcel's tensors may lie in it.
        came_s: when it began to arrive.
        fill: receives the next message into a tensor.
        admit: waits until there is room for so many bytes.
    """
    head = first[: 8 * _HEAD].view(np.int64).tolist()
    rest, count = _RESTS[head[-1]], head[4] * _SHAPE
    begin = 8 * (_HEAD + count)
    if rest == "shapes":
        told = torch.empty(count, dtype=torch.int64)
        fill(told)
        numbers = told.tolist()
    else:
        numbers = first[8 * _HEAD : begin].view(np.int64).tolist()
    shapes = [numbers[at : at + _SHAPE] for at in range(0, count, _SHAPE)]
    sizes = [_num_bytes(shape) for shape in shapes]
    admit(sum(sizes))
    places, whole = _laid_out(begin, [size for size in (*sizes, head[5]) if size])
    at = iter(places)

    def block(size: int) -> Tensor:
        if size and rest == "nothing":
            place = next(at)
            return torch.from_numpy(first[place : place + size])
        received = torch.empty(size, dtype=torch.uint8)
        if size:
            fill(received)
        return received

    tensors = tuple(
        None if shape[0] < 0 else _shaped(block(size), shape)
        for shape, size in zip(shapes, sizes, strict=True)
    )
    text = block(head[5]).numpy().tobytes().decode(errors="replace")
    label: Label = (_WHATS[head[0]], head[1], head[2], head[3])
    return label, Parcel(tensors, text, age_s=1e-9 * head[6], came_s=came_s), whole


def _laid_out(begin: int, sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where blocks begin behind so many bytes, and where the last one ends.

    >>> _laid_out(100, [10, 70, 1])
    ([128, 192, 320], 384)
    """
    places = []
    for size in sizes:
        begin = _rounded(begin)
        places.append(begin)
        begin += size
    return places, _rounded(begin)


def _rounded(at: int) -> int:
    return -(-at // _ALIGNED) * _ALIGNED


def _shape_numbers(tensor: Tensor | None) -> list[int]:
    """Return dtype, requires_grad, dims and shape as a fixed count of numbers; dtype -1: no tensor."""
    if tensor is None:
        return [-1] + [0] * (_SHAPE - 1)
    fill = [0] * (DIMS_MAX - tensor.dim())
    dtype = DTYPES.index(tensor.dtype)
    return [dtype, int(tensor.requires_grad), tensor.dim(), *tensor.shape, *fill]


def _num_bytes(numbers: Sequence[int]) -> int:
    """Return the bytes of a tensor of which the shape came."""
    if numbers[0] < 0:
        return 0
    return int(np.prod(numbers[3 : 3 + numbers[2]], dtype=np.int64)) * DTYPES[numbers[0]].itemsize


def _shaped(block: Tensor, numbers: Sequence[int]) -> Tensor:
    """Return bytes as the tensor of which the shape came."""
    tensor = block.view(DTYPES[numbers[0]]).view(tuple(numbers[3 : 3 + numbers[2]]))
    return tensor.requires_grad_(bool(numbers[1]))


def _raw(tensor: Tensor) -> Tensor:
    """Return a tensor's memory as bytes."""
    return tensor.detach().reshape(-1).view(torch.uint8)
