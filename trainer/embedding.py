"""The torch side of a table: ``EmbeddingBag``, an ``nn.Module`` whose weights live on servers.

Rooms before and after: a model calls it with keys; behind it are ``pserver.Client``, or a mode of
``trainer.modes`` in front of one, and ``pooling``. Step 3 of the life of a batch.

What always holds:
    * Forward pulls each distinct key once. In training a key without a row gets one; in
      evaluation (``eval()`` or ``no_grad``) nothing on the servers changes.
    * Backward hands over the summed gradient of each distinct key once a forward, without waiting.
      A client pushes it then and there; a ``Mode`` when the step ends. A failed push is raised by
      the next one or by ``flush()``.
    * A key that is in no bag is not touched.
    * Eight forwards in a row whose gradients never came are warned of, once: nothing is learnt then.
"""

import math
import time
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

import pserver
from trainer.modes.base import Pending, Rows
from trainer.pooling import Pooling, pool
from trainer.said import BagFacts, said_of

log = structlog.get_logger(__name__)

_UNANSWERED_MAX = 8  # forwards in training before a missing gradient is told of

KeysLike: TypeAlias = Tensor | NDArray[np.integer]
"""Keys as a tensor or array: integers of any width; -1 and 2^64 - 1 are the same key."""


@dataclass(slots=True)
class CommTime:
    """Seconds that the training thread spent on communication: waiting, splitting, queueing."""

    pull_s: float = 0.0
    push_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Return both together."""
        return self.pull_s + self.push_s


@dataclass(frozen=True, slots=True)
class Fetch:
    """Rows on their way for one forward.

    Attributes:
        distinct: the distinct keys of the batch and the way back.
        pending: the pull.
        shape: of the keys as they were given.
    """

    distinct: pserver.Distinct
    pending: Pending
    shape: tuple[int, ...] = field(default=())


class EmbeddingBag(nn.Module):
    """A table of rows on parameter servers, used like ``torch.nn.EmbeddingBag``.

    There is no ``num_embeddings``: any integer is a key. The optimizer is the table's and runs on
    the servers; ``parameters()`` is empty, so a torch optimizer sees the dense part only.
    """

    def __init__(  # noqa: PLR0913 - a table's spec, given by name
        self,
        client: Rows,
        table: str,
        *,
        dim: int,
        pooling: Pooling = "sum",
        optimizer: str = "adagrad:lr=0.05",
        initializer: str = "uniform:low=-0.01,high=0.01",
        seed: int = 0,
        row_dtype: str = "float32",
        storage: str = "memory",
        device: str | torch.device = "cpu",
        **rules: str | int,
    ) -> None:
        """Make the table on the servers; fine if it is there with this very spec.

        Args:
            client: a connection, or a mode that goes through one.
            table: the table's name; two modules may share one.
            dim: floats a row.
            pooling: "sum" or "mean" over a bag, or "none": each key's row.
            optimizer: see ``pserver optimizers``.
            initializer: rule of first weights.
            seed: of first weights.
            row_dtype: what weights are kept in: float32, bfloat16 or float16.
            storage: where shards keep rows: memory or file.
            device: where the output lives.
            rules: further fields of ``pserver.TableSpec``, such as ``accessor``, ``admission``, ``evict``.

        Raises:
            pserver.ConfigError: a rule or option is unknown, or ``pooling`` is.
            pserver.SpecMismatchError: the table exists with another spec.
        """
        super().__init__()
        if pooling not in ("sum", "mean", "none"):
            raise pserver.ConfigError(f"pooling must be sum, mean or none, got {pooling!r}")
        spec = pserver.TableSpec(
            name=table,
            dim=dim,
            optimizer=optimizer,
            initializer=initializer,
            seed=seed,
            row_dtype=row_dtype,
            storage=storage,
            **rules,  # type: ignore[arg-type] # TableSpec looks at each itself
        )
        self.spec = client.create_table(spec)
        self.pooling: Pooling = pooling
        self.comm = CommTime()
        self._needs = self.spec.needs
        self._unanswered = 0  # forwards in training since the last gradient
        self._client = client
        self._device = torch.device(device)

    @override
    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows of this module."""
        return f"{self.spec.name!r}, dim={self.spec.dim}, pooling={self.pooling}"

    def distinct(self, keys: KeysLike) -> pserver.Distinct:
        """Return the distinct keys of a batch; may be called from another thread, ahead of time."""
        where = f"embedding {self.spec.name!r}"
        try:
            array = keys.detach().cpu().numpy() if isinstance(keys, Tensor) else keys
        except TypeError:  # a dtype of torch that numpy does not have
            raise pserver.ShapeError(f"{where}: keys must be integers, got {keys.dtype}") from None
        return pserver.dedupe(pserver.as_keys(array, where=where))

    def fetch(self, keys: KeysLike, *, distinct: pserver.Distinct | None = None) -> Fetch:
        """Ask for the rows of a batch without waiting, to be handed to ``forward`` later.

        Args:
            keys: (N,) or (B, F) integers.
            distinct: what ``distinct`` returned for them, if it was called before.
        """
        begin = time.perf_counter()
        found = self.distinct(keys) if distinct is None else distinct
        if found.inverse.size != math.prod(keys.shape):
            raise pserver.ShapeError(
                f"embedding {self.spec.name!r}: distinct is of {found.inverse.size} keys, and "
                f"{math.prod(keys.shape)} are fetched; it must be of the same batch"
            )
        trains = self.training and torch.is_grad_enabled()
        start = self._client.start_pull if trains else self._client.start_peek
        pending = start({self.spec.name: found.keys})
        self.comm.pull_s += time.perf_counter() - begin
        return Fetch(found, pending, tuple(keys.shape))

    def flush(self) -> None:
        """Wait until all that was pushed is applied.

        Raises:
            pserver.PserverError: a push failed.
        """
        begin = time.perf_counter()
        self._client.flush()
        self.comm.push_s += time.perf_counter() - begin

    @override
    def forward(
        self,
        keys: KeysLike | Fetch,
        offsets: Tensor | NDArray[np.int64] | None = None,
        weights: NDArray[np.float32] | None = None,
        facts: BagFacts | None = None,
    ) -> Tensor:
        """Look up rows and pool them.

        Args:
            keys: (N,) integers in bags that ``offsets`` cuts, or (B, F): each row a bag; or
                what ``fetch`` returned.
            offsets: (bags,) where each bag begins in ``keys``, as torch has it; the last one
                ends at N. A bag may be empty and pools to zeros.
            weights: (N,) float32 that each occurrence counts in its bag, with pooling "sum" only.
            facts: clicks and slots of the bags, pushed with the gradients if the table counts them;
                without them only occurrences are.

        Returns:
            (bags, dim) float32 for sum and mean; for "none" the shape of the keys and dim.

        Raises:
            pserver.ShapeError: keys, offsets or weights do not fit; nothing was pulled.
        """
        fetch = keys if isinstance(keys, Fetch) else None
        shape = fetch.shape if fetch is not None else tuple(keys.shape)
        ends = self._ends(shape, offsets)
        self._check_weights(shape, weights)
        if fetch is None:
            fetch = self.fetch(keys)  # type: ignore[arg-type]
        begin = time.perf_counter()
        with pserver.span("wait rows"):
            (pulled,) = fetch.pending.result()
        self.comm.pull_s += time.perf_counter() - begin
        # A block of one message is read-only, which torch does not know; a merged one is ours.
        rows = torch.from_numpy(pulled if pulled.flags.writeable else pulled.copy())
        rows = rows.to(self._device)
        if self.training and torch.is_grad_enabled():
            self._note_forward()
            rows.requires_grad_()
            rows.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda leaf: self._push(fetch.distinct, leaf, ends, facts)
            )
        out = pool(rows, fetch.distinct.inverse, ends, self.pooling, weights)
        return out.view(*shape, self.spec.dim) if self.pooling == "none" else out

    def _note_forward(self) -> None:
        """Count a forward in training; warn if gradients do not come."""
        self._unanswered += 1
        if self._unanswered == _UNANSWERED_MAX:
            log.warning(
                "a table gets no gradient: call backward() on a loss that depends on it, or eval()",
                table=self.spec.name,
                forwards=self._unanswered,
            )

    def _push(
        self,
        distinct: pserver.Distinct,
        leaf: Tensor,
        ends: NDArray[np.int64] | None,
        facts: BagFacts | None,
    ) -> None:
        """Send the gradient that arrived at the pulled rows."""
        begin = time.perf_counter()
        assert leaf.grad is not None
        self._unanswered = 0
        grads = leaf.grad.detach().cpu().numpy().reshape(-1)
        leaf.grad = None
        said = said_of(distinct, ends, facts, self._needs)
        self._client.start_push({self.spec.name: (distinct.keys, grads, said)})
        self.comm.push_s += time.perf_counter() - begin

    def _check_weights(self, shape: tuple[int, ...], weights: NDArray[np.float32] | None) -> None:
        """Refuse weights that are not one float32 an occurrence, and pooling that has none."""
        if weights is None:
            return
        where = f"embedding {self.spec.name!r}"
        if self.pooling != "sum":
            raise pserver.ShapeError(f"{where}: pooling {self.pooling} takes no weights, sum does")
        count = math.prod(shape)
        if weights.shape != (count,) or weights.dtype != np.float32:
            raise pserver.ShapeError(
                f"{where}: weights must be ({count},) float32, got {weights.shape} {weights.dtype}"
            )

    def _ends(
        self, shape: tuple[int, ...], offsets: Tensor | NDArray[np.int64] | None
    ) -> NDArray[np.int64] | None:
        """Return where each bag ends; checked."""
        where = f"embedding {self.spec.name!r}"
        if self.pooling == "none":
            if offsets is not None:
                raise pserver.ShapeError(f"{where}: pooling none takes no offsets")
            return None
        count = int(np.prod(shape))
        if len(shape) == 2 and offsets is None:
            return np.arange(1, shape[0] + 1, dtype=np.int64) * shape[1]
        if len(shape) != 1 or offsets is None:
            raise pserver.ShapeError(
                f"{where}: keys must be (N,) with offsets (bags,), or (B, F) without, got "
                f"{shape} {'without' if offsets is None else 'with'} offsets"
            )
        array = offsets.detach().cpu().numpy() if isinstance(offsets, Tensor) else offsets
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise pserver.ShapeError(
                f"{where}: offsets must be (bags,) integers, got {array.shape} {array.dtype}"
            )
        begins = array.astype(np.int64)
        ends = np.append(begins[1:], count)
        if begins.size == 0:
            if count:
                raise pserver.ShapeError(f"{where}: {count} keys came with no bag to hold them")
            return np.empty(0, np.int64)
        if begins[0] != 0 or np.any(ends < begins):
            bag = 0 if begins[0] != 0 else int(np.argmax(ends < begins))
            raise pserver.ShapeError(
                f"{where}: offsets must begin with 0, not fall, and not pass the {count} keys; "
                f"bag {bag} is from {begins[bag]} to {ends[bag]}"
            )
        return ends
