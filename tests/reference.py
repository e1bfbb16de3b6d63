"""The oracle: a dict and plain numpy, written to be obviously right and never optimized.

Imported by nothing but tests. ``Table`` is a sparse table: key to row, one key after the other;
its optimizer is a ``Rule`` of ``reference_optim``. The hash and its inverse stand here in Python's
own integers, so that tests can choose keys by where they fall in the index.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from tests.reference_optim import Rule, read_rule

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
MUL_A, MUL_B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

EDGE_KEYS = (0, 1, MASK, MASK - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**63 + 1, 2**52, 10**18)
"""Keys that a sentinel, a sign or a float would confuse; MASK is -1 and 2^63 is -2^63."""


def mix64(key: int) -> int:
    """Return the SplitMix64 finalizer."""
    x = key & MASK
    x = ((x ^ (x >> 30)) * MUL_A) & MASK
    x = ((x ^ (x >> 27)) * MUL_B) & MASK
    return x ^ (x >> 31)


def _unshift(x: int, shift: int) -> int:
    """Return y with ``y ^ (y >> shift) == x``."""
    y = x
    for _ in range(64 // shift):
        y = x ^ (y >> shift)
    return y


def unmix64(hashed: int) -> int:
    """Return the key whose hash this is."""
    x = (_unshift(hashed, 31) * pow(MUL_B, -1, 2**64)) & MASK
    x = (_unshift(x, 27) * pow(MUL_A, -1, 2**64)) & MASK
    return _unshift(x, 30)


def key_at(partition: int, low: int) -> int:
    """Return the key of a partition whose probe begins at bucket ``low`` modulo the region."""
    return unmix64(partition << 54 | low)


def partition_of(key: int) -> int:
    """Return the partition: the top ten bits of the hash."""
    return mix64(key) >> 54


def first_weights(text: str, *, name: str, seed: int, key: int, dim: int) -> list[float]:
    """Return the first weights of one key of the table ``name``, in float64."""
    rule, options = read_rule(text)
    base = mix64(key ^ xxhash.xxh3_64_intdigest(name.encode(), seed=seed))

    def unit(counter: int) -> float:
        return ((mix64(base + (counter + 1) * GOLDEN) >> 11) + 0.5) / 2**53

    def normal(counter: int) -> float:
        radius = math.sqrt(-2.0 * math.log(unit(counter)))
        return radius * math.cos(2.0 * math.pi * unit(counter + 1))

    def truncated(k: int) -> float:
        tries = (normal(2 * (k + attempt * dim)) for attempt in range(64))
        return next(draw for draw in tries if abs(draw) <= 2.0)

    def option(option_name: str, default: float) -> float:
        return float(options.get(option_name, default))

    low, high = option("low", -0.01), option("high", 0.01)
    mean, std = option("mean", 0.0), option("std", 0.01)
    draw = {
        "zeros": lambda _: 0.0,
        "constant": lambda _: option("value", 0.0),
        "uniform": lambda k: low + (high - low) * unit(k),
        "normal": lambda k: mean + std * normal(2 * k),
        "truncated_normal": lambda k: mean + std * truncated(k),
    }[rule]
    return [draw(k) for k in range(dim)]


class Table:
    """A sparse table: a dict from key to row, in float64 but for the sum of repeats."""

    def __init__(
        self, *, name: str, dim: int, optimizer: str, initializer: str, seed: int, capacity: int
    ) -> None:
        self.dim, self.capacity = dim, capacity
        self.rule = Rule(optimizer, dim)
        self._name, self._seed, self._initializer = name, seed, initializer
        self.rows: dict[int, NDArray[np.float64]] = {}
        self.epochs: dict[int, int] = {}
        self.epoch = 1

    def has_room(self, keys: Iterable[int]) -> bool:
        """Return whether the rows that these keys need would fit."""
        return len(set(keys) | set(self.rows)) <= self.capacity

    def peek(self, keys: Sequence[int]) -> NDArray[np.float64]:
        """Return (U, dim) weights, and create nothing."""
        rows = [self.rows[key] if key in self.rows else self._new_row(key) for key in keys]
        return np.array([row[: self.dim] for row in rows]).reshape(len(keys), self.dim)

    def pull(self, keys: Sequence[int]) -> NDArray[np.float64]:
        """Return (U, dim) weights, and give each key a row."""
        for key in keys:
            if key not in self.rows:
                self.rows[key] = self._new_row(key)
                self.epochs[key] = self.epoch
        return self.peek(keys)

    def push(self, keys: Sequence[int], grads: NDArray[np.float32]) -> None:
        """Sum the (U, dim) gradients of repeated keys in order, then step each key once."""
        self.pull(keys)
        sums: dict[int, NDArray[np.float32]] = {}
        for key, grad in zip(keys, grads, strict=True):
            sums[key] = sums[key] + grad if key in sums else grad
        for key, grad in sums.items():
            self.rule.step(self.rows[key], grad)
            self.epochs[key] = self.epoch

    def assign(self, keys: Sequence[int], weights: NDArray[np.float32]) -> None:
        """Write (U, dim) weights; the last one of a repeated key stays."""
        self.pull(keys)
        for key, row in zip(keys, weights, strict=True):
            self.rows[key][: self.dim] = row
            self.epochs[key] = self.epoch

    def erase(self, keys: Iterable[int]) -> int:
        """Forget these keys, and return how many there were."""
        gone = set(keys) & set(self.rows)
        for key in gone:
            del self.rows[key], self.epochs[key]
        return len(gone)

    def _new_row(self, key: int) -> NDArray[np.float64]:
        weights = first_weights(
            self._initializer, name=self._name, seed=self._seed, key=key, dim=self.dim
        )
        state = [np.float32(first) for first in self.rule.first_state]
        return np.array([np.float32(w) for w in weights] + state, np.float64)
