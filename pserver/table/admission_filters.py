"""The filters of admission: a count of occurrences, a draw, a score.

Rooms before and after: ``admission`` makes one from a spec; ``sparse`` asks it with every push that has
keys without a row; ``candidates`` and ``sketch`` keep what is counted, ``kernel.admit`` has the loops.

What always holds:
    * A decision is a function of the spec, of what was counted before, and of what the push says of
      the key: not of a clock or a stream of random numbers, so a replay decides the same.
    * ``admits`` changes nothing; ``count`` counts what ``admits`` decided.

Owner: the shard's owner thread.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping as Names
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from pserver.arrays import Counts, Floats, Keys, RowIds
from pserver.kernel import admit, ctr
from pserver.occurrences import NO_OCCURRENCES, Occurrences
from pserver.spec import ROWS_MAX
from pserver.table.candidates import Candidates
from pserver.table.fields import Field, FieldValue
from pserver.table.sketch import Sketch
from pserver.table.storage import Mapping

Admitted = NDArray[np.bool_]
"""(U,) whether each key gets a row now."""


class AdmissionFilter:
    """What decides, and what it counted. Keys are (U,) distinct, without a row, and read-only.

    All but ``admits`` are here as a rule has them that counts nothing.
    """

    @property
    def num_keys(self) -> int:
        """Return the keys that wait, where they are known one by one."""
        return 0

    @property
    def num_bytes(self) -> int:
        """Return the bytes in use."""
        return 0

    @property
    def mappings(self) -> list[Mapping]:
        """Return all memory of what is counted."""
        return []

    @property
    def room(self) -> int:
        """Return how many more keys can be counted, whichever they are."""
        return ROWS_MAX

    def admits(self, keys: Keys, said: Occurrences, *, version: int) -> Admitted:
        """Return which keys get a row from a push that says this of them.

        Args:
            keys: without a row.
            said: of these keys.
            version: pushes applied to the table before.
        """
        raise NotImplementedError

    def check_room(self, keys: Keys) -> None:
        """Refuse keys that could not be counted.

        Raises:
            TableFullError: nothing was changed.
        """

    def count(self, keys: Keys, said: Occurrences, admitted: Admitted) -> Occurrences:
        """Count the keys that wait on, and stop counting those that are admitted.

        Args:
            keys: as of ``admits``.
            said: as of ``admits``.
            admitted: what ``admits`` returned.

        Returns:
            The shows and clicks that were counted before of each admitted key, for a row that keeps
            such; none where the rule counts something else.
        """
        return NO_OCCURRENCES

    def forget(self, keys: Keys) -> None:
        """Forget what was counted of keys, where that is known one by one."""

    def record(self, key: int) -> dict[str, FieldValue]:
        """Return what was counted of one key without a row, by name."""
        return {}

    def read(self, partition: int) -> dict[str, NDArray[Any]]:
        """Return the state of one partition as named arrays."""
        return {}

    def write(self, partition: int, arrays: Names[str, NDArray[Any]]) -> None:
        """Take the state of a partition, which is empty here, as ``read`` returned it."""

    def check(self) -> None:
        """Assert every invariant."""


class Draw(AdmissionFilter):
    """A share of the keys is admitted, by a hash of seed and key, or of seed, key and push."""

    def __init__(self, share: float, seed: np.uint64, *, is_per_push: bool) -> None:
        """Take the rule.

        Args:
            share: of the keys, or of the keys in each push, that are admitted.
            seed: of the table.
            is_per_push: whether a key that was not admitted has another try in the next push. The
                pushes of each shard are counted apart, so shards change who gets in, not how many.
        """
        self._share, self._seed, self._is_per_push = share, seed, is_per_push

    @override
    def admits(self, keys: Keys, said: Occurrences, *, version: int) -> Admitted:
        drawn = np.empty(keys.size)
        admit.draw(self._seed, np.uint64(version + 1 if self._is_per_push else 0), keys, drawn)
        return drawn < self._share


class SketchCount(AdmissionFilter):
    """A key is admitted at its n-th occurrence, or before where the sketch counts too much.

    An erased row's key is still counted: it gets a row again with its first push.
    """

    def __init__(self, threshold: int, sketch: Sketch, *, is_per_batch: bool) -> None:
        """Take n, where to count, and whether a batch counts for one however often a key is in it."""
        self._threshold, self._sketch, self._is_per_batch = threshold, sketch, is_per_batch

    @property
    @override
    def num_bytes(self) -> int:
        return self._sketch.num_bytes

    @property
    @override
    def mappings(self) -> list[Mapping]:
        return [self._sketch.mapping]

    @override
    def admits(self, keys: Keys, said: Occurrences, *, version: int) -> Admitted:
        amounts = _amounts(said, keys.size, is_per_batch=self._is_per_batch)
        return _reaches(self._sketch.estimate(keys), amounts, self._threshold)

    @override
    def count(self, keys: Keys, said: Occurrences, admitted: Admitted) -> Occurrences:
        self._sketch.add(keys, _amounts(said, keys.size, is_per_batch=self._is_per_batch))
        return NO_OCCURRENCES

    @override
    def record(self, key: int) -> dict[str, FieldValue]:
        return {"count": int(self._sketch.estimate(_one(key))[0])}

    @override
    def read(self, partition: int) -> dict[str, NDArray[Any]]:
        return {"counters": self._sketch.read(partition)}

    @override
    def write(self, partition: int, arrays: Names[str, NDArray[Any]]) -> None:
        self._sketch.write(partition, arrays["counters"])

    @override
    def check(self) -> None:
        self._sketch.check()


class _ByCandidate(AdmissionFilter, ABC):
    """What filters share that know each waiting key."""

    FIELDS: ClassVar[tuple[Field, ...]]

    def __init__(self, candidates: Candidates) -> None:
        self._candidates = candidates

    @property
    @override
    def num_keys(self) -> int:
        return self._candidates.num_keys

    @property
    @override
    def num_bytes(self) -> int:
        return self._candidates.num_bytes

    @property
    @override
    def mappings(self) -> list[Mapping]:
        return self._candidates.mappings

    @property
    @override
    def room(self) -> int:
        return self._candidates.room

    @abstractmethod
    def _add(self, ids: RowIds, said: Occurrences) -> None:
        """Add what a push says of candidates to their records."""

    @override
    def check_room(self, keys: Keys) -> None:
        self._candidates.check_room(keys)

    @override
    def count(self, keys: Keys, said: Occurrences, admitted: Admitted) -> Occurrences:
        waiting, chosen = np.flatnonzero(~admitted), np.flatnonzero(admitted)
        self._add(self._candidates.find_or_begin(_picked(keys, waiting)), said.take(waiting))
        before = self._before(_picked(keys, chosen))
        self._candidates.forget(_picked(keys, chosen))
        return before

    def _before(self, keys: Keys) -> Occurrences:
        """Return the shows and clicks that were counted of keys."""
        return NO_OCCURRENCES

    def _words(self, keys: Keys, name: str) -> NDArray[Any]:
        """Return a word of each key's record, 0 where there is none."""
        ids = self._candidates.find(keys)
        column = self._candidates.fields.view(name)
        return np.where(ids >= 0, column[np.maximum(ids, 0)], column.dtype.type(0))

    @override
    def forget(self, keys: Keys) -> None:
        self._candidates.forget(keys)

    @override
    def record(self, key: int) -> dict[str, FieldValue]:
        return self._candidates.record(key)

    @override
    def read(self, partition: int) -> dict[str, NDArray[Any]]:
        return self._candidates.read(partition)

    @override
    def write(self, partition: int, arrays: Names[str, NDArray[Any]]) -> None:
        self._candidates.write(arrays)

    @override
    def check(self) -> None:
        self._candidates.check()


class ExactCount(_ByCandidate):
    """A key is admitted at its n-th occurrence."""

    FIELDS = (Field("count", "uint32"),)

    def __init__(self, threshold: int, candidates: Candidates, *, is_per_batch: bool) -> None:
        """Take n, where to count, and whether a batch counts for one however often a key is in it."""
        super().__init__(candidates)
        self._threshold, self._is_per_batch = threshold, is_per_batch

    @override
    def admits(self, keys: Keys, said: Occurrences, *, version: int) -> Admitted:
        amounts = _amounts(said, keys.size, is_per_batch=self._is_per_batch)
        return _reaches(self._words(keys, "count"), amounts, self._threshold)

    @override
    def _add(self, ids: RowIds, said: Occurrences) -> None:
        amounts = _amounts(said, ids.size, is_per_batch=self._is_per_batch)
        admit.add_counts(self._candidates.fields.words, ids, amounts)


class ScoreFilter(_ByCandidate):
    """A key is admitted when its shows and clicks, this push's too, have the score."""

    FIELDS = (Field("show", "float32"), Field("click", "float32"))

    def __init__(self, score: float, coeffs: tuple[float, float], candidates: Candidates) -> None:
        """Take the score that is needed, nonclk_coeff and click_coeff, and where to count."""
        super().__init__(candidates)
        self._score, self._coeffs = score, coeffs

    @override
    def admits(self, keys: Keys, said: Occurrences, *, version: int) -> Admitted:
        shows, clicks = self._totals(keys, said)
        scores = ctr.score(shows.astype(np.float64), clicks.astype(np.float64), *self._coeffs)
        return np.asarray(scores >= self._score)

    def _totals(self, keys: Keys, said: Occurrences) -> tuple[Floats, Floats]:
        """Return shows and clicks of keys after a push, as float32 words would hold them."""
        shows = self._words(keys, "show") + said.shown(keys.size)
        return shows, self._words(keys, "click") + said.clicked(keys.size)

    @override
    def _before(self, keys: Keys) -> Occurrences:
        return Occurrences(shows=self._words(keys, "show"), clicks=self._words(keys, "click"))

    @override
    def _add(self, ids: RowIds, said: Occurrences) -> None:
        floats = self._candidates.fields.floats
        admit.add_shows(floats, ids, said.shown(ids.size), said.clicked(ids.size))


def _amounts(said: Occurrences, num_keys: int, *, is_per_batch: bool) -> Counts:
    """Return what each key counts for, (U,) read-only."""
    return (NO_OCCURRENCES if is_per_batch else said).counted(num_keys)


def _reaches(counted: Counts, amounts: Counts, threshold: int) -> Admitted:
    """Return where counts reach the threshold with what is added; in uint64, which holds any sum."""
    return counted.astype(np.uint64) + amounts >= np.uint64(threshold)


def _picked(keys: Keys, order: RowIds) -> Keys:
    """Return some of the keys, read-only."""
    picked = keys[order]
    picked.flags.writeable = False
    return picked


def _one(key: int) -> Keys:
    """Return one key as a read-only array."""
    return _picked(np.array([key], np.uint64), np.zeros(1, np.int64))
