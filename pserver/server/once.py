"""A push counts once: which push_ids of each trainer were applied.

Rooms before and after: ``servicer`` asks before it applies and marks after, both in the owner
thread, so nothing comes between.

For each trainer there is the highest counter that was applied and a bit for each of the
``WINDOW`` counters up to it. A client has at most ``WINDOW`` pushes to one shard in flight or
in retry (its window is 1024 at the most), so the fate of everything it may send again is known;
an older counter is refused rather than guessed about.

What always holds: a counter for which ``is_applied`` said no and ``mark`` was called is answered
with yes until it leaves the window, and with ``StaleError`` from then on.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pserver.errors import StaleError
from pserver.wire import TRAINER_BYTES, PushId

WINDOW = 2048
"""Counters of a trainer that are remembered one by one: twice a client's largest window."""

TRAINERS_MAX = 65536
"""Trainers remembered at most, about 500 bytes each: 32 MiB. The one that pushed longest ago is
forgotten first; it would have to retry after 65,536 others pushed."""


class Once:
    """The memory of one shard. Owner: the shard's owner thread."""

    def __init__(self) -> None:
        """Begin without a memory."""
        # trainer -> (highest counter applied, bit i: counter highest - i was applied)
        self._seen: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def is_applied(self, push_id: PushId) -> bool:
        """Return whether this push was applied before.

        Raises:
            StaleError: it is older than what is remembered of its trainer.
        """
        highest, bits = self._seen.get(push_id.trainer, (-1, 0))
        age = highest - push_id.counter
        if age < 0:
            return False
        if age >= WINDOW:
            raise StaleError(
                f"push {push_id.counter} of trainer {push_id.trainer.hex()[:8]} is {age} behind "
                f"its newest, and only the last {WINDOW} are remembered; it was not applied"
            )
        return bool(bits >> age & 1)

    def mark(self, push_id: PushId) -> None:
        """Remember that this push is applied."""
        highest, bits = self._seen.get(push_id.trainer, (-1, 0))
        age = highest - push_id.counter
        if age < 0:
            highest = push_id.counter
            bits = (bits << -age | 1) & ((1 << WINDOW) - 1) if -age < WINDOW else 1
        else:
            bits |= 1 << age
        self._seen[push_id.trainer] = (highest, bits)
        self._seen.move_to_end(push_id.trainer)
        if len(self._seen) > TRAINERS_MAX:
            self._seen.popitem(last=False)

    def capture(self) -> Callable[[], dict[str, NDArray[Any]]]:
        """Return what turns the memory of this moment into arrays, in any thread.

        ``trainers`` (T, 16) uint8, the one that pushed longest ago first; ``highest`` (T,) uint64;
        ``bits`` (T, WINDOW / 8) uint8, the lowest bit of the first byte for ``highest`` itself.
        """
        seen = list(self._seen.items())

        def arrays() -> dict[str, NDArray[Any]]:
            trainers = b"".join(trainer for trainer, _ in seen)
            bits = b"".join(bits.to_bytes(WINDOW // 8, "little") for _, (_, bits) in seen)
            return {
                "trainers": np.frombuffer(trainers, np.uint8).reshape(-1, TRAINER_BYTES),
                "highest": np.array([highest for _, (highest, _) in seen], np.uint64),
                "bits": np.frombuffer(bits, np.uint8).reshape(-1, WINDOW // 8),
            }

        return arrays

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Remember what was captured, and nothing else; without arrays, nothing."""
        self._seen.clear()
        if not arrays:
            return
        for trainer, highest, bits in zip(
            arrays["trainers"], arrays["highest"], arrays["bits"], strict=True
        ):
            number = int.from_bytes(bits.tobytes(), "little")
            self._seen[trainer.tobytes()] = (int(highest), number)
