"""What the tests with real processes share: servers that start on free ports and always end."""

from collections.abc import Iterator

import pytest

from tests.integration.servers import Server, Start, servers, start_cluster
from tests.integration.trainers import Trainer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    for item in items:
        if "tests/integration/" in item.path.as_posix():
            item.add_marker(pytest.mark.integration)


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a starter of servers that end with the test."""
    with servers() as starter:
        yield starter


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Server]]:
    """Return the two servers of a cluster that the tests of a module share and do not harm."""
    with servers() as starter:
        yield start_cluster(starter, 2, "--metrics-bind", "127.0.0.1:0")


@pytest.fixture
def trainers() -> Iterator[list[Trainer]]:
    """Return a list; what is in it ends with the test."""
    started: list[Trainer] = []
    yield started
    for trainer in started:
        trainer.kill()
        trainer.end()
