"""The seam between a model and the servers: what ``EmbeddingBag`` and the loop talk to.

Rooms before and after: ``embedding`` pulls rows and hands over gradients, ``loop`` says when a step
ends; behind a mode is ``pserver.Client``. Each way of working together (``Strategy.mode``) is one
subclass of ``Mode``, made by ``make_mode``.

What always holds:
    * What a step hands over leaves when the step ends, as one push over all its tables.
    * A gradient that was handed over reaches the servers once, or an error is raised by a later
      call of the mode; ``finish`` raises what nothing raised before.
Owner of a mode: the training thread.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import pserver

Keys: TypeAlias = NDArray[np.uint64]
Floats: TypeAlias = NDArray[np.float32]
Gradients: TypeAlias = tuple[Keys, Floats, NDArray[np.uint32] | pserver.Occurrences]
"""Of one table: (U,) distinct keys, (U * dim,) gradients, (U,) or (0,) counts, or more of the keys."""


class Pending(Protocol):
    """Rows on their way."""

    def result(self) -> list[Floats]:
        """Wait for (U, dim) float32 of each table that was asked for, in the order of its keys."""
        ...


class Rows(Protocol):
    """What ``EmbeddingBag`` needs of the servers. A ``pserver.Client`` is one, and so is a mode."""

    def create_table(self, spec: pserver.TableSpec) -> pserver.TableSpec:
        """Make a table; see ``Client.create_table``."""
        ...

    def start_pull(self, keys: Mapping[str, Keys]) -> Pending:
        """Ask for rows that may be created, without waiting; see ``Client.start_pull``."""
        ...

    def start_peek(self, keys: Mapping[str, Keys]) -> Pending:
        """Ask for rows without changing anything; see ``Client.start_peek``."""
        ...

    def start_push(self, gradients: Mapping[str, Gradients]) -> object:
        """Hand over gradients. They are copied, or not written to again, as the class says."""
        ...

    def flush(self) -> None:
        """Wait until all that left is applied, or parked for its round."""
        ...


@dataclass(slots=True)
class StepGradients:
    """What one step hands over.

    Attributes:
        sparse: each table's distinct keys, gradients and occurrences.
        dense: each dense table's (length,) gradients.
    """

    sparse: dict[str, Gradients] = field(default_factory=dict)
    dense: dict[str, Floats] = field(default_factory=dict)

    def add(self, table: str, gradients: Gradients) -> None:
        """Add gradients of a table; those of a key that came before are summed with it.

        Args:
            table: its name.
            gradients: with distinct keys. Kept, not copied; not to be written to again.
        """
        before = self.sparse.get(table)
        self.sparse[table] = gradients if before is None else _joined(before, gradients)

    def squared_norm(self) -> float:
        """Return the sum of the squares of all gradients."""
        blocks = [grads for _, grads, _ in self.sparse.values()] + list(self.dense.values())
        return sum(float(np.dot(block, block)) for block in blocks)

    def scale(self, factor: float) -> None:
        """Multiply every gradient."""
        number = np.float32(factor)
        self.sparse = {
            name: (keys, grads * number, counts)
            for name, (keys, grads, counts) in self.sparse.items()
        }
        self.dense = {name: grads * number for name, grads in self.dense.items()}


def _joined(one: Gradients, other: Gradients) -> Gradients:
    """Return the sum of two pushes to one table; the first one's order of keys comes first."""
    keys = np.concatenate([one[0], other[0]])
    distinct = pserver.dedupe(keys)
    dim = (one[1].size + other[1].size) // max(1, keys.size)
    block = np.concatenate([one[1], other[1]]).reshape(keys.size, dim)
    summed = np.zeros((distinct.keys.size, dim), np.float32)
    np.add.at(summed, distinct.inverse, block)
    return distinct.keys, summed.reshape(-1), _joined_said(one, other, distinct)


def _joined_said(
    one: Gradients, other: Gradients, distinct: pserver.Distinct
) -> NDArray[np.uint32] | pserver.Occurrences:
    """Return what two pushes say of their keys together; counts only if both say them."""
    counts, more = one[2], other[2]
    if isinstance(counts, np.ndarray) and isinstance(more, np.ndarray):
        if not (counts.size and more.size):
            return np.empty(0, np.uint32)
        summed = np.zeros(distinct.keys.size, np.uint32)
        np.add.at(summed, distinct.inverse, np.concatenate([counts, more]))
        return summed
    parts = [
        (pserver.Occurrences(counts=said) if isinstance(said, np.ndarray) else said, keys.size)
        for keys, _, said in (one, other)
    ]
    return pserver.Occurrences.joined(parts).summed(distinct.inverse, distinct.keys.size)


class Mode(ABC):
    """How one trainer's pulls and pushes meet those of the others; subclasses say it.

    Attributes:
        name: as ``Strategy.mode`` has it.
        in_rounds: whether a step waits for a step of every trainer, so that nobody may stay away.
        client: the connection; what is no part of a step goes through it directly.
        trainer_id: of this trainer, from 0.
    """

    name: str
    in_rounds = False
    trainer_id: int = 0

    def __init__(self, client: pserver.Client, *, clip_norm: float | None = None) -> None:
        """Take the connection.

        Args:
            client: not closed by the mode.
            clip_norm: global norm that a step's gradients are cut to.
        """
        self.client = client
        self._clip_norm = clip_norm
        self._step = StepGradients()
        self._fetched = 0  # batches whose pulls were asked for, where the loop says so

    # --- tables -------------------------------------------------------------------------------

    def create_table(self, spec: pserver.TableSpec) -> pserver.TableSpec:
        """Make a sparse table; see ``Client.create_table``."""
        return self.client.create_table(spec)

    @abstractmethod
    def create_dense(self, spec: pserver.DenseSpec, first: Floats) -> Floats:
        """Make a dense table and return its values, the same for every trainer.

        Args:
            spec: of the table.
            first: (length,) values that it gets unless it has some.
        """

    # --- a step -------------------------------------------------------------------------------

    def begin_fetch(self) -> None:
        """Say that the pulls that follow are of the next batch; a loop that fetches ahead must."""
        self._fetched += 1

    @abstractmethod
    def start_pull(self, keys: Mapping[str, Keys]) -> Pending:
        """Ask for the rows of a coming step; asked for in the order of the steps."""

    def start_peek(self, keys: Mapping[str, Keys]) -> Pending:
        """Ask for rows as they are now, whatever the step; changes nothing."""
        return self.client.start_peek(keys)

    @abstractmethod
    def pull_dense(self, table: str) -> Floats | None:
        """Return (length,) values that this step computes with; None: those of the last step."""

    def start_push(self, gradients: Mapping[str, Gradients]) -> None:
        """Hand over gradients of this step; they leave when it ends. Not copied."""
        for table, arrays in gradients.items():
            self._step.add(table, arrays)

    def push_dense(self, table: str, grads: Floats) -> None:
        """Hand over (length,) gradients of a dense table, once a step; they leave when it ends."""
        self._step.dense[table] = grads

    def clip(
        self,
        local: Iterable[nn.Parameter],
        *,
        dense_squares: float | None = None,
        over_ranks: Callable[[float], float] = lambda squares: squares,
    ) -> float:
        """Cut this step's gradients to the global norm; between backward and the dense step.

        Args:
            local: parameters whose gradients torch holds, counted in the norm and cut too.
            dense_squares: squared norm of the dense part, if ``local`` is not all of it.
            over_ranks: makes one squared norm of those of several trainers, if there is a limit.

        Returns:
            The norm before; NaN or infinity where the gradients are.
        """
        grads = [parameter.grad for parameter in local if parameter.grad is not None]
        squares = self._step.squared_norm()
        if dense_squares is None:
            dense_squares = sum(
                float(torch.dot(grad.reshape(-1), grad.reshape(-1))) for grad in grads
            )
        squares += dense_squares
        if self._clip_norm is not None:
            squares = over_ranks(squares)
        norm = math.sqrt(squares)
        if self._clip_norm is not None and norm > self._clip_norm:
            self._step.scale(self._clip_norm / norm)
            for grad in grads:
                grad.mul_(self._clip_norm / norm)
        return norm

    def forget_step(self) -> None:
        """Drop what this step handed over: it is not made. It ends with no samples all the same."""
        self._step = StepGradients()

    def end_step(self, *, samples: int, loss: float | None = None) -> None:
        """Send what this step handed over, as one push.

        Args:
            samples: of the step's batch; 0 if this trainer had none.
            loss: of the batch, shown by ``pserver status``.

        Raises:
            pserver.PserverError: this or an earlier push failed.
        """
        step, self._step = self._step, StepGradients()
        self._send(step, samples=samples, loss=loss)

    @abstractmethod
    def _send(self, step: StepGradients, *, samples: int, loss: float | None) -> None:
        """Send a step that is over."""

    # --- the end ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Wait until every ended step is applied, or parked for its round.

        Raises:
            pserver.PserverError: a push failed.
        """
        self.client.flush()

    def finish(self) -> None:
        """End well: flush, and leave the group, so that nobody waits for this trainer.

        Raises:
            pserver.PserverError: as ``flush``; the group was left all the same.
        """
        self.flush()

    def facts(self) -> dict[str, float]:
        """Return the watch list of this mode by name: seconds in ``_s``, shares in ``_share``."""
        return {"queue_depth": float(self.client.queue_depth)}
