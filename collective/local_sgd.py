"""Local SGD: every rank steps by itself, and parameters are averaged every k steps.

Rooms before and after: a training loop calls ``step`` after each optimizer step; buckets are those of
``fusion``, sums those of a ``Summer``.

Averages cost 1 / k of the messages of averaging gradients, and ranks wait for each other k times less
often. With plain SGD and k = 1 it is the same as averaging gradients; with more, parameters of the ranks
differ in between. An optimizer's state stays each rank's own.

The average is Σ weight · parameter / Σ weight, where a rank's weight is what it trained on since the last
one, such as samples. So a rank that has no more batches (``without_batch``) takes the others' values.

What always holds: after an average all ranks have the same bits. Owner: the training thread.

Source:
    Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from collective.algorithm import Summer
from collective.fusion import WORDS, Bucket
from collective.ring import Feedback


class ParameterAverager:
    """Averages parameters of one model. Made on every rank, for the same model.

    Use: optimizer step, then ``step(weight)``; at the end ``without_batch()`` until it returns False.
    """

    def __init__(self, summer: Summer, buckets: Sequence[Bucket], *, every: int) -> None:
        """Take the parameters.

        Args:
            summer: how a bucket is summed.
            buckets: of ``plan_buckets``; the same on all ranks.
            every: steps between two averages, at least 1; the same on all ranks.
        """
        self._summer = summer
        self._buckets = list(buckets)
        self._flats = [torch.zeros(bucket.count + WORDS, dtype=bucket.dtype) for bucket in buckets]
        self._feedbacks = [Feedback() for _ in buckets]  # used where a narrow wire rounds
        self._every = every
        self._steps = 0
        self._weight = 0.0

    def step(self, weight: float) -> bool:
        """Count a step; average if it is the k-th since the last average.

        Args:
            weight: of the step, such as its samples.

        Returns:
            Whether parameters were averaged.

        Raises:
            MissingRanksError: a rank did not come; the error names the bucket.
        """
        self._steps += 1
        self._weight += weight
        if self._steps < self._every:
            return False
        self._average(goes_on=1.0)
        return True

    def without_batch(self) -> bool:
        """Take part in an average of the others, for a rank that has no more batches.

        What this rank trained on since its last average counts the first time.

        Returns:
            Whether some rank goes on. If not, all are at their end.

        Raises:
            MissingRanksError: as of ``step``.
        """
        return self._average(goes_on=0.0) > 0.0

    def _average(self, *, goes_on: float) -> float:
        """Average now, and return how many ranks go on; without any weight, parameters stay."""
        weight, self._weight, self._steps = self._weight, 0.0, 0
        going = 0.0
        with torch.no_grad():
            for number, (bucket, flat) in enumerate(zip(self._buckets, self._flats, strict=True)):
                for part, parameter in _parts(bucket, flat):
                    part.copy_(parameter).mul_(weight)
                flat[-WORDS], flat[-1] = weight, goes_on
                what = f"parameters, bucket {number} of {len(self._buckets)}"
                feedback = self._feedbacks[number]
                self._summer.sum(flat, what=what, exact=WORDS, feedback=feedback)
                total, going = flat[-WORDS:].tolist()
                if total > 0.0:
                    for part, parameter in _parts(bucket, flat):
                        parameter.copy_(part.div_(total))
        return going


def _parts(bucket: Bucket, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return each parameter's place in a bucket's tensor, in its shape, and the parameter."""
    sizes = [parameter.numel() for parameter in bucket.parameters]
    blocks = torch.split(flat[:-WORDS], sizes)
    return [
        (block.view(parameter.shape), parameter)
        for block, parameter in zip(blocks, bucket.parameters, strict=True)
    ]
