"""Requests of any size work with default settings: they are cut into parts, several in flight."""

from collections.abc import Iterator

import numpy as np
import pytest

import pserver
from pserver.config import MESSAGE_BYTES_MAX, PART_BYTES_MAX

DIM = 16
ROW_BYTES = 4 * DIM
MIB = 1 << 20


@pytest.fixture(scope="module")
def client() -> Iterator[pserver.Client]:
    """Return a client of one shard with a table that sgd moves by 1."""
    with pserver.embedded(1) as client:
        client.create_table(
            pserver.TableSpec(name="t", dim=DIM, optimizer="sgd:lr=1", initializer="zeros")
        )
        yield client


def push_and_pull(client: pserver.Client, first_key: int, num_keys: int) -> None:
    """Assert that each key's row gets its own gradient, and comes back in its place."""
    keys = np.arange(first_key, first_key + num_keys, dtype=np.uint64)
    grads = np.arange(num_keys, dtype=np.float32)[:, None] + np.zeros((1, DIM), np.float32)

    client.push("t", keys, grads)
    weights = client.pull("t", keys)

    assert np.array_equal(weights, -grads)


@pytest.mark.parametrize("row_bytes", [ROW_BYTES, ROW_BYTES + 8, ROW_BYTES + 12])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_pull_and_push_work_when_they_are_about_4_mib(
    client: pserver.Client, row_bytes: int, extra: int
) -> None:
    """Weights, weights with keys, or with counts of 4 MiB and one row more or less pass (B1)."""
    num_keys = PART_BYTES_MAX // row_bytes + extra

    push_and_pull(client, row_bytes << 32 | (extra + 1) << 24, num_keys)


@pytest.mark.parametrize("num_bytes", [PART_BYTES_MAX, MESSAGE_BYTES_MAX])
def test_nothing_special_happens_when_a_request_is_as_large_as_a_limit(
    client: pserver.Client, num_bytes: int
) -> None:
    """Exactly the size of a part and of a message, and one row more, pass."""
    for num_keys in (num_bytes // ROW_BYTES, num_bytes // ROW_BYTES + 1):
        push_and_pull(client, num_bytes << 24, num_keys)
        client.assign("t", np.arange(num_keys) + (num_bytes << 24), np.zeros((num_keys, DIM)))


def test_b2_pull_and_push_work_when_they_are_64_mib(client: pserver.Client) -> None:
    """A request sixteen times a part, as large as the whole send queue, passes both ways."""
    push_and_pull(client, 1 << 60, 64 * MIB // ROW_BYTES)


def test_request_passes_when_the_send_queue_is_smaller_than_a_part() -> None:
    """A queue of a few bytes still lets each part pass, one at a time."""
    settings = pserver.ClientSettings(send_queue_bytes=100, send_queue_size=1, window=1)
    with pserver.embedded(2, settings=settings) as client:
        client.create_table(
            pserver.TableSpec(name="t", dim=DIM, optimizer="sgd:lr=1", initializer="zeros")
        )
        push_and_pull(client, 0, 3 * PART_BYTES_MAX // ROW_BYTES)


def test_widest_rows_pass() -> None:
    """Rows of the largest dim, of which a part holds some 250, are cut and put back right."""
    with pserver.embedded(1) as client:
        client.create_table(
            pserver.TableSpec(name="t", dim=4096, optimizer="sgd:lr=1", initializer="zeros")
        )
        grads = np.arange(600, dtype=np.float32)[:, None] + np.zeros((1, 4096), np.float32)
        client.push("t", np.arange(600), grads)

        assert np.array_equal(client.pull("t", np.arange(600)), -grads)
