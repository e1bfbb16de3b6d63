"""The oracle of accessors and admission: a dict from key to what is kept of it, and plain numpy.

Imported by nothing but tests. ``CtrTable`` is a sparse table of any accessor and admission: one key
after the other, in the order of Paddle's push: count, step the parts that there are, then create
embedx. float32 only where a row's words are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash
from numpy.typing import NDArray

from tests.reference import GOLDEN, MASK, first_weights, mix64
from tests.reference_optim import Rule, read_rule

ACCESSOR: dict[str, str] = {
    "embedx_threshold": "10",
    "nonclk_coeff": "0.1",
    "click_coeff": "1",
    "wide_first": "initializer",
    "base_threshold": "1.5",
    "delta_threshold": "0.25",
    "delta_keep_days": "16",
    "show_click_decay_rate": "0.98",
    "delete_threshold": "0.8",
    "delete_after_unseen_days": "30",
}


def f32(number: float) -> float:
    """Return what a float32 word holds of a number."""
    return float(np.float32(number))


@dataclass
class Said:
    """What a push says of one key."""

    count: int = 1
    show: float | None = None
    click: float = 0.0
    slot: int | None = None

    @property
    def shows(self) -> float:
        return f32(self.count if self.show is None else self.show)


@dataclass
class CtrRow:
    """What is kept of one key."""

    wide: NDArray[np.float64]
    embedx: NDArray[np.float64] | None = None
    words: dict[str, float] = field(default_factory=dict)
    epoch: int = 1


class CtrTable:
    """A dict from key to row, and a dict of what was counted of the others."""

    def __init__(
        self,
        *,
        dim: int,
        optimizer: str,
        embedx_optimizer: str = "",
        initializer: str,
        accessor: str,
        admission: str,
        unknown_reads: str = "first",
        name: str = "t",
        seed: int = 0,
        capacity: int = 10**9,
    ) -> None:
        kind, written = read_rule(accessor)
        self.is_ctr = kind == "ctr"
        self.options = {**ACCESSOR, **written}
        self.dim, self.capacity, self._zeros = dim, capacity, unknown_reads == "zeros"
        self._initializer, self._name, self._seed = initializer, name, seed
        self.wide_rule = Rule(optimizer, 1 if self.is_ctr else dim)
        self.embedx_rule = Rule(embedx_optimizer or optimizer, max(1, dim - 1))
        self.admission, self._admitting = read_rule(admission)
        self.rows: dict[int, CtrRow] = {}
        self.counted: dict[int, int] = {}
        self.shown: dict[int, tuple[float, float]] = {}
        self.epoch, self.version = 1, 0

    def score(self, show: float, click: float) -> float:
        nonclk, click_coeff = (
            float(self.options["nonclk_coeff"]),
            float(self.options["click_coeff"]),
        )
        if not self.is_ctr:
            nonclk = float(self._admitting.get("nonclk_coeff", 0.1))
            click_coeff = float(self._admitting.get("click_coeff", 1.0))
        return (show - click) * nonclk + click * click_coeff

    def read(self, key: int) -> list[float]:
        """Return (dim,) weights as a pull has them."""
        row = self.rows.get(key)
        if row is None:
            return [0.0] * self.dim if self._zeros else self._first(key)
        if not self.is_ctr:
            return list(row.wide[: self.dim])
        embedx = [0.0] * (self.dim - 1) if row.embedx is None else row.embedx[: self.dim - 1]
        return [row.wide[0], *embedx]

    def pull(self, keys: Iterable[int]) -> list[list[float]]:
        keys = list(keys)
        if self.admission == "always":
            for key in keys:
                self._create(key)
            return [self._read_row(key) for key in keys]
        return self.peek(keys)

    def peek(self, keys: Iterable[int]) -> list[list[float]]:
        return [self.read(key) for key in keys]

    def _read_row(self, key: int) -> list[float]:
        assert key in self.rows
        return self.read(key)

    @property
    def _forgets(self) -> bool:
        """Whether a key's count ends with its row: a sketch forgets nothing."""
        return "sketch" not in self._admitting.values()

    def needed(self, keys: Sequence[int], said: Sequence[Said]) -> int:
        """Return how many rows a push would create."""
        told = self._merged(keys, said)
        return sum(key not in self.rows and self._is_admitted(key, told[key]) for key in told)

    def waiting(self, keys: Sequence[int], said: Sequence[Said]) -> int:
        """Return how many keys would be counted one by one that are not yet."""
        if self.admission not in ("count", "show_click") or not self._forgets:
            return 0
        told = self._merged(keys, said)
        known = self.counted if self.admission == "count" else self.shown
        return sum(
            key not in self.rows and key not in known and not self._is_admitted(key, told[key])
            for key in told
        )

    def push(self, keys: Sequence[int], grads: NDArray[np.float32], said: Sequence[Said]) -> None:
        told = self._merged(keys, said)
        sums: dict[int, NDArray[np.float32]] = {}
        for key, grad in zip(keys, grads, strict=True):
            sums[key] = sums[key] + grad if key in sums else grad
        for key, grad in sums.items():
            if key not in self.rows:
                if not self._is_admitted(key, told[key]):
                    self._count(key, told[key])
                    continue
                self._create(key)
                if self.is_ctr and key in self.shown:
                    self._remember(self.rows[key], *self.shown[key])
                if self._forgets:
                    self.counted.pop(key, None)
                    self.shown.pop(key, None)
                else:
                    self._count(key, told[key])
            self._step(key, grad, told[key])

    def assign(self, keys: Sequence[int], weights: NDArray[np.float32]) -> None:
        last = dict(zip(keys, weights, strict=True))
        for key, given in last.items():
            self._create(key)
            row = self.rows[key]
            row.epoch = self.epoch
            if not self.is_ctr:
                row.wide[: self.dim] = given
                continue
            row.wide[0] = given[0]
            if row.embedx is None and np.any(given[1:] != 0):
                row.embedx = self._state(self.embedx_rule, [0.0] * (self.dim - 1))
            if row.embedx is not None:
                row.embedx[: self.dim - 1] = given[1:]

    def add(self, keys: Sequence[int], deltas: NDArray[np.float32]) -> None:
        sums: dict[int, NDArray[np.float32]] = {}
        for key, delta in zip(keys, deltas, strict=True):
            sums[key] = sums[key] + delta if key in sums else delta
        for key, delta in sums.items():
            self._create(key)
            row = self.rows[key]
            row.epoch = self.epoch
            if not self.is_ctr:
                row.wide[: self.dim] += delta
                continue
            row.wide[0] += delta[0]
            if row.embedx is None and np.any(delta[1:] != 0):
                row.embedx = self._state(self.embedx_rule, [0.0] * (self.dim - 1))
            if row.embedx is not None:
                row.embedx[: self.dim - 1] += delta[1:]

    def erase(self, keys: Iterable[int]) -> int:
        gone = set(keys)
        if self._forgets:
            for key in gone:
                self.counted.pop(key, None)
                self.shown.pop(key, None)
        return sum(self.rows.pop(key, None) is not None for key in gone)

    # --- the parts of a push ------------------------------------------------------------------

    def shrink(self, gap: int, *, dry: bool) -> list[int]:
        """Let a day pass, ``gap`` days after the last one, and return the keys that go.

        Decay first, then judge, then the day counts for those that stay. A row that was pushed since the
        last shrink is unseen for 0 days.
        """
        decay, least = (
            float(self.options[name]) for name in ("show_click_decay_rate", "delete_threshold")
        )
        gone = []
        for key, row in self.rows.items():
            show, click = f32(row.words["show"] * decay), f32(row.words["click"] * decay)
            days = int(row.words["unseen_days"])
            days += gap - 1 if days else 0
            is_old = days > int(self.options["delete_after_unseen_days"])
            if self.score(show, click) < least or is_old:
                gone.append(key)
            elif not dry:
                row.words |= {"show": show, "click": click, "unseen_days": days + 1}
                row.epoch = self.epoch
        if not dry:
            for key in gone:
                del self.rows[key]
        return gone

    def clear(self) -> None:
        """Forget all rows, and all that was counted."""
        for known in (self.rows, self.counted, self.shown):
            known.clear()

    def _merged(self, keys: Sequence[int], said: Sequence[Said]) -> dict[int, Said]:
        told: dict[int, Said] = {}
        for key, one in zip(keys, said, strict=True):
            before = told.get(key)
            if before is None:
                told[key] = Said(one.count, one.show, one.click, one.slot)
                continue
            before.count += one.count
            if one.show is not None:
                assert before.show is not None
                before.show += one.show
            before.click += one.click
            before.slot = one.slot
        return told

    def _is_admitted(self, key: int, said: Said) -> bool:
        options = self._admitting
        if self.admission == "count":
            return self.counted.get(key, 0) + self._amount(said) >= int(options["n"])
        if self.admission == "show_click":
            show, click = self._total(key, said)
            return self.score(show, click) >= float(options["score"])
        if self.admission == "probability":
            seed = xxhash.xxh3_64_intdigest(f"{self._name}/admission".encode(), seed=self._seed)
            trial = self.version + 1 if options.get("trial") == "push" else 0
            word = mix64(mix64(key ^ seed) + (trial + 1) * GOLDEN & MASK)
            return (word >> 11) / 2**53 < float(options["p"])
        return True

    def _amount(self, said: Said) -> int:
        return 1 if self._admitting.get("per") == "batch" else said.count

    def _total(self, key: int, said: Said) -> tuple[float, float]:
        show, click = self.shown.get(key, (0.0, 0.0))
        return f32(show + said.shows), f32(click + said.click)

    def _count(self, key: int, said: Said) -> None:
        if self.admission == "count":
            self.counted[key] = self.counted.get(key, 0) + self._amount(said)
        elif self.admission == "show_click":
            self.shown[key] = self._total(key, said)

    def _create(self, key: int) -> None:
        if key in self.rows:
            return
        first = self._first(key)
        words: dict[str, float] = {}
        if self.is_ctr:
            first = first[:1]
            words = dict.fromkeys(("show", "click", "delta_score", "unseen_days", "slot"), 0)
        self.rows[key] = CtrRow(self._state(self.wide_rule, first), None, words, self.epoch)

    def _remember(self, row: CtrRow, show: float, click: float) -> None:
        row.words["show"], row.words["click"] = show, click
        row.words["delta_score"] = f32(self.score(show, click))

    def _step(self, key: int, grad: NDArray[np.float32], said: Said) -> None:
        row = self.rows[key]
        row.epoch = self.epoch
        show, version = said.shows, self.version
        if not self.is_ctr:
            self.wide_rule.step(row.wide, grad, version=version, show=show)
            return
        words = row.words
        words["show"] = f32(words["show"] + said.shows)
        words["click"] = f32(words["click"] + said.click)
        added = f32(self.score(said.shows, said.click))
        words["delta_score"] = f32(words["delta_score"] + added)
        words["unseen_days"] = 0
        if said.slot is not None:
            words["slot"] = said.slot
        self.wide_rule.step(row.wide, grad[:1], version=version, show=show)
        if row.embedx is not None:
            self.embedx_rule.step(row.embedx, grad[1:], version=version, show=show)
        elif self.dim > 1:
            score = self.score(words["show"], words["click"])
            if score >= float(self.options["embedx_threshold"]):
                row.embedx = self._state(self.embedx_rule, self._drawn(key)[1:])

    def _first(self, key: int) -> list[float]:
        """Return what a new row reads as."""
        drawn = self._drawn(key)
        if not self.is_ctr:
            return drawn
        wide = 0.0 if self.options["wide_first"] == "zeros" else drawn[0]
        return [wide, *[0.0] * (self.dim - 1)]

    def _drawn(self, key: int) -> list[float]:
        drawn = first_weights(
            self._initializer, name=self._name, seed=self._seed, key=key, dim=self.dim
        )
        return [float(np.float32(w)) for w in drawn]

    def _state(self, rule: Rule, weights: Sequence[float]) -> NDArray[np.float64]:
        state = [float(np.float32(first)) for first in rule.first_state]
        return np.array([*weights, *state], np.float64)
