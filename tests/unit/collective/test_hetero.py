"""Embedding trainers and dense trainers: the gradients of one process; who goes is named."""

import socket
import subprocess
import sys
import threading

import pytest
import torch
from torch import Tensor, nn

from collective import GroupError, PeerLostError, TensorError
from collective.hetero import Receiver, StepEnd
from collective.hetero_sender import Place, Sender
from collective.hetero_wire import Kind, Message, receive, send
from tests.ranks import seeded

LIMIT_S = 30.0


def dense() -> nn.Sequential:
    """Return the same dense stage everywhere."""
    with seeded(0):
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def embedding() -> nn.EmbeddingBag:
    """Return the same table everywhere."""
    with seeded(1):
        return nn.EmbeddingBag(20, 4, mode="sum")


def serve(receiver: Receiver, model: nn.Module, taken: list[str]) -> None:
    """Add the gradients of every micro-batch to the model's, and answer with those of its rows."""
    receiver.gather(LIMIT_S)
    while (event := receiver.take(LIMIT_S)) is not None:
        if isinstance(event, StepEnd):
            taken.append("step")
            event.answer()
            continue
        rows, targets = event.tensors
        rows.requires_grad_()
        (nn.functional.mse_loss(model(rows), targets) * event.weight).backward()
        assert rows.grad is not None
        taken.append(event.peer)
        event.answer([rows.grad])
    receiver.close()


def batch(seed: int) -> tuple[Tensor, Tensor]:
    """Return ids (8, 3) and targets."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 20, (8, 3), generator=generator), torch.randn(8, 1, generator=generator)


def embed(sender: Sender, seed: int) -> Tensor:
    """Pool a batch, send it in micro-batches, and go backward once: return the table's gradient."""
    table = embedding()
    ids, targets = batch(seed)
    pooled = table(ids)
    backwards = []
    table.weight.register_hook(lambda _: backwards.append(1))
    parts = zip(pooled.tensor_split(3), targets.tensor_split(3), strict=True)
    answers = [sender.send([rows, wanted], weight=len(rows) / 8) for rows, wanted in parts]
    pooled.backward(torch.cat([answer.result(LIMIT_S)[0] for answer in answers]))
    sender.end_step()
    assert backwards == [1]  # where pulled rows have their hook: one push for all micro-batches
    assert table.weight.grad is not None
    return table.weight.grad


@pytest.mark.parametrize(("embeds", "denses"), [(1, 1), (2, 1), (1, 2), (2, 3)])
def test_gradients_are_those_of_one_process(embeds, denses):
    """Any number on each side: rows' and dense gradients add up to the whole model's."""
    receivers = [Receiver("127.0.0.1:0") for _ in range(denses)]
    models = [dense() for _ in receivers]
    taken: list[list[str]] = [[] for _ in receivers]
    threads = [
        threading.Thread(target=serve, args=parts, daemon=True)
        for parts in zip(receivers, models, taken, strict=True)
    ]
    for thread in threads:
        thread.start()
    addresses = [receiver.address for receiver in receivers]
    senders = [Sender(addresses, Place(number, embeds)) for number in range(embeds)]

    found = [embed(sender, seed) for seed, sender in enumerate(senders)]
    for sender in senders:
        sender.wait_step()
        sender.done()
    for sender in senders:
        sender.close()
    for thread in threads:
        thread.join(LIMIT_S)

    model = dense()
    for seed in range(embeds):
        table = embedding()
        ids, targets = batch(seed)
        nn.functional.mse_loss(model(table(ids)), targets).backward()
        torch.testing.assert_close(found[seed], table.weight.grad, atol=1e-6, rtol=1e-5)
    for index, wanted in enumerate(model.parameters()):
        grads = [list(part.parameters())[index].grad for part in models]
        total = sum(grad for grad in grads if grad is not None)
        torch.testing.assert_close(total, wanted.grad, atol=1e-6, rtol=1e-5)
    assert sum(len(events) for events in taken) == 3 * embeds + denses
    assert all(events[-1] == "step" for events in taken)
    assert not any(thread.is_alive() for thread in threads)


def greeted(address: str, number: int = 0, trainers: int = 1) -> socket.socket:
    """Return the control connection of an embedding trainer."""
    host, port = address.split(":")
    connection = socket.create_connection((host, int(port)))
    facts = '{"trainer": %d, "trainers": %d, "facts": {}, "carries": "control"}'
    send(connection, Message(Kind.HELLO, text=facts % (number, trainers)))
    assert receive(connection).kind == Kind.HELLO
    return connection


@pytest.mark.parametrize(("lengths", "steps"), [((2, 2), 2), ((1, 4), 4), ((0, 3), 3), ((0, 0), 0)])
def test_steps_are_as_many_as_the_longest_trainer_has(lengths, steps):
    """A step ends when all that still train are through with it; scores come after the last one."""
    receiver = Receiver("127.0.0.1:0")
    senders = [Sender([receiver.address], Place(number, 2)) for number in range(2)]
    receiver.gather(LIMIT_S)
    score = senders[0].score([torch.ones(3)])

    for step in range(max(lengths)):
        for sender, length in zip(senders, lengths, strict=True):
            if step == length:
                sender.done()
            if step < length:
                sender.end_step()
        event = receiver.take(LIMIT_S)
        assert isinstance(event, StepEnd)
        event.answer()
        for sender in senders:
            sender.wait_step()
    for sender, length in zip(senders, lengths, strict=True):
        if length == max(lengths):
            sender.done()

    work = receiver.take(LIMIT_S)
    assert not isinstance(work, StepEnd)
    assert work is not None
    assert work.is_score
    work.answer(work.tensors)
    assert torch.equal(score.result(LIMIT_S)[0], torch.ones(3))
    for sender in senders:
        sender.close()
    assert receiver.take(LIMIT_S) is None
    receiver.close()


def test_the_next_step_waits_for_the_slowest_trainer():
    """While one of two trainers is in a step, the step does not end; the limit names who is late."""
    receiver = Receiver("127.0.0.1:0")
    senders = [Sender([receiver.address], Place(n, 2), timeout_s=0.2) for n in range(2)]
    receiver.gather(LIMIT_S)

    senders[0].end_step()

    with pytest.raises(PeerLostError, match=f"{receiver.address}: step 1 did not end within 0.2 s"):
        senders[0].wait_step()
    with pytest.raises(PeerLostError, match=r"no micro-batch came within 0.2 s"):
        receiver.take(0.2)
    senders[1].end_step()
    event = receiver.take(LIMIT_S)
    assert isinstance(event, StepEnd)
    event.answer()
    for sender in senders:
        sender.done()
        sender.close()
    assert receiver.take(LIMIT_S) is None
    receiver.close()


def test_who_does_not_agree_is_refused_with_both_values():
    """Another model, another number of trainers, and a number that is taken: each is told why."""
    receiver = Receiver("127.0.0.1:0", facts={"model": "fm"})
    first = Sender([receiver.address], Place(0, 2, {"model": "fm", "dim": 4}))

    for place, text in (
        (Place(1, 2, {"model": "lr"}), "must agree: model 'fm' here and 'lr' there"),
        (Place(1, 2, {"dim": 8}), "must agree: dim 4 here and 8 there"),
        (Place(1, 3), "must agree: trainers 2 here and 3 there"),
        (Place(0, 2), r"embedding trainer 0 \(127.* is here already"),
        (Place(2, 2), "its number must be below 2"),
    ):
        with pytest.raises(GroupError, match=text):
            Sender([receiver.address], place)

    with pytest.raises(
        PeerLostError, match=r"trainer 1 did not come within 0.1 s; refused: .*below 2"
    ):
        receiver.gather(0.1)
    second = Sender([receiver.address], Place(1, 2, {"slots": 3}))
    assert receiver.gather(LIMIT_S) == {"model": "fm", "dim": 4, "slots": 3}
    for sender in (first, second):
        sender.close()
    assert receiver.take(LIMIT_S) is None
    receiver.close()


def test_who_fails_tells_the_others_why():
    """The reason of an embedding trainer reaches the dense one, and by way of it the other."""
    receiver = Receiver("127.0.0.1:0")
    failing, waiting = (Sender([receiver.address], Place(number, 2)) for number in range(2))
    waiting.end_step()

    failing.fail("disk full")

    with pytest.raises(PeerLostError, match=r"embedding trainer 0 .* failed: disk full") as caught:
        receiver.take(LIMIT_S)
    receiver.close(str(caught.value))
    with pytest.raises(PeerLostError, match=r"dense trainer 127\S+ failed: embed.* disk full"):
        waiting.wait_step()
    waiting.fail("its peer is gone")


def test_a_dense_trainer_that_dies_ends_the_senders_with_its_name():
    """What waits for it, and what is sent later, raises an error that names its address."""
    receiver = Receiver("127.0.0.1:0")
    address = receiver.address
    sender = Sender([address], Place(), window=1)
    first = sender.send([torch.ones(2, 4)], weight=1.0)
    assert receiver.take(LIMIT_S) is not None
    receiver.close()  # as a killed process does, without a reason

    for answer in (first, sender.send([torch.ones(2, 4)], weight=1.0)):
        with pytest.raises(PeerLostError, match=f"dense trainer {address} went away"):
            answer.result(LIMIT_S)
    sender.fail("its dense trainer is gone")
    with pytest.raises(PeerLostError, match=f"no dense trainer at {address}"):
        Sender([address], Place(), connect_s=1.0)


@pytest.mark.integration
def test_a_dense_trainer_that_is_killed_is_named():
    """SIGKILL while it holds a micro-batch: the sender's error has its address."""
    program = (
        "from collective.hetero import Receiver\n"
        "receiver = Receiver('127.0.0.1:0')\n"
        "print(receiver.address, flush=True)\n"
        "receiver.take(60)\n"
        "print('taken', flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as dense_trainer:
        assert dense_trainer.stdout is not None
        address = dense_trainer.stdout.readline().strip()
        sender = Sender([address], Place(), window=1)
        answer = sender.send([torch.ones(2, 4)], weight=1.0)
        assert dense_trainer.stdout.readline() == "taken\n"
        dense_trainer.kill()

        with pytest.raises(PeerLostError, match=f"dense trainer {address} went away"):
            answer.result(LIMIT_S)
    sender.fail("its dense trainer is gone")


def test_an_embedding_trainer_that_dies_ends_the_dense_one_with_its_name():
    """A connection that ends without a goodbye is named; one with it just ends."""
    receiver = Receiver("127.0.0.1:0")
    with greeted(receiver.address, 1, 2) as connection:
        name = "{}:{}".format(*connection.getsockname())

    with pytest.raises(PeerLostError, match=rf"embedding trainer 1 \({name}\) went away"):
        receiver.take(LIMIT_S)
    receiver.close()


def test_more_than_the_bound_waits_at_the_sender():
    """With room for one micro-batch the second is not read until the first is taken."""
    receiver = Receiver("127.0.0.1:0", bytes_max=1)
    sender = Sender([receiver.address], Place())
    answers = [sender.send([torch.ones(4)], weight=1.0) for _ in range(4)]

    for _ in answers:
        work = receiver.take(LIMIT_S)
        assert work is not None
        assert not isinstance(work, StepEnd)
        assert receiver.waiting_bytes <= 16
        work.answer(work.tensors)

    assert all(torch.equal(answer.result(LIMIT_S)[0], torch.ones(4)) for answer in answers)
    assert receiver.peak_bytes == 16
    sender.close()
    assert receiver.take(LIMIT_S) is None
    receiver.close()


def test_who_greets_with_something_else_is_sent_away():
    """Bytes of another protocol end their connection only; who waits in vain is told of them."""
    receiver = Receiver("127.0.0.1:0")
    host, port = receiver.address.split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        with pytest.raises(OSError, match=r"closed|reset"):
            receive(connection)

    with pytest.raises(PeerLostError, match=r"no embedding .*; refused: .*no message of a trainer"):
        receiver.gather(0.1)
    sender = Sender([receiver.address], Place())
    assert receiver.gather(LIMIT_S) == {}
    sender.close()
    receiver.close()


def test_addresses_and_tensors_that_cannot_be_are_refused():
    """The message says what must hold."""
    with pytest.raises(GroupError, match="HOST:PORT, got 'nowhere'"):
        Receiver("nowhere")
    with pytest.raises(GroupError, match="at least one dense trainer"):
        Sender([], Place())
    with pytest.raises(GroupError, match="each dense trainer is named once, got here:1, here:1"):
        Sender(["here:1", "here:1"], Place())
    left, right = socket.socketpair()
    with left, right, pytest.raises(TensorError, match=r"got 1 dims of torch\.complex64 on cpu"):
        send(left, Message(Kind.TRAIN, (torch.zeros(2, dtype=torch.complex64),)))
