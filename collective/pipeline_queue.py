"""The tensors on their way between the stages of a pipeline.

Rooms before and after: ``pipeline`` sends and takes parcels, of which ``pipeline_parcel`` makes messages; they travel through a
``Group`` of their own.

The owner begins to send, a thread sees that it goes, and one for each other rank receives, while the owner computes.

What always holds:
    * Parcels from one rank arrive in the order in which they were sent, and are taken in any order.
    * Bytes that wait to go are at most ``bytes_max``, or one parcel if that is larger: ``send`` waits. So
      are bytes that wait to be taken: receiving pauses, with at most one message of each rank. While the owner itself waits for
      something, receiving goes on past that, since what it waits for may stand behind: so nobody
      waits in a circle.
    * A rank that fails tells all others what it failed of before it ends (``fail``), and each of them
      raises that: not a connection that broke a little later.
Owner: the training thread; the counters and parcels that came are guarded by one lock.
"""

import contextlib
import datetime
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from collective.errors import CollectiveError, StageError, TensorError
from collective.group import Group, Work
from collective.pipeline_parcel import DIMS_MAX, DTYPES, Label, Parcel, Sizes, read, written
from collective.worker import Worker

BYTES_MAX = 1 << 30
"""Bytes that wait when nothing is said."""

_FAREWELL_S = 10.0
"""How long a rank that fails waits until the others have taken its last words."""

_FOREVER = datetime.timedelta(days=365)
"""A rank may evaluate between two steps as long as it likes; ``take`` has the limit of a wait."""

_Way = Literal["out", "in"]


class PipelineQueue:
    """One rank's end of the connections to all others. Close it at the end, on all ranks.

    Attributes:
        bytes_max: that wait at the most, each way.
    """

    def __init__(self, group: Group, *, bytes_max: int = BYTES_MAX) -> None:
        """Start the threads.

        Args:
            group: the ranks; nobody else sends or receives in it.
            bytes_max: that wait at the most, each way.
        """
        self.bytes_max = bytes_max
        self._group = group
        self._others = [rank for rank in range(group.world_size) if rank != group.rank]
        self._lock = threading.Condition()
        self._came: dict[Label, Parcel] = {}
        self._bytes: dict[_Way, int] = {"out": 0, "in": 0}
        self._peak_bytes = 0
        self._owner_waits = False
        self._failure: tuple[int, str] | None = None
        self._broken: Exception | None = None
        self._closed: set[int] = set()  # ranks that are through: others may still have to send
        self._sender = Worker(name="pipeline-send")
        self._sent: list[Future[None]] = []
        self._sizes = {rank: Sizes() for rank in self._others}
        self._readers = [
            threading.Thread(
                target=self._read, args=(rank,), name=f"pipeline-from-{rank}", daemon=True
            )
            for rank in self._others
        ]
        for reader in self._readers:
            reader.start()

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes that wait now, to go or to be taken."""
        return sum(self._bytes.values())

    @property
    def peak_bytes(self) -> int:
        """Return the most bytes that ever waited at once."""
        return self._peak_bytes

    def send(self, rank: int, label: Label, parcel: Parcel) -> None:
        """Send a parcel; its tensors must not change any more.

        Raises:
            TensorError: a tensor that cannot travel. Nothing was sent.
            StageError, MissingRanksError: as of ``take``.
        """
        for tensor in parcel.tensors:
            if tensor is not None and (tensor.dtype not in DTYPES or tensor.dim() > DIMS_MAX):
                raise TensorError(
                    f"stage {label[2]}: a tensor between stages has at most {DIMS_MAX} dims and a "
                    f"common dtype, got {tensor.dim()} dims of {tensor.dtype}"
                )
        size = parcel.num_bytes
        with self._lock, self._waits():
            self._until(lambda: self._has_room("out", size), rank, f"sending to stage {label[2]}")
            self._count("out", size)
        self._post(rank, label, parcel)

    def take(self, rank: int, label: Label) -> Parcel:
        """Wait for a parcel of a rank, and return it.

        Raises:
            StageError: another rank failed.
            MissingRanksError: it did not come within the limit of the group, or a rank went away.
        """
        what = f"pipeline step {label[1]}: {label[0]} of micro-batch {label[3]}, stage {label[2]}"
        with self._lock, self._waits():
            self._until(lambda: label in self._came, rank, what)
            parcel = self._came.pop(label)
            self._count("in", -parcel.num_bytes)
        return parcel

    def tell(self, step: int, numbers: Sequence[float]) -> list[list[float]]:
        """Give all ranks this rank's numbers and return those of all, by rank.

        Raises:
            CollectiveError: as of ``take``.
        """
        mine = torch.tensor(numbers, dtype=torch.float64)
        return [
            [float(n) for n in came] for (came,) in self.exchange(step, (mine,)) if came is not None
        ]

    def exchange(
        self, step: int, tensors: tuple[Tensor | None, ...]
    ) -> list[tuple[Tensor | None, ...]]:
        """Give all ranks this rank's tensors and return those of all, by rank: the end of a step.

        Raises:
            CollectiveError: as of ``take``.
        """
        for rank in self._others:
            self._post(rank, ("done", step, self._group.rank, 0), Parcel(tensors))
        came = [
            tensors
            if rank == self._group.rank
            else self.take(rank, ("done", step, rank, 0)).tensors
            for rank in range(self._group.world_size)
        ]
        self._sent = [future for future in self._sent if not future.done()]
        return came

    def fail(self, text: str) -> None:
        """Tell all ranks that this one failed, unless it failed because another did."""
        if self._failure is None:
            for rank in self._others:
                self._post(rank, ("failed", 0, self._group.rank, 0), Parcel(text=text))
            wait(self._sent, timeout=_FAREWELL_S)

    def close(self) -> None:
        """End the threads, once all ranks have called this or are gone."""
        for rank in self._others:
            self._post(rank, ("bye", 0, self._group.rank, 0), Parcel())
        if not wait(self._sent, timeout=_FAREWELL_S).not_done:
            self._sender.close()
        for reader in self._readers:
            reader.join(_FAREWELL_S)

    def _post(self, rank: int, label: Label, parcel: Parcel) -> None:
        """Begin to send a parcel, and let the sending thread see that it goes."""
        counted = parcel.num_bytes if label[0] in ("values", "gradients") else 0
        messages, whole = written(label, parcel, first_bytes=self._sizes[rank].next)
        self._sizes[rank].saw(label[0], whole=whole)
        works: list[Work] = []
        try:
            for tensor in messages:
                works.append(self._group.send(tensor, rank))  # noqa: PERF401 - those before one that fails count
        except RuntimeError as error:
            self._break(error)

        def see_off() -> None:
            try:
                for work in works:
                    work.wait(_FOREVER)
            except RuntimeError as error:
                self._break(error)
            finally:
                with self._lock:
                    self._count("out", -counted)

        self._sent.append(self._sender.submit(see_off))

    def _break(self, error: Exception) -> None:
        """Take in that a connection is of no more use."""
        with self._lock:
            self._broken = self._broken or error
            self._lock.notify_all()

    def _read(self, rank: int) -> None:
        """Receive from one rank until it says goodbye, fails or is gone."""
        sizes = Sizes()
        try:
            while True:
                label, parcel = self._receive(rank, sizes)
                with self._lock:
                    if label[0] == "failed":
                        self._failure = self._failure or (self._group.ranks[rank], parcel.text)
                    elif label[0] == "bye":
                        self._closed.add(rank)
                    else:
                        self._came[label] = parcel
                    self._lock.notify_all()
                if label[0] in ("failed", "bye"):
                    return
        except (RuntimeError, ValueError, IndexError) as error:
            self._break(error)

    def _receive(self, rank: int, sizes: Sizes) -> tuple[Label, Parcel]:
        """Receive one parcel, when there is room for it."""

        def fill(tensor: Tensor) -> None:
            self._group.receive(tensor, rank).wait(_FOREVER)

        def admit(size: int) -> None:
            with self._lock:
                while not (self._has_room("in", size) or self._owner_waits):
                    self._lock.wait()
                self._count("in", size)

        first = np.empty(sizes.next, np.uint8)
        fill(torch.from_numpy(first))
        came_s = time.perf_counter()
        label, parcel, whole = read(first, came_s=came_s, fill=fill, admit=admit)
        sizes.saw(label[0], whole=whole)
        return label, parcel

    def _has_room(self, way: _Way, size: int) -> bool:
        return self._bytes[way] == 0 or self._bytes[way] + size <= self.bytes_max

    def _count(self, way: _Way, size: int) -> None:
        self._bytes[way] += size
        self._peak_bytes = max(self._peak_bytes, self.waiting_bytes)
        self._lock.notify_all()

    @contextlib.contextmanager
    def _waits(self) -> Iterator[None]:
        """Let parcels come in past the bound."""
        self._owner_waits = True
        self._lock.notify_all()
        try:
            yield
        finally:
            self._owner_waits = False

    def _until(self, is_so: Callable[[], bool], rank: int, what: str) -> None:
        """Wait, with the lock held, until something is so that a rank brings about."""
        end_s = time.monotonic() + self._group.timeout_s
        while not is_so():
            self._raise_failure()
            left_s = end_s - time.monotonic()
            error = self._broken
            if rank in self._closed:
                name = self._group.ranks[rank]
                error = ConnectionError(f"rank {name} of the run closed its pipeline")
            if error is not None or left_s <= 0:
                error = error or TimeoutError("nothing came")
                self._lock.release()  # while it asks the others, their last words may come
                try:
                    blamed: CollectiveError = self._group.blame(what, error)
                finally:
                    self._lock.acquire()
                self._raise_failure()
                raise blamed
            self._lock.wait(left_s)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            rank, text = self._failure
            raise StageError(text, rank)
