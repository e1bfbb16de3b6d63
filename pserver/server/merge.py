"""From the parts of a round to one step of each table.

Rooms before and after: ``rounds`` brings the parts in the order of trainer ids; the tables take one
push each.

The rule: value = sum(w * g) / D over the parts in that order, where g is a trainer's gradient and

    ============  =====================================  ==========================
    divisor       w                                      D
    ============  =====================================  ==========================
    contributors  1                                      parts with samples
    registered    1                                      trainers of the round
    samples       the samples of the trainer's batch     samples of the round
    ============  =====================================  ==========================

the same for sparse and dense tables. With one part that counts alone, w and D are 1 and nothing is
rounded. If D is 0 no table is stepped. The version of every table that a part names rises by one.

What always holds: all of it is checked before any of it is applied; the sums are taken in the order
of ids, so their bits do not depend on who came first.

Cost: a key of a part is copied once, deduped (about 8 ns) and added (about 1 ns a float).
Owner: the shard's owner thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pserver.arrays import Floats, Keys
from pserver.kernel import rows
from pserver.kernel.dedupe import dedupe
from pserver.occurrences import NO_OCCURRENCES, Occurrences
from pserver.server.geo import NOBODY, GeoMethods
from pserver.server.report import Tallies
from pserver.table.registry import Registry
from pserver.trace import span
from pserver.wire import TablePush

Divisor = Literal["contributors", "registered", "samples"]


@dataclass(frozen=True, slots=True)
class Part:
    """What one trainer sent of a round: samples of its batch, and its tables."""

    samples: int
    tables: Sequence[TablePush]


@dataclass(frozen=True, slots=True)
class _Block:
    """A trainer's share of one table, or of one part of a dense table."""

    weight: int
    push: TablePush


@dataclass(frozen=True, slots=True)
class Merge:
    """Steps the tables of one shard. Owner: the shard's owner thread."""

    registry: Registry
    tallies: Tallies
    geo: GeoMethods

    def apply(self, parts: Sequence[Part], *, divisor: Divisor, registered: int) -> None:
        """Step every table that the parts name, once.

        Args:
            parts: in the order of trainer ids.
            divisor: the rule.
            registered: trainers of the round.

        Raises:
            TableFullError: the new rows of all parts together do not fit.
            NotFiniteError: a sum is nothing that a row can hold, and the table does not mend.
                Whatever is raised, nothing was applied.
        """
        weights, divided_by = weights_of([part.samples for part in parts], divisor, registered)
        sparse: dict[str, list[_Block]] = {}
        dense: dict[str, dict[int, list[_Block]]] = {}
        for weight, part in zip(weights, parts, strict=True):
            for push in part.tables:
                block = _Block(weight, push)
                if push.dense_part:
                    slices = dense.setdefault(push.table, {})
                    slices.setdefault(push.dense_part - 1, []).append(block)
                else:
                    sparse.setdefault(push.table, []).append(block)
        with np.errstate(over="ignore", invalid="ignore"):  # what came of it is checked
            steps = [
                (self.registry.get(name), *self._rows(name, blocks, divided_by))
                for name, blocks in sparse.items()
            ]
            totals = [
                (self.registry.get_dense(name), _totals(slices, divided_by))
                for name, slices in dense.items()
            ]
        for vector, sums in totals:
            for index, total in sums.items():
                vector.check_push(index, total)
        checked = [
            (table, keys, table.check_push(keys, grads, said), said)
            for table, keys, grads, said in steps
        ]
        for table, keys, grads, said in checked:
            if keys.size:
                with span("kernel", table=table.spec.name):
                    table.push(keys, grads, said)
                self.geo.note(table.spec.name, keys, NOBODY)
            table.version += 1
        for vector, sums in totals:
            with span("kernel", table=vector.spec.name):
                for index, total in sums.items():
                    vector.push(index, total)
            vector.version += 1

    def _rows(
        self, name: str, blocks: Sequence[_Block], divided_by: int
    ) -> tuple[Keys, Floats, Occurrences]:
        """Return the distinct keys of a table, in the order of trainers, and what is done to them.

        Gradients are divided; occurrences, shows and clicks are sums.
        """
        for block in blocks:
            self.tallies.keys_pushed[name] += block.push.keys.size
            self.tallies.occurrences_pushed[name] += int(block.push.counts.sum())
        used = [block for block in blocks if block.weight and block.push.keys.size]
        if not used or not divided_by:
            return np.empty(0, np.uint64), np.empty(0, np.float32), NO_OCCURRENCES
        if len(used) == 1 and used[0].weight == divided_by:
            return used[0].push.keys, used[0].push.values, used[0].push.said
        keys = np.concatenate([block.push.keys for block in used])
        distinct = dedupe(keys)
        values = np.concatenate([_weighted(block) for block in used])
        dim = values.size // keys.size
        summed = np.zeros(distinct.keys.size * dim, np.float32)
        rows.sum_repeats(distinct.inverse, values, dim, summed)
        told = Occurrences.joined([(block.push.said, block.push.keys.size) for block in used])
        said = told.summed(distinct.inverse, distinct.keys.size)
        return distinct.keys, _divided(summed, divided_by), said


def weights_of(
    samples: Sequence[int], divisor: Divisor, registered: int
) -> tuple[Sequence[int], int]:
    """Return the weight of each part, and what their sum is divided by.

    Args:
        samples: of each part.
        divisor: the rule.
        registered: trainers of the round.

    >>> weights_of([8, 0, 24], "contributors", 4)
    ([1, 0, 1], 2)
    >>> weights_of([8, 0, 24], "registered", 4)
    ([1, 0, 1], 4)
    >>> weights_of([8, 0, 24], "samples", 4)
    ([8, 0, 24], 32)
    >>> weights_of([0, 8], "samples", 2)
    ([0, 1], 1)
    """
    present = [int(count > 0) for count in samples]
    if divisor == "registered":
        return present, registered
    if divisor == "contributors" or sum(present) == 1:  # of one, times n and over n would round
        return present, sum(present)
    return list(samples), sum(samples)


def _weighted(block: _Block) -> Floats:
    """Return a trainer's gradients times its weight."""
    values = block.push.values
    return values if block.weight == 1 else values * np.float32(block.weight)


def _divided(summed: Floats, divided_by: int) -> Floats:
    """Return a sum over D; by 1 it stays as it is."""
    return summed if divided_by == 1 else summed / np.float32(divided_by)


def _totals(slices: Mapping[int, Sequence[_Block]], divided_by: int) -> dict[int, Floats]:
    """Return the gradients of each part of a dense table, in their order; of none if D is 0."""
    if not divided_by:
        return {}
    return {index: _total(slices[index], divided_by) for index in sorted(slices)}


def _total(blocks: Sequence[_Block], divided_by: int) -> Floats:
    """Return the gradients of a dense part: the sum over the trainers, over D."""
    used = [block for block in blocks if block.weight]
    if len(used) == 1 and used[0].weight == divided_by:
        return used[0].push.values
    summed = np.zeros(blocks[0].push.values.size, np.float32)
    for block in used:
        summed += _weighted(block)
    return _divided(summed, divided_by)
