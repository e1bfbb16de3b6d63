"""What a dense part takes of memory, measured once: what is held between steps, and what is kept for backward.

Rooms before and after: ``job`` tells it of steps; ``memory`` makes facts of what was found.

What backward needs is measured in the first forward pass that trains: tensors that torch keeps, each storage once,
without the parameters themselves. So the saving of ``recompute`` can be seen. Owner: the training thread.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainer.dense.memory import memory_facts


class Taken:
    """Memory of one module and of what steps it."""

    def __init__(self, module: nn.Module | None, held: Callable[[], Mapping[str, int]]) -> None:
        """Look at the first forward pass of a module.

        Args:
            module: None: what it keeps for backward cannot be told from what it gathers.
            held: returns the bytes of parameters, gradients and state that are held now.
        """
        self._kept_bytes = 0
        self._held_now = held
        self._held: Mapping[str, int] = {}
        self._own: set[int] = set()
        self._seen: dict[int, int] = {}
        self._hooks: Any = None
        self._handles: list[Any] = []
        if module is None:
            return
        self._own = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self._handles = [
            module.register_forward_pre_hook(self._begin),
            module.register_forward_hook(self._end),
        ]

    def step(self) -> None:
        """Look at what is held, between the first two steps."""
        self._held = self._held or self._held_now()

    def facts(self) -> dict[str, float]:
        """Return the watch list."""
        return memory_facts(self._held, kept_bytes=self._kept_bytes)

    def _begin(self, module: nn.Module, _: object) -> None:
        if module.training and torch.is_grad_enabled():
            self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda kept: kept)
            self._hooks.__enter__()

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._own:
            self._seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    def _end(self, *_: object) -> None:
        if self._hooks is None:
            return
        self._hooks.__exit__(None, None, None)
        self._kept_bytes = sum(self._seen.values())
        for handle in self._handles:
            handle.remove()
