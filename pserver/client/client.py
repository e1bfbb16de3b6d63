"""The client: two verbs and a wait.

``pull`` reads weights and creates rows, ``push`` sends gradients, ``flush`` waits for what was
pushed. ``start_pull`` and ``start_push`` do not wait: a trainer asks for the next batch's rows
while it computes. ``peek`` reads and changes nothing; ``assign`` writes weights.

Rooms before and after: numpy arrays come in, made exact by ``inputs``; ``dedupe``, ``route`` and
``wire`` make one message a shard (more where it would be too large); ``sendqueue`` delivers.

What always holds: each push is applied once by each shard, however often the network made us
send it. A push that failed without being waited for is raised by the next push or flush.
"""

import itertools
import secrets
import threading
from collections.abc import Mapping, Sequence

import numpy as np
from google.protobuf.message import Message
from numpy.typing import ArrayLike, NDArray

from pserver.arrays import Keys
from pserver.client.at_exit import close_at_exit
from pserver.client.checkpoint import Checkpoints
from pserver.client.delivery import start_read, start_write
from pserver.client.dense import Dense, DensePulled
from pserver.client.geo import Geo
from pserver.client.gradients import Gradients, as_assigned, as_gradients, check_gradients
from pserver.client.group import Group
from pserver.client.inputs import as_keys
from pserver.client.inspected import Inspected, inspect
from pserver.client.lifecycle import Lifecycle
from pserver.client.membership import ShardInfo
from pserver.client.pending import PendingPull, PendingPush, Reply, Unwaited, wait_for
from pserver.client.revival import Revival
from pserver.client.route import Router
from pserver.client.runtime import Runtime
from pserver.client.sendqueue import SendQueue
from pserver.client.shown import Shown, pull_shown
from pserver.client.specs import Specs
from pserver.client.way import Way
from pserver.config import ClientSettings, GroupSettings
from pserver.deadline import Deadline
from pserver.errors import RequestError
from pserver.kernel.dedupe import dedupe
from pserver.placement import shard_of_partition
from pserver.spec import DenseSpec, TableSpec
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import TRAINER_BYTES, PushId
from pserver.wire.small import build_small, parse_small


class Client:
    """A connection to all shards of one cluster. Thread-safe.

    Made by ``pserver.connect`` or ``pserver.embedded``; use it as a context manager, or close it.
    """

    def __init__(
        self,
        queues: Sequence[SendQueue],
        shards: Sequence[ShardInfo],
        *,
        runtime: Runtime,
        settings: ClientSettings,
    ) -> None:
        """Take the connections; ``connect`` has checked that they form one cluster."""
        self.settings = settings
        self.shards = list(shards)
        self._queues = tuple(queues)
        self._runtime = runtime
        self._trainer = secrets.token_bytes(TRAINER_BYTES)
        self._counters = [itertools.count() for _ in shards]
        self._unwaited = Unwaited()
        self._tables = Specs(self.shards, self._ask)
        self._dense = Dense(self.shards, self._ask, self._push_id)
        self.revival = Revival(self.shards, queues, self._tables, self._dense, settings)
        self._way = Way(
            trainer=self._trainer,
            settings=settings,
            shards=self.shards,
            queues=self._queues,
            runtime=runtime,
            router=Router(shard_of_partition(len(shards)), len(shards)),
            dense=self._dense,
            unwaited=self._unwaited,
            order=threading.Lock(),
            specs=self._tables,
            push_id=self._push_id,
            put=self._put,
            ask=self._ask,
            revival=self.revival,
        )
        self.geo = Geo(self._way)
        self.lifecycle = Lifecycle(self.shards, self._ask, self._tables.forget)
        self.checkpoints = Checkpoints(self.shards, self._ask, self.flush)
        self._closing = threading.Lock()
        self._is_closed = False
        close_at_exit(self)

    def __enter__(self) -> "Client":
        """Return the client."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close; an error that is already on its way is not replaced by a failed push."""
        self.close(flush=kind is None)

    @property
    def num_shards(self) -> int:
        """Return how many shards the cluster has."""
        return len(self.shards)

    @property
    def queue_depth(self) -> int:
        """Return the requests that wait or are open, over all shards."""
        return sum(queue.depth for queue in self._queues)

    @property
    def retries(self) -> int:
        """Return how often a request had to be sent again."""
        return sum(queue.retries for queue in self._queues)

    def create_table(self, spec: TableSpec) -> TableSpec:
        """Make the table on every shard; fine if it is there with this very spec.

        Returns:
            The spec with every option spelled out.

        Raises:
            ConfigError: a rule or option is unknown; nothing was sent.
            SpecMismatchError: the table exists with another spec; the difference is shown.
        """
        return self._tables.create(spec)

    def spec(self, table: str) -> TableSpec:
        """Return the spec of a table that this client made or that the servers have.

        Raises:
            UnknownTableError: there is none of that name.
        """
        return self._tables.get(table)

    # --- reading ------------------------------------------------------------------------------

    def pull(self, table: str, keys: ArrayLike) -> NDArray[np.float32]:
        """Read weights; a key without a row gets one, with first weights.

        Args:
            table: name of an existing table.
            keys: (N,) integers, repeats allowed.

        Returns:
            (N, dim) float32.

        Raises:
            UnknownTableError, ShapeError: nothing was sent.
            TableFullError: a shard has no room for the new rows.
            DeadlineError: a shard did not answer in time; it is named.
        """
        return self._read(table, keys, creates=True)

    def peek(self, table: str, keys: ArrayLike) -> NDArray[np.float32]:
        """Read weights and change nothing; a key without a row reads as first weights.

        Arguments, result and errors as of ``pull``.
        """
        return self._read(table, keys, creates=False)

    def pull_shown(self, table: str, keys: ArrayLike) -> Shown:
        """Read shows and clicks with the weights; as ``pull``, of tables whose accessor is ctr."""
        return pull_shown(self._way, table, keys)

    def _read(self, table: str, keys: ArrayLike, *, creates: bool) -> NDArray[np.float32]:
        distinct = dedupe(as_keys(keys, where=f"pull {table!r}"))
        start = self.start_pull if creates else self.start_peek
        (weights,) = start({table: distinct.keys}).result()
        return np.take(weights, distinct.inverse, axis=0)

    def start_pull(self, keys: Mapping[str, Keys]) -> PendingPull:
        """Ask for weights of one or several tables and do not wait; rows are created.

        Args:
            keys: table name to (U,) contiguous uint64; repeats are read repeatedly.

        Returns:
            What is on its way; its ``result`` is one (U, dim) array a table.
        """
        return self._start_read(keys, creates=True)

    def start_peek(self, keys: Mapping[str, Keys]) -> PendingPull:
        """As ``start_pull``, but change nothing."""
        return self._start_read(keys, creates=False)

    def _start_read(self, keys: Mapping[str, Keys], *, creates: bool) -> PendingPull:
        self._check_open()
        return start_read(self._way, keys, creates=creates, deadline=self._way.deadline())

    # --- writing ------------------------------------------------------------------------------

    def push(  # noqa: PLR0913 - what can be said of keys, by name
        self,
        table: str,
        keys: ArrayLike,
        grads: ArrayLike,
        *,
        counts: ArrayLike | None = None,
        shows: ArrayLike | None = None,
        clicks: ArrayLike | None = None,
        slots: ArrayLike | None = None,
    ) -> int:
        """Send gradients and wait until every shard applied them.

        Repeated keys are summed first: the step is taken once, with the sum.

        Args:
            table: name of an existing table.
            keys: (N,) integers, repeats allowed.
            grads: (N, dim) floats, finite.
            counts: (N,) occurrences that each entry stands for, 1 each if not given.
            shows: (N,) numbers; not given: the counts.
            clicks: (N,) numbers; not given: 0.
            slots: (N,) integers; not given: rows keep theirs; of repeats the last one counts.

        Returns:
            The lowest version that a shard reported after applying.

        Raises:
            UnknownTableError, ShapeError: nothing was sent.
            NotFiniteError, TableFullError: a shard refused its part and applied nothing of it; of
                a push larger than one message, each part that fits one is such a part.
            PserverError: an earlier push that was not waited for failed; this one was not sent.
            DeadlineError: not all shards answered in time; the message names one that did not.
                Whether it applied its part is not known.
        """
        said = {"counts": counts, "shows": shows, "clicks": clicks, "slots": slots}
        return self._write("Push", table, keys, grads, said).result()

    def assign(self, table: str, keys: ArrayLike, weights: ArrayLike) -> int:
        """Write weights as they are and wait until every shard has; optimizer state stays.

        Args:
            table: name of an existing table.
            keys: (N,) integers, each once.
            weights: (N, dim) floats, finite.

        Raises:
            ShapeError: a key is repeated, or the shapes disagree. Nothing was sent.
        """
        return self._write("Assign", table, keys, weights, {}).result()

    def start_push(self, gradients: Mapping[str, Gradients]) -> PendingPush:
        """Send gradients of one or several tables and do not wait.

        Args:
            gradients: table name to (U,) distinct uint64 keys, (U * dim,) float32 gradients and
                (U,) uint32 counts, or none, or ``Occurrences``. Copied before this returns.

        Returns:
            What is on its way. A failure is also raised by the next ``start_push`` or ``flush``.

        Raises:
            UnknownTableError, ShapeError: nothing was sent.
            PserverError: an earlier push failed; this one was not sent.
        """
        self._check_open()
        self._unwaited.reap()
        for name, arrays in gradients.items():
            check_gradients(arrays, dim=self.spec(name).dim, where=f"push {name!r}")
        pending = start_write(self._way, "Push", gradients, deadline=self._way.deadline())
        self._unwaited.add(pending)
        return pending

    def flush(self) -> None:
        """Wait until all that was pushed is applied.

        Raises:
            PserverError: the first push that failed; the rest was waited for.
        """
        self._runtime.check_process()
        self._unwaited.wait()

    def _write(
        self,
        method: str,
        table: str,
        keys: ArrayLike,
        values: ArrayLike,
        said: Mapping[str, ArrayLike | None],
    ) -> PendingPush:
        """Make a caller's arrays exact and distinct, and send them."""
        self._check_open()
        self._unwaited.reap()
        where = f"{method.lower()} {table!r}"
        dim = self.spec(table).dim
        given = as_keys(keys, where=where)
        if method == "Assign":
            written = as_assigned(given, values, dim=dim, where=where)
        else:
            written = as_gradients(given, values, said, dim=dim, where=where)
        return start_write(self._way, method, {table: written}, deadline=self._way.deadline())

    # --- dense tables -------------------------------------------------------------------------

    def create_dense(self, spec: DenseSpec) -> DenseSpec:
        """Make a dense table on every shard; see ``create_table``. It has no values yet."""
        return self._dense.create(spec)

    def init_dense(self, table: str, values: ArrayLike) -> None:
        """Write a dense table's first values, (length,) floats, once; see ``Dense.init``."""
        self._dense.init(table, values)

    def reset_dense(self, table: str, values: ArrayLike) -> None:
        """Write them whatever is there; the optimizer's state begins anew too."""
        self._dense.reset(table, values)

    def pull_dense(self, table: str, *, known: DensePulled | None = None) -> DensePulled:
        """Read a dense table; what did not change since ``known`` does not travel again."""
        return self._dense.pull(table, known=known)

    def push_dense(self, table: str, grads: ArrayLike) -> int:
        """Send gradients, (length,) floats, and wait, as ``push``; see ``Dense.push``."""
        self._unwaited.reap()
        return self._dense.push(table, grads)

    # --- the rest -----------------------------------------------------------------------------

    def join(self, settings: GroupSettings) -> Group:
        """Become a trainer of a group, which works in the way that the settings say.

        Raises:
            GroupError: another live trainer has the id, or the group agrees on something else.
        """
        self._check_open()
        return Group(self._way, settings)

    def inspect(self, table: str, key: int | np.integer) -> Inspected:
        """Look at one key where it lives. Nothing changes there: no row is made, none counted.

        Args:
            table: name of an existing table.
            key: any of 64 bits; a negative one is taken bit for bit.

        Raises:
            UnknownTableError, ShapeError: no such table, or no integer of 64 bits.
        """
        self.spec(table)
        return inspect(self.shards, self._ask, table, key)

    def stats(self) -> list[pb.StatsReply]:
        """Return each shard's counters."""
        requests = [(shard, pb.StatsRequest()) for shard in range(self.num_shards)]
        return [parse_small(pb.StatsReply, r) for r in self._ask("Stats", requests, what="stats")]

    def close(self, *, flush: bool = True) -> None:
        """Wait for what was pushed, then close the connections. Closing twice is fine.

        Raises:
            PserverError: a push had failed; the connections are closed all the same.
        """
        if self._is_closed:
            return
        self._runtime.check_process()
        try:
            if flush:
                self.flush()
        finally:
            with self._closing:
                was_closed, self._is_closed = self._is_closed, True
            if not was_closed:
                for queue in self._queues:
                    self._runtime.submit(queue.close()).result()
                self._runtime.stop()

    def _ask(
        self,
        method: str,
        requests: Sequence[tuple[int, Message]],
        *,
        what: str,
        more_s: float = 0.0,
    ) -> list[bytes]:
        """Send small messages, each to a shard, and return the replies once all are here."""
        deadline = self._way.deadline(more_s)
        replies = [self._put(s, method, build_small(r), deadline) for s, r in requests]
        return [wait_for(reply, deadline=deadline, what=what) for reply in replies]

    def _push_id(self, shard: int) -> PushId:
        """Return the name of the next write to a shard."""
        return PushId(self._trainer, next(self._counters[shard]))

    def _put(self, shard: int, method: str, message: bytes, deadline: Deadline) -> Reply:
        self._check_open()
        return self._queues[shard].put(method, message, deadline=deadline)

    def _check_open(self) -> None:
        self._runtime.check_process()
        if self._is_closed:
            raise RequestError("this client was closed")
