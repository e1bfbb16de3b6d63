"""What a push says of keys beside gradients, from the labels of the samples that they occur in.

Rooms before and after: ``loop`` gives the label and the slot of each bag, ``embedding`` hands the result
over with the gradients; tables of the ctr accessor and admission count it.

A key is shown once for each occurrence, and clicked once for each in a clicked sample.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import pserver

_NO_COUNTS = np.empty(0, np.uint32)


@dataclass(frozen=True, slots=True)
class BagFacts:
    """What is known of the bags of a batch.

    Attributes:
        clicks: (bags,) float32, the label of the sample that each bag is of.
        slots: (bags,) uint32, the slot that it is of.
    """

    clicks: NDArray[np.float32]
    slots: NDArray[np.uint32]

    @classmethod
    def of(cls, labels: NDArray[np.float32], num_slots: int) -> "BagFacts":
        """Return the facts of (B,) samples of so many slots: bag b * num_slots + f is of slot f."""
        slots = np.tile(np.arange(num_slots, dtype=np.uint32), labels.size)
        return cls(np.repeat(labels, num_slots), slots)


def said_of(
    distinct: pserver.Distinct,
    ends: NDArray[np.int64] | None,
    facts: BagFacts | None,
    needed: Collection[str],
) -> NDArray[np.uint32] | pserver.Occurrences:
    """Return what a push says of the distinct keys of a batch.

    Args:
        distinct: of the batch.
        ends: (bags,) where each bag ends; None: each occurrence is a bag.
        facts: of the bags; None: nothing is known but how often each key occurs.
        needed: what the table counts, see ``TableSpec.needs``.
    """
    if not needed:
        return _NO_COUNTS
    if facts is None or needed == {"counts"}:
        return distinct.counts
    clicks, slots = facts.clicks, facts.slots
    if ends is not None:
        lengths = np.diff(ends, prepend=0)
        clicks, slots = np.repeat(clicks, lengths), np.repeat(slots, lengths)
    num_keys = distinct.keys.size
    clicked = np.bincount(distinct.inverse, clicks, minlength=num_keys).astype(np.float32)
    said_slots = np.zeros(num_keys if "slots" in needed else 0, np.uint32)
    if said_slots.size:
        said_slots[distinct.inverse] = slots
    return pserver.Occurrences(counts=distinct.counts, clicks=clicked, slots=said_slots)
