"""What ``pserver.client.compose`` promises: messages with the keys that go to one shard."""

import numpy as np
import pytest

from pserver.client.compose import pull_message, push_message
from pserver.spec import TableSpec
from pserver.wire import PushId, parse_pull, parse_push

KEYS = np.array([10, 11, 12, 13], np.uint64)
POSITIONS = np.array([3, 1])


def test_pull_names_the_keys_at_the_positions() -> None:
    """Each table's keys come in the order of the positions."""
    message = pull_message(
        5, [("a", POSITIONS), ("b", POSITIONS[:1])], {"a": KEYS, "b": KEYS + 100}, creates=True
    )

    request = parse_pull(message)

    assert request.incarnation == 5
    assert [(t.table, t.create, t.keys.tolist()) for t in request.tables] == [
        ("a", True, [13, 11]),
        ("b", True, [113]),
    ]


@pytest.mark.parametrize("counts", [[], [1, 2, 3, 4]])
def test_push_holds_keys_values_and_counts_at_the_positions(counts: list[int]) -> None:
    """Values stay with their keys; counts come along where there are some."""
    values = np.arange(8, dtype=np.float32)
    push_id = PushId(b"0123456789abcdef", 7)
    message = push_message(
        5,
        push_id,
        [(TableSpec(name="a", dim=2), POSITIONS)],
        {"a": (KEYS, values, np.array(counts, np.uint32))},
        more=True,
    )

    request = parse_push(message)

    assert (request.incarnation, request.push_id, request.more) == (5, push_id, True)
    (table,) = request.tables
    assert table.keys.tolist() == [13, 11]
    assert table.values.tolist() == [6.0, 7.0, 2.0, 3.0]
    assert table.counts.tolist() == ([4, 2] if counts else [])
