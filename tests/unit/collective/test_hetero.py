"""Embedding trainers and dense trainers: the gradients of one process; who goes is named."""

import socket
import subprocess
import sys
import threading

import pytest
import torch
from torch import Tensor, nn

from collective import GroupError, PeerLostError, TensorError
from collective.hetero import Receiver, Sender, _send
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
    while (work := receiver.take(LIMIT_S)) is not None:
        rows, targets = work.tensors
        rows.requires_grad_()
        (nn.functional.mse_loss(model(rows), targets) * work.weight).backward()
        assert rows.grad is not None
        taken.append(work.peer)
        work.answer([rows.grad])
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
    assert backwards == [1]  # where pulled rows have their hook: one push for all micro-batches
    assert table.weight.grad is not None
    return table.weight.grad


@pytest.mark.parametrize(("embeds", "denses"), [(1, 1), (2, 1), (1, 2), (2, 3)])
def test_gradients_are_those_of_one_process(embeds, denses):
    """Any number on each side: rows' and dense gradients add up to the whole model's."""
    receivers = [Receiver("127.0.0.1:0", senders=2 * embeds) for _ in range(denses)]
    models = [dense() for _ in receivers]
    taken: list[str] = []
    threads = [
        threading.Thread(target=serve, args=(receiver, model, taken), daemon=True)
        for receiver, model in zip(receivers, models, strict=True)
    ]
    for thread in threads:
        thread.start()
    senders = [Sender([receiver.address for receiver in receivers]) for _ in range(embeds)]

    found = [embed(sender, seed) for seed, sender in enumerate(senders)]
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
    assert len(taken) == 3 * embeds
    assert not any(thread.is_alive() for thread in threads)


def test_a_dense_trainer_that_dies_ends_the_senders_with_its_name():
    """What waits for it, and what is sent later, raises an error that names its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        sender = Sender([address], window=1)
        connection, _ = listening.accept()
        first = sender.send([torch.ones(2, 4)], weight=1.0)
        connection.recv(1)
        connection.close()  # as a killed process does

        for answer in (first, sender.send([torch.ones(2, 4)], weight=1.0)):
            with pytest.raises(PeerLostError, match=f"dense trainer {address} went away"):
                answer.result(LIMIT_S)
    sender.close()
    with pytest.raises(PeerLostError, match=f"no dense trainer at {address}"):
        Sender([address], connect_s=1.0)


@pytest.mark.integration
def test_a_dense_trainer_that_is_killed_is_named():
    """SIGKILL while it holds a micro-batch: the sender's error has its address."""
    program = (
        "from collective.hetero import Receiver\n"
        "receiver = Receiver('127.0.0.1:0', senders=1)\n"
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
        sender = Sender([address], window=1)
        answer = sender.send([torch.ones(2, 4)], weight=1.0)
        assert dense_trainer.stdout.readline() == "taken\n"
        dense_trainer.kill()

        with pytest.raises(PeerLostError, match=f"dense trainer {address} went away"):
            answer.result(LIMIT_S)
    sender.close()


def test_a_dense_trainer_that_fails_ends_its_senders():
    """Closing with a micro-batch unanswered breaks the connection, so nobody waits for it."""
    receiver = Receiver("127.0.0.1:0", senders=1)
    sender = Sender([receiver.address], window=1)
    answer = sender.send([torch.ones(2, 4)], weight=1.0)
    assert receiver.take(LIMIT_S) is not None

    receiver.close()

    with pytest.raises(PeerLostError, match=f"dense trainer {receiver.address} went away"):
        answer.result(LIMIT_S)
    sender.close()


def test_an_embedding_trainer_that_dies_ends_the_dense_one_with_its_name():
    """A connection that ends without a goodbye is named; one with it just ends."""
    receiver = Receiver("127.0.0.1:0", senders=1)
    host, port = receiver.address.split(":")
    with socket.create_connection((host, int(port))) as connection:
        name = "{}:{}".format(*connection.getsockname())

    with pytest.raises(PeerLostError, match=f"embedding trainer {name} .*went away"):
        receiver.take(LIMIT_S)
    receiver.close()


def test_more_than_the_bound_waits_at_the_sender():
    """With room for one micro-batch the second is not read until the first is taken."""
    receiver = Receiver("127.0.0.1:0", senders=2, bytes_max=1)
    sender = Sender([receiver.address])
    answers = [sender.send([torch.ones(4)], weight=1.0) for _ in range(4)]

    for _ in answers:
        work = receiver.take(LIMIT_S)
        assert work is not None
        assert receiver.waiting_bytes <= 16
        work.answer(work.tensors)

    assert all(torch.equal(answer.result(LIMIT_S)[0], torch.ones(4)) for answer in answers)
    sender.close()
    assert receiver.take(LIMIT_S) is None
    receiver.close()


def test_what_is_no_message_is_refused():
    """Bytes of another protocol end the connection with a reason; nothing is unpickled."""
    receiver = Receiver("127.0.0.1:0", senders=1)
    host, port = receiver.address.split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(PeerLostError, match="no message of a trainer"):
            receiver.take(LIMIT_S)
    receiver.close()


def test_addresses_and_tensors_that_cannot_be_are_refused():
    """The message says what must hold."""
    with pytest.raises(GroupError, match="HOST:PORT, got 'nowhere'"):
        Receiver("nowhere", senders=1)
    with pytest.raises(GroupError, match="at least one dense trainer"):
        Sender([])
    left, right = socket.socketpair()
    with left, right, pytest.raises(TensorError, match=r"got 1 dims of torch\.complex64 on cpu"):
        _send(left, 1, 0.0, [torch.zeros(2, dtype=torch.complex64)])
