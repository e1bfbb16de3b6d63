"""Our ways to sum as communication hooks of torch's DistributedDataParallel.

Rooms before and after: ``model.register_comm_hook(DdpHook(summer), ddp_hook)``; DDP's reducer calls the hook
for each bucket while backward runs; ``worker`` sums it in order.

What always holds: a gradient becomes the mean over the ranks, as without a hook.
"""

from concurrent.futures import Future

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket

from collective.algorithm import Summer
from collective.ring import Feedback
from collective.worker import Worker


class DdpHook:
    """The state of a hook: who sums, in which thread. Close it at the end."""

    def __init__(self, summer: Summer) -> None:
        """Start the worker's thread."""
        self.summer = summer
        self.feedbacks: dict[int, Feedback] = {}  # by bucket
        self.worker = Worker(name="collective-ddp")

    def close(self) -> None:
        """End the thread."""
        self.worker.close()


def ddp_hook(state: DdpHook, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Average one bucket over the ranks."""
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    flat, group = bucket.buffer(), state.summer.group
    what = f"DDP bucket {bucket.index()}"
    feedback = state.feedbacks.setdefault(bucket.index(), Feedback())

    def settle(done: "Future[None]") -> None:
        error = done.exception()
        if error is None:
            future.set_result(flat.div_(group.world_size))
        else:
            future.set_exception(error)  # type: ignore[arg-type]  # the stub is wrong

    state.worker.submit(
        lambda: state.summer.sum(flat, what=what, feedback=feedback)
    ).add_done_callback(settle)
    return future
