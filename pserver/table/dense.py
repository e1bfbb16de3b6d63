"""A dense table: one shard's slice of a named vector, such as the weights of a model's layers.

Rooms before and after: ``server.dense`` calls this in the shard's owner thread with arrays that view
the message; ``optimizer`` steps the weights, ``placement`` says which slice and which parts.

What always holds:
    * A call either happens whole or raises and changes nothing.
    * A part is a row of its own, weights and then state. Only rules whose weights step each by itself
      are taken, so neither parts nor shards change the result.
    * ``version`` counts pushes since the values were written, ``epoch`` how often that was, and
      ``change`` rises with everything that changes a weight and never falls.
Owner: the shard's owner thread.

Cost: a push reads and writes each weight and its state once; only ``clip`` and ``decay=gradient``
need a copy of the gradients.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pserver.arrays import Floats
from pserver.errors import ConfigError, DenseInitError, NotFiniteError, ShapeError
from pserver.kernel import rows
from pserver.placement import parts_of_slice
from pserver.spec import DenseSpec
from pserver.table.optimizer import Optimizer, make_optimizer
from pserver.table.values import LIMIT_BITS, VALUE_MAX, read_only


def spelled_out_dense(spec: DenseSpec) -> DenseSpec:
    """Return the spec with every option of its rule written down.

    Raises:
        ConfigError: a rule or an option is unknown, or the rule steps the weights of a row together.

    >>> spelled_out_dense(DenseSpec(name="t", length=1, optimizer="sum")).optimizer
    'sum:lr=1.0'
    """
    where = f"table {spec.name!r}: optimizer"
    rule = make_optimizer(spec.optimizer, dim=1, where=where)
    if rule.couples:
        raise ConfigError(
            f"{where}: {rule.text} cannot step a dense table: {rule.couples}, so the result would "
            "depend on the number of shards; take a rule that steps each weight by itself"
        )
    if rule.scales:
        raise ConfigError(
            f"{where}: show_scale divides by the shows of a key, and a dense table has no keys; "
            "leave it out"
        )
    return dataclasses.replace(spec, optimizer=rule.text)


@dataclass(frozen=True, slots=True)
class Staged:
    """Parts of first values that came so far, from one trainer. Owner: the table."""

    trainer: bytes
    parts: dict[int, Floats]


class DenseTable:
    """The floats of a vector that lie on one shard, and their optimizer state.

    Attributes:
        spec: what the table is, its rule spelled out.
        size: floats of the slice.
        version: pushes applied since the values were written.
        epoch: how often first values were written; 0: there are none yet.
        change: rises with every change of a weight.
        watch: is told of a part before it changes in place; None costs nothing.
    """

    def __init__(self, spec: DenseSpec, *, size: int) -> None:
        """Take no memory yet; that comes with the values.

        Raises:
            ConfigError: the rule is unknown or refused.
        """
        self.spec = spec
        self.size = size
        self.version = 0
        self.epoch = 0
        self.change = 0
        self.watch: Callable[[int], None] | None = None
        self._sizes = [end - begin for begin, end in parts_of_slice(size)]
        self._optimizers: list[Optimizer] = [
            make_optimizer(spec.optimizer, dim=part) for part in self._sizes
        ]
        self._rows: list[Floats] = []
        self._staged: Staged | None = None
        nothing = np.empty(0, np.float32)
        # So that no request waits for a compiler.
        rule = make_optimizer(spec.optimizer, dim=1)
        rule.apply(np.empty(0, np.float32), np.empty(0, np.int64), read_only(nothing), version=0)
        rows.first_beyond(read_only(nothing), LIMIT_BITS)

    @property
    def num_parts(self) -> int:
        """Return how many parts the slice has, at least one."""
        return len(self._sizes)

    @property
    def num_bytes(self) -> int:
        """Return the bytes in use: weights and state."""
        return sum(row.nbytes for row in self._rows)

    def check_init(
        self, part: int, values: Floats, *, trainer: bytes, force: bool, is_last: bool
    ) -> None:
        """Refuse first values that ``init`` could not take.

        Args:
            part: index of the part.
            values: (size of the part,) float32.
            trainer: who writes.
            force: whether values that are there are replaced.
            is_last: whether the trainer sent all other parts.

        Raises:
            ShapeError, NotFiniteError: as ``check_push``.
            DenseInitError: there are values already, another trainer is writing them, or it wrote
                over the parts that came before.
        """
        self._check_block("init", part, values)
        staged = self._staged
        is_mine = staged is not None and staged.trainer == trainer
        if self.epoch and not force:
            raise DenseInitError(
                f"init {self.spec.name!r}: it has values already (epoch {self.epoch}, version "
                f"{self.version}); pull them, or reset the table to begin anew"
            )
        if staged is not None and not is_mine and not force:
            raise DenseInitError(
                f"init {self.spec.name!r}: trainer {staged.trainer.hex()[:8]} is writing its first "
                "values now; pull them a little later, or reset the table if it is gone"
            )
        came = {part, *(staged.parts if staged is not None and is_mine else ())}
        if is_last and len(came) < len(self._sizes):
            raise DenseInitError(
                f"init {self.spec.name!r}: {len(came)} of {len(self._sizes)} parts are there, since "
                "another trainer reset the table meanwhile; nothing was written"
            )

    def init(self, part: int, values: Floats, *, trainer: bytes) -> None:
        """Take a part of the first values; with the last one the table begins anew.

        State is first state, the version is 0 and the epoch rises. Until all parts of one trainer
        are there, the table stays as it was. The caller has called ``check_init``.
        """
        if self._staged is None or self._staged.trainer != trainer:
            self._staged = Staged(trainer, {})
        parts = self._staged.parts
        parts[part] = self._row(part, values)
        if len(parts) == len(self._sizes):
            self._rows = [parts[index] for index in range(len(parts))]
            self._staged = None
            self.version = 0
            self.epoch += 1
            self.change += 1

    def check_push(self, part: int, grads: Floats) -> None:
        """Refuse gradients that ``push`` could not apply.

        Args:
            part: index of the part.
            grads: (size of the part,) float32.

        Raises:
            ShapeError: there is no such part, or it has another length.
            NotFiniteError: a gradient is NaN, infinite or over ``VALUE_MAX``.
            DenseInitError: there are no values yet.
        """
        self._check_block("push", part, grads)
        self._check_values("push")

    def push(self, part: int, grads: Floats) -> None:
        """Apply one optimizer step to a part. The caller has called ``check_push``."""
        if self.watch is not None:
            self.watch(part)
        self._optimizers[part].apply(
            self._rows[part], np.zeros(1, np.int64), read_only(grads), version=self.version
        )
        self.change += 1

    def add(self, part: int, deltas: Floats) -> None:
        """Add to the weights of a part; state stays. The caller has called ``check_push``."""
        if self.watch is not None:
            self.watch(part)
        weights = self._rows[part][: self._sizes[part]]
        np.add(weights, deltas, out=weights)
        self.change += 1

    def pull(self, part: int) -> Floats:
        """Return a view of the weights of a part, good until the next call.

        Raises:
            ShapeError: there is no such part.
            DenseInitError: there are no values yet.
        """
        self._check_part("pull", part)
        self._check_values("pull")
        return self._rows[part][: self._sizes[part]]

    # --- for saves and loads, see ``dense_dump`` ------------------------------------------------

    def memory(self) -> list[tuple[Floats, Mapping[str, int]]]:
        """Return each part's row, and the floats of each part of its state; none without values.

        First values that are written anew make new rows: what was returned stays as it was.
        """
        parts = [optimizer.parts for optimizer in self._optimizers]
        return list(zip(self._rows, parts, strict=True)) if self._rows else []

    def fill(self, rows_of_parts: Sequence[Floats], *, version: int, epoch: int) -> None:
        """Take rows as ``memory`` returned them, of parts of the same sizes."""
        self._rows = list(rows_of_parts)
        self.version, self.epoch = version, epoch
        self.change += 1

    def export(self) -> dict[str, Any]:
        """Return what ``memory`` leaves out, as numbers, bytes and lists; ``load`` takes it back."""
        staged = self._staged
        parts = [] if staged is None else [[i, row.tobytes()] for i, row in staged.parts.items()]
        trainer = b"" if staged is None else staged.trainer
        return {"change": self.change, "trainer": trainer, "parts": parts}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take what ``export`` returned."""
        self.change, self._staged = state["change"], None
        if state["trainer"]:
            rows = {part: np.frombuffer(data, np.float32).copy() for part, data in state["parts"]}
            self._staged = Staged(state["trainer"], rows)

    def _row(self, part: int, values: Floats) -> Floats:
        """Return a new row: these weights, then first state."""
        rule = self._optimizers[part]
        row = np.full(rule.dim + rule.state_dim, rule.first_state[-1], np.float32)
        state = row[rule.dim :]
        first = rule.first_state[: rule.state_dim]
        state[: first.size] = first
        row[: rule.dim] = values
        return row

    def _check_part(self, verb: str, part: int) -> None:
        if part >= len(self._sizes):
            raise ShapeError(
                f"{verb} {self.spec.name!r}: the slice of this shard has {len(self._sizes)} parts, "
                f"there is no part {part}"
            )

    def _check_values(self, verb: str) -> None:
        if not self.epoch:
            raise DenseInitError(
                f"{verb} {self.spec.name!r}: it has no values yet; init the table first"
            )

    def _check_block(self, verb: str, part: int, values: Floats) -> None:
        """Refuse a block that does not fit its part, or that would spoil it."""
        self._check_part(verb, part)
        if values.size != self._sizes[part]:
            raise ShapeError(
                f"{verb} {self.spec.name!r}: part {part} has {self._sizes[part]} float32, "
                f"got {values.size}"
            )
        bad = rows.first_beyond(read_only(values), LIMIT_BITS)
        if bad >= 0:
            raise NotFiniteError(
                f"{verb} {self.spec.name!r}: value {bad} of part {part} is {values[bad]}, must be a "
                f"number of at most {VALUE_MAX:g} in magnitude; the message was refused"
            )
