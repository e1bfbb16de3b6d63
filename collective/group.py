"""The ranks that work together, and the messages between two of them.

Rooms before and after: ``connect`` makes the group of all ranks on torch.distributed; ``ring``,
``hierarchical`` and the others send and receive through it.

What always holds:
    * Every wait has a limit. When one passes, or a connection breaks, the error names the operation
      and the ranks that are to blame (``roll``). The rank then breaks its own connections, so that those that
      wait for it fail too, and do not wait until their limit.
    * Messages from one rank to another arrive in the order in which they were sent.
Owner: one thread at a time sends and receives in a group; operations of a group have one order on
all ranks.
"""

import datetime
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from collective.errors import GroupError, MissingRanksError
from collective.neighbours import Listener, Neighbours
from collective.roll import Roll

TIMEOUT_S = 1800.0
"""How long an operation waits for the others when nothing is said."""


class Work(Protocol):
    """A message on its way."""

    def wait(self, timeout: datetime.timedelta = ...) -> bool:
        """Wait until it went, or came."""
        ...


class Group:
    """Some ranks of a run, numbered from 0 in this group.

    Attributes:
        rank: of this process in the group.
        world_size: ranks in the group.
        ranks: of the whole run, by rank in this group.
        timeout_s: limit of one operation.
        name: in messages.
    """

    def __init__(
        self,
        roll: Roll | None,
        *,
        rank: int,
        ranks: Sequence[int],
        address: str = "",
        timeout_s: float = TIMEOUT_S,
        name: str = "world",
    ) -> None:
        """Connect to the other ranks of the group, which do the same.

        Args:
            roll: this process's place in roll calls, with the store where the ranks meet; None for one rank.
            rank: of this process in the group.
            ranks: of the whole run, by rank in this group.
            address: IP address of this host by which the others reach it; empty for one rank.
            timeout_s: limit of one operation.
            name: the same on all ranks, another for each group of a run.

        Raises:
            MissingRanksError: some ranks did not come.
        """
        self.rank = rank
        self.world_size = len(ranks)
        self.ranks = tuple(ranks)
        self.timeout_s = timeout_s
        self.name = name
        self._neighbours: Neighbours | None = None
        self._roll = roll
        self._address = address
        self._limit = datetime.timedelta(seconds=timeout_s)
        self._operations = 0
        self._failure: MissingRanksError | None = None
        self._gloo: Any = None  # torch's stubs do not know that it sends and receives
        if roll is not None and self.world_size > 1:
            self.run("connecting", lambda: self._connect(roll.store))

    @property
    def store(self) -> Store | None:
        """Return the store where the ranks met; None for one rank."""
        return None if self._roll is None else self._roll.store

    def _connect(self, store: Store) -> None:
        # Underscored, but the one way to choose an address; torch's own tests make groups so.
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001
        options._timeout = self._limit  # noqa: SLF001
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._address)]  # noqa: SLF001
        mine = PrefixStore(f"gloo/{self.name}", store)
        self._gloo = dist.ProcessGroupGloo(mine, self.rank, self.world_size, options)

    def send(self, tensor: Tensor, rank: int) -> Work:
        """Begin to send a contiguous tensor; it must not change before the work is done."""
        work: Work = self._gloo.send([tensor], rank, 0)
        return work

    def receive(self, tensor: Tensor, rank: int) -> Work:
        """Begin to receive into a contiguous tensor of just the size that is sent."""
        work: Work = self._gloo.recv([tensor], rank, 0)
        return work

    def wait(self, work: Work) -> None:
        """Wait for a message within the limit of an operation."""
        work.wait(self._limit)

    def neighbours(self) -> Neighbours:
        """Return the connections around the ring of all ranks; made at the first call, within an operation."""
        if self._neighbours is None:
            right, left = (self.rank + 1) % self.world_size, (self.rank - 1) % self.world_size
            with Listener(self._address) as listener:
                mine = torch.frombuffer(bytearray(listener.word), dtype=torch.uint8)
                theirs = torch.empty_like(mine)
                for work in (self.receive(theirs, right), self.send(mine, left)):
                    self.wait(work)
                self._neighbours = listener.meet(theirs.numpy().tobytes(), limit_s=self.timeout_s)
        return self._neighbours

    def run(self, what: str, operation: Callable[[], None]) -> None:
        """Run an operation in which every rank of the group takes part, in the same order on all.

        Args:
            what: the operation, in messages.
            operation: sends and receives.

        Raises:
            MissingRanksError: some ranks did not come within the limit, or went away, in this operation or
                an earlier one.
        """
        if self._failure is not None:
            text = f"{what}: the group is of no more use since an operation failed: {self._failure}"
            raise MissingRanksError(text, self._failure.missing)
        self._operations += 1
        try:
            operation()
        except (RuntimeError, OSError) as error:  # torch's one class; that of sockets
            # torch's connections live as long as anything that is on its way in them, such as in the
            # frames of the operation. Without them those that wait for this rank fail now.
            traceback.clear_frames(error.__traceback__)
            self._gloo = None
            if self._neighbours is not None:
                self._neighbours.close()
            self._failure = self.blame(what, error)
            raise self._failure from error

    def all_reduce(self, tensor: Tensor, *, what: str) -> None:
        """Replace a contiguous tensor by its sum, by torch's own all-reduce."""
        if self.world_size > 1:
            self.run(what, lambda: self.wait(self._gloo.allreduce([tensor.detach()])))

    def maximum(self, tensor: Tensor, *, what: str = "maximum") -> None:
        """Replace a contiguous tensor by its elementwise maximum over the ranks."""
        if self.world_size > 1:
            options = dist.AllreduceOptions()
            options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
            self.run(what, lambda: self.wait(self._gloo.allreduce([tensor.detach()], options)))

    def barrier(self, *, what: str = "barrier") -> None:
        """Wait until every rank is here."""
        self.all_reduce(torch.zeros(1), what=what)

    def blame(self, what: str, error: Exception) -> MissingRanksError:
        """Return the error of an operation that failed, with the ranks that are to blame."""
        head = f"{what} in group {self.name!r} (rank {self.rank} of {self.world_size}): "
        operation = f"{self.name}/{self._operations}"
        verdict = None if self._roll is None else self._roll.call(operation, self.ranks)
        if verdict is None:
            text = "the store that ranks meet at is gone with its process, rank 0 of the run"
            missing: tuple[int, ...] = (0,)
        elif verdict.gone:
            missing = verdict.gone
            text = f"rank {_listed(missing)} of the run went away"
        elif verdict.late:
            missing = verdict.late
            text = f"rank {_listed(missing)} of the run did not come within {self.timeout_s:g} s"
        else:
            missing = ()
            text = "the connection broke though every rank took part"
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        return MissingRanksError(f"{head}{text}; its connection says: {reason}", missing)

    def split(self, parts: Sequence[Sequence[int]], *, name: str) -> "Group":
        """Return the part of this group that this rank is in. Every rank calls it, with the same parts.

        Args:
            parts: ranks of this group; each is in one part.
            name: of the parts; a part's number is added.

        Raises:
            GroupError: a rank is in no part or in two.
        """
        if sorted(rank for part in parts for rank in part) != list(range(self.world_size)):
            raise GroupError(
                f"parts of group {self.name!r} must hold each of its {self.world_size} ranks once, "
                f"got {[list(part) for part in parts]}"
            )
        number = next(i for i, part in enumerate(parts) if self.rank in part)
        part = list(parts[number])
        return Group(
            self._roll,
            rank=part.index(self.rank),
            ranks=[self.ranks[rank] for rank in part],
            address=self._address,
            timeout_s=self.timeout_s,
            name=f"{name}-{number}",
        )


def alone() -> Group:
    """Return the group of one rank, for a run without others."""
    return Group(None, rank=0, ranks=[0])


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
