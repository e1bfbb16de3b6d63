"""What is on its way: a pull whose weights are wanted later, a push that is not waited for.

Rooms before and after: ``Client.start_pull`` and ``start_push`` make these; whoever wants the
outcome asks them, in the caller's thread.
"""

import concurrent.futures
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pserver.arrays import RowIds
from pserver.client.route import Cargo
from pserver.deadline import Deadline
from pserver.errors import DeadlineError, ShapeError, UnknownTableError
from pserver.kernel import rows
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import TableRows, parse_pull_reply
from pserver.wire.small import parse_small

Reply = concurrent.futures.Future[bytes]


def wait_for(reply: Reply, *, deadline: Deadline, what: str) -> bytes:
    """Return a reply's bytes.

    Raises:
        PserverError: what the delivery ended with.
        DeadlineError: it had no outcome in time.
    """
    try:
        # The send queue gives up at the deadline; a second more lets its better message come.
        return reply.result(deadline.remaining_s + 1.0)
    except concurrent.futures.TimeoutError:
        raise DeadlineError(f"{what}: no answer before the deadline") from None


@contextlib.contextmanager
def renewed(forget: Callable[[], object]) -> Iterator[None]:
    """Let a client ask for specs again if those that it has seem to be of tables that are gone.

    A table may be dropped and made anew with another dim by somebody else: the call that notices it fails,
    and the next one knows.
    """
    try:
        yield
    except (ShapeError, UnknownTableError):
        forget()
        raise


@dataclass(frozen=True, slots=True)
class PendingPull:
    """A pull of one or several tables that is on its way.

    Attributes:
        shapes: (U, dim) of each table.
        cargoes: what each message asked for, with the future of its reply.
        shards: which shard each message went to.
        deadline: when it is given up.
        forget: lets the client ask for specs again; called when what came does not fit them.
    """

    shapes: Sequence[tuple[int, int]]
    cargoes: Sequence[tuple[Cargo, Reply]]
    shards: Sequence[int]
    deadline: Deadline
    forget: Callable[[], None]

    @property
    def is_done(self) -> bool:
        """Return whether every reply is here."""
        return all(reply.done() for _, reply in self.cargoes)

    def result(self) -> list[NDArray[np.float32]]:
        """Wait for the weights.

        Returns:
            For each table (U, dim) float32, in the order of the keys. Where one message brought
            them all it is a read-only view of that message.

        Raises:
            PserverError: the first failure among the shards.
        """
        (weights,) = self.results("weights")
        return weights

    def results(self, *names: str) -> list[list[NDArray[np.float32]]]:
        """Wait, and return each of what was asked for: "weights", "shows", "clicks".

        Returns:
            For each name, (U, dim) of each table as ``result`` has it; dim 1 but for weights.
        """
        answers = self._answers()
        return [
            [self._merge(index, answers, name) for index in range(len(self.shapes))]
            for name in names
        ]

    def versions(self) -> list[dict[int, int]]:
        """Return, for each table, the version of the rows of each shard that has some of them.

        Waits as ``result`` does. Where a shard sent several messages the oldest one counts.
        """
        found: list[dict[int, int]] = [{} for _ in self.shapes]
        for shard, (cargo, tables) in zip(self.shards, self._answers(), strict=True):
            for (index, _), table in zip(cargo.tables, tables, strict=True):
                found[index][shard] = min(found[index].get(shard, table.version), table.version)
        return found

    def _answers(self) -> list[tuple[Cargo, list[TableRows]]]:
        """Wait for every reply, and return it with what it answers."""
        with renewed(self.forget):
            return [
                (cargo, self._parse(cargo, wait_for(reply, deadline=self.deadline, what="pull")))
                for cargo, reply in self.cargoes
            ]

    def _parse(self, cargo: Cargo, message: bytes) -> list[TableRows]:
        """Return a reply's blocks, checked against what was asked for."""
        tables = parse_pull_reply(message)
        expected = [order.size * self.shapes[index][1] for index, order in cargo.tables]
        came = [table.weights.size for table in tables]
        if expected != came:
            raise ShapeError(
                f"pull: a shard answered with {came} floats, expected {expected}: a table was dropped and "
                "made anew with another dim; the next call knows it"
            )
        return tables

    def _merge(
        self, table_index: int, answers: Sequence[tuple[Cargo, Sequence[TableRows]]], name: str
    ) -> NDArray[np.float32]:
        """Put the blocks of one table back into the order of its keys."""
        count, dim = self.shapes[table_index]
        dim = dim if name == "weights" else 1
        blocks: list[tuple[RowIds, NDArray[np.float32]]] = [
            (order, getattr(table, name))
            for cargo, tables in answers
            for (index, order), table in zip(cargo.tables, tables, strict=True)
            if index == table_index
        ]
        if len(blocks) == 1 and blocks[0][0].size == count and _is_in_order(blocks[0][0]):
            return blocks[0][1].reshape(count, dim)
        out = np.empty(count * dim, np.float32)
        for order, block in blocks:
            rows.put(block, dim, order, out)
        return out.reshape(count, dim)


def _is_in_order(order: RowIds) -> bool:
    """Return whether positions are 0, 1, 2, ...: one shard's, which routing leaves as they are."""
    return bool(order.size == 0 or (order[0] == 0 and order[-1] == order.size - 1))


@dataclass(frozen=True, slots=True)
class PendingPush:
    """A push or assign that is on its way.

    Attributes:
        what: named in an error.
        replies: the futures of its messages.
        deadline: when it is given up.
        forget: as of ``PendingPull``.
    """

    what: str
    replies: Sequence[Reply]
    deadline: Deadline
    forget: Callable[[], None]

    @property
    def is_done(self) -> bool:
        """Return whether every shard's outcome is known."""
        return all(reply.done() for reply in self.replies)

    def result(self) -> int:
        """Wait until every shard applied its part.

        Returns:
            The lowest table version that any shard reported after applying; 0 if there was
            nothing to send.

        Raises:
            PserverError: the first failure. Other shards may have applied their parts: a step is
                not atomic across shards.
        """
        return min((v for reply in self._answers() for v in reply.versions), default=0)

    def staleness(self) -> int:
        """Return the most versions that others came to between pull and push, of any table.

        Waits and raises as ``result``.
        """
        return max((reply.staleness for reply in self._answers()), default=0)

    def _answers(self) -> list[pb.PushReply]:
        """Wait for every reply; raise the first failure once all are here."""
        answers: list[pb.PushReply] = []
        failure: Exception | None = None
        for reply in self.replies:
            try:
                message = wait_for(reply, deadline=self.deadline, what=self.what)
            except Exception as error:  # noqa: BLE001 - the first one is raised below
                failure = failure or error
                continue
            answers.append(parse_small(pb.PushReply, message))
        if failure is not None:
            with renewed(self.forget):
                raise failure
        return answers


class Unwaited:
    """Pushes on their way whose outcome nobody asked for yet, oldest first. Thread-safe."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._pushes: deque[PendingPush] = deque()

    def add(self, push: PendingPush) -> None:
        """Remember one."""
        with self._lock:
            self._pushes.append(push)

    def cut_short(self, push: PendingPush, error: DeadlineError) -> DeadlineError:
        """Remember what left of a push that could not be sent whole, and return what to raise."""
        self.add(push)
        return DeadlineError(
            f"{push.what}: a part of it had left and may be applied, so sending it again would count "
            f"that part twice; the rest was not sent: {error}"
        )

    def reap(self) -> None:
        """Forget those that are applied, without waiting.

        Raises:
            PserverError: what went wrong with one; the later ones are still remembered.
        """
        while True:
            with self._lock:
                if not self._pushes or not self._pushes[0].is_done:
                    return
                push = self._pushes.popleft()
            push.result()

    def wait(self) -> None:
        """Wait for all, and forget them.

        Raises:
            PserverError: the first failure; the rest was waited for.
        """
        with self._lock:
            pushes = list(self._pushes)
        failure: Exception | None = None
        for push in pushes:
            try:
                push.result()
            except Exception as error:  # noqa: BLE001 - the first one is raised below
                failure = failure or error
        waited = set(map(id, pushes))
        with self._lock:
            while self._pushes and id(self._pushes[0]) in waited:
                self._pushes.popleft()
        if failure is not None:
            raise failure
