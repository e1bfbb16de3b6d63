"""What the tests of traces share: a recorder of this process."""

from collections.abc import Iterator

import pytest

from pserver.trace.recorder import ACTIVE, Recorder


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """Return a recorder that is the one of this process."""
    ACTIVE.recorder = Recorder()
    yield ACTIVE.recorder
    ACTIVE.recorder = None
