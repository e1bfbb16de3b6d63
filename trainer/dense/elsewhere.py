"""The dense part as an embedding trainer sees it: other trainers have it, and answer micro-batches.

Rooms before and after: ``loop`` and ``CtrModel`` use it like a dense module and its optimizer; ``job.dense`` is the
other side; ``collective.hetero`` says what goes between them.

The order of a step: rows of step t are pooled; the dense trainers have stepped for t - 1; micro-batches of t go to
whoever is free, and their gradients come back; one backward pass over all of them, so that their rows leave as one
push; the dense trainers hear that this trainer is through with t.

What always holds: rows' gradients are those of the mean loss of this trainer's batch, however it is split. Owner:
the training thread.
"""

import time
from collections.abc import Mapping
from types import TracebackType

import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

import pserver
from collective import GroupError
from collective.hetero import Fact
from collective.hetero_sender import Place, Sender
from trainer.config import RunSettings
from trainer.dense.split import SplitDense
from trainer.job.meet import tls_files
from trainer.modes.base import Mode
from trainer.settings.split import micro_batches


class DenseElsewhere(SplitDense):
    """A dense module without parameters, and what steps it.

    Attributes:
        waited_s: seconds that the training thread waited for the dense trainers.
    """

    def __init__(self, sender: Sender, *, parts: int, is_first: bool) -> None:
        """Take the connections.

        Args:
            sender: closed with this.
            parts: micro-batches of a batch.
            is_first: whether this is embedding trainer 0, which saves for all and gives what was saved.
        """
        super().__init__()
        self.waited_s = 0.0
        self._sender = sender
        self._parts = parts
        self._is_first = is_first

    @override
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._sender.close()
        else:
            self._sender.fail(str(error) or type(error).__name__)

    @override
    def learn(self, rows: Tensor, dense: Tensor, labels: Tensor) -> tuple[float, Tensor]:
        begin_s = time.perf_counter()
        self._sender.wait_step()
        tensors = (rows.detach(), dense, labels)
        answers = [
            self._sender.send(part, weight=float(len(part[0]))) for part in self._split(*tensors)
        ]
        came = [answer.result() for answer in answers]
        self.waited_s += time.perf_counter() - begin_s
        gradient = torch.cat([tensors[0] for tensors in came]) / len(rows)
        rows.backward(gradient)  # type: ignore[no-untyped-call]
        logits = torch.cat([tensors[1] for tensors in came])
        return functional.binary_cross_entropy_with_logits(logits, labels).item(), logits

    @override
    def forward(self, rows: Tensor, dense: Tensor) -> Tensor:
        """Return the (B,) logits of rows that are scored, once nobody trains any more."""
        answers = [self._sender.score(part) for part in self._split(rows, dense)]
        return torch.cat([answer.result()[0] for answer in answers])

    @override
    def settle(self, mode: Mode | None = None) -> float | None:
        return None if mode is None else mode.clip(())

    @override
    def held_bytes(self) -> dict[str, int]:
        return {}

    @override
    def gather_state(self) -> dict[str, Tensor]:
        """Ask one dense trainer once all have stepped; none steps again before this trainer's next batch."""
        self._sender.wait_step()
        (data,) = self._sender.ask_state().result()
        return load(data.numpy().tobytes())

    @override
    def resume(self, steps: int = -1, tensors: Mapping[str, Tensor] | None = None) -> int:
        assert tensors is not None, "an embedding trainer has servers"
        if self._is_first:
            data = bytearray(save(dict(tensors)))
            self._sender.give_state(torch.frombuffer(data, dtype=torch.uint8))
        return steps

    @override
    def step(self) -> None:
        """Tell the dense trainers that this one is through with its step."""
        self._sender.end_step()

    @override
    def finish(self) -> None:
        """End training well: wait for the last step, and tell that no more comes."""
        self._sender.wait_step()
        self._sender.done()

    @override
    def facts(self, *, seconds: float) -> dict[str, float]:
        return {"dense_wait_share": self.waited_s / seconds if seconds else 0.0}

    def _split(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """Return the tensors in micro-batches; fewer where there are not enough samples."""
        parts = min(self._parts, len(tensors[0]))
        return list(zip(*(tensor.tensor_split(parts) for tensor in tensors), strict=True))


def reach_dense_trainers(settings: RunSettings, facts: Mapping[str, Fact]) -> DenseElsewhere:
    """Connect to the dense trainers.

    Args:
        settings: of the run, with role embed.
        facts: that all its trainers must agree on.

    Raises:
        pserver.ConfigError: an address is none, or a dense trainer refused this one.
        collective.PeerLostError: a dense trainer could not be reached.
    """
    assert settings.next is not None, "the settings were checked"
    try:
        sender = Sender(
            [address.strip() for address in settings.next.split(",")],
            Place(settings.trainer_id or 0, settings.trainers, facts),
            connect_s=settings.barrier_timeout,
            timeout_s=settings.barrier_timeout,
            tls=tls_files(settings),
        )
    except GroupError as error:
        raise pserver.ConfigError(f"--next: {error}") from error
    is_first = not settings.trainer_id
    return DenseElsewhere(sender, parts=micro_batches(settings), is_first=is_first)
