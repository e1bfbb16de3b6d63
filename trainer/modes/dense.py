"""The dense part on the servers: the module's parameters as one vector, used like an optimizer.

Rooms before and after: ``loop`` calls ``zero_grad`` and ``step`` as of a torch optimizer; the values
and the rule live in a dense table, reached through the ``Mode``.

What always holds: every trainer computes a step with what ``Mode.pull_dense`` gave for it; nothing
but that writes to the parameters. A parameter without a gradient counts as a gradient of zeros.
Owner: the training thread.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

import pserver
from trainer.modes.base import Mode


class DenseOnServers:
    """The parameters of a module, kept on the servers."""

    def __init__(
        self, mode: Mode, parameters: Iterable[nn.Parameter], *, table: str, optimizer: str
    ) -> None:
        """Make the table; the first trainer's values become everyone's.

        Args:
            mode: carries values and gradients.
            parameters: in the same order on every trainer; float32.
            table: name of the dense table.
            optimizer: the servers' rule, such as ``adam:lr=0.001``.

        Raises:
            pserver.ConfigError: the rule is unknown, or cannot step a dense table.
            pserver.SpecMismatchError: the table exists with another length or rule.
        """
        self._mode = mode
        self._table = table
        self.parameters = list(parameters)
        first = torch.cat([p.detach().reshape(-1).cpu() for p in self.parameters]).numpy()
        spec = pserver.DenseSpec(name=table, length=first.size, optimizer=optimizer)
        self._take(mode.create_dense(spec, first))

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's own
        """Begin a step: take the values that it computes with, and forget the last gradients."""
        values = self._mode.pull_dense(self._table)
        if values is not None:
            self._take(values)
        for parameter in self.parameters:
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad.zero_()

    def step(self) -> None:
        """Hand the gradients to the mode; they leave with the rows' when the step ends."""
        blocks = [
            torch.zeros(p.numel()) if p.grad is None else p.grad.detach().reshape(-1).cpu()
            for p in self.parameters
        ]
        self._mode.push_dense(self._table, torch.cat(blocks).numpy())

    def take_latest(self) -> None:
        """Take the values that the servers have now, between steps: to score or to save them."""
        self._take(self._mode.client.pull_dense(self._table).values)

    @torch.no_grad()
    def _take(self, values: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> None:
        """Write a vector into the parameters."""
        begin = 0
        for parameter in self.parameters:
            end = begin + parameter.numel()
            block = torch.from_numpy(values[begin:end].copy())
            parameter.copy_(block.view(parameter.shape))
            begin = end
