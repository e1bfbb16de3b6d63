"""Parcels between ranks: whatever their number of tensors, sizes and kinds, they arrive as they were sent."""

import pytest
import torch
from torch import Tensor

from collective import Group, StageError
from collective.group import Work
from collective.pipeline_parcel import Label, Parcel
from collective.pipeline_queue import PipelineQueue
from tests.ranks import results

PARCELS: dict[str, tuple[Tensor | None, ...]] = {
    "nothing": (),
    "a few small ones": (torch.arange(6.0).view(2, 3), None, torch.tensor([True]), torch.tensor(7)),
    "empty ones": (torch.empty(0, 3), torch.empty(0, dtype=torch.int64)),
    "one of just the room": (torch.arange(488.0, dtype=torch.float64),),
    "one of eight bytes more": (torch.arange(489.0, dtype=torch.float64),),
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


def test_from_the_second_step_on_a_parcel_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unlike sizes at each place of a step, one of which grows; smaller ones still fit; a save between two steps."""
    steps = [
        (5000, 3),
        (5000, 3),
        (9000, 3),
        (9000, 3),
        (4, 2),
        (9000, 3),
        (2_000_000, 3),
        (9000, 3),
    ]
    messages: list[int] = []
    send = Group.send

    def counted(self: Group, tensor: Tensor, rank: int) -> Work:
        if rank == 1:
            messages.append(tensor.numel())
        return send(self, tensor, rank)

    monkeypatch.setattr(Group, "send", counted)

    def work(group: Group) -> list[int]:
        queue = PipelineQueue(group)
        taken = []
        for number, sizes in enumerate(steps):
            for part, size in enumerate(sizes):
                label: Label = ("values", number, 1, part)
                wanted = torch.arange(size, dtype=torch.float32)
                if group.rank == 0:
                    before = len(messages)
                    queue.send(1, label, Parcel((wanted, wanted[:2])))
                    taken.append(len(messages) - before)
                else:
                    first, second = queue.take(0, label).tensors
                    assert first is not None
                    assert torch.equal(first, wanted)
                    first.zero_()
                    assert second is not None
                    assert torch.equal(second, wanted[:2])
            assert queue.tell(number, [group.rank]) == [[0.0], [1.0]]
            if number == 3:
                queue.tell(-1, [])
        queue.close()
        return taken

    taken, _ = results(2, work)

    # The first one, and one more for each tensor; what is too large for one message is always so.
    assert taken == [3, 1, 1, 1, 3, 1, 1, 1, 1, 1, 1, 1, 3, 1, 1, 1]


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
