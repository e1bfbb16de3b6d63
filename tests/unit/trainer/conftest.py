"""What the tests of the trainer share: one thread of torch, which small models need no more of."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Keep torch from starting threads that wait for each other, and restore what was set."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
