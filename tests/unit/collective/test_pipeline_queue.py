"""Parcels between ranks: whatever their number of tensors, sizes and kinds, they arrive as they were sent."""

import pytest
import torch
from torch import Tensor

from collective import Group, StageError
from collective.pipeline_queue import Label, Parcel, PipelineQueue
from tests.ranks import results

PARCELS: dict[str, tuple[Tensor | None, ...]] = {
    "nothing": (),
    "a few small ones": (torch.arange(6.0).view(2, 3), None, torch.tensor([True]), torch.tensor(7)),
    "empty ones": (torch.empty(0, 3), torch.empty(0, dtype=torch.int64)),
    "one of just the room": (torch.arange(498.0, dtype=torch.float64),),
    "one of eight bytes more": (torch.arange(499.0, dtype=torch.float64),),
    "a large half one": (torch.arange(5000, dtype=torch.bfloat16),),
    "more than shapes have room": tuple(torch.full((2,), float(n)) for n in range(60)),
}


def leaf(tensor: Tensor | None) -> Tensor | None:
    """Return what travels: a tensor without history."""
    return None if tensor is None else tensor.detach().requires_grad_(tensor.requires_grad)


@pytest.mark.parametrize("name", PARCELS)
def test_a_parcel_arrives_as_it_was_sent(name: str) -> None:
    """Values, shapes, dtypes and whether they require gradients; two behind each other."""
    tensors = PARCELS[name]
    label: Label = ("values", 3, 1, 2)
    asks = tuple(
        t.clone().requires_grad_(t.is_floating_point()) if t is not None else None for t in tensors
    )

    def work(group: Group) -> list[Parcel]:
        queue = PipelineQueue(group)
        came = []
        for part, sent in enumerate((tensors, asks)):
            key: Label = (*label[:3], part)
            if group.rank == 0:
                queue.send(1, key, Parcel(tuple(map(leaf, sent))))
            else:
                came.append(queue.take(0, key))
        queue.close()
        return came

    _, (plain, asked) = results(2, work)

    for found, sent in ((plain.tensors, tensors), (asked.tensors, asks)):
        assert len(found) == len(sent)
        for one, other in zip(found, sent, strict=True):
            if one is None or other is None:
                assert one is other
            else:
                assert (one.dtype, one.requires_grad) == (other.dtype, other.requires_grad)
                assert torch.equal(one, other)


@pytest.mark.parametrize("length", [1, 4096, 5000])
def test_the_reason_of_a_failure_arrives(length: int) -> None:
    """A text that fits into the first message, and ones that do not; cut at the limit."""
    text = ("x" * (length - 1)) + "!"

    def work(group: Group) -> str:
        queue = PipelineQueue(group)
        if group.rank == 0:
            queue.fail(text)
            return ""
        with pytest.raises(StageError) as caught:
            queue.take(0, ("values", 1, 1, 0))
        return str(caught.value)

    assert results(2, work)[1] == text[:4096]
