"""What a trace of a trainer and its servers must have: every span, inside its parent, and a step that adds up."""

from collections import defaultdict
from pathlib import Path

import pytest

from pserver.trace.merge import read_trace
from pserver.trace.show import BatchTrace, Node, batches_of, step_shares
from tests.chrome_format import read_events

SLACK_MS = 0.005  # what rounding of times may take
COVERED = 0.9  # of a step, that its parts take

CALL = ("queue", "answer", "wait", "turn", "kernel")
"""What a pull or push has below it."""


def check_batches(path: Path, *, over_wire: bool) -> list[BatchTrace]:
    """Return the batches of a file, each of which has all that a batch goes through.

    Args:
        path: of the trace.
        over_wire: whether servers were other processes.
    """
    read_events(path)
    batches = batches_of(*read_trace(path))
    assert batches
    for batch in batches:
        check_inside(batch.root)
        parts = {part.name for part in batch.root.parts}
        assert {"read", "dedupe", "fetch", "step", "Pull", "Push"} <= parts
        assert batch.step is not None
        assert sum(ms for _, ms in step_shares(batch)) == pytest.approx(batch.step.ms, abs=SLACK_MS)
        assert {"dense values", "compute", "dense step", "push"} == {
            p.name for p in batch.step.parts
        }
        for call in [part for part in batch.root.parts if part.name in ("Pull", "Push")]:
            below = names_below(call)
            assert set(CALL) - ({"kernel"} if call.name == "Push" else set()) <= below
            assert ("wire" in below) is over_wire
    # Of the best one: between two parts a busy machine may do something else.
    assert (
        min(dict(step_shares(b))["the rest"] / b.step.ms for b in batches if b.step) < 1 - COVERED
    )
    return batches


def check_inside(node: Node) -> None:
    """See that the parts of a span lie inside it, and those of a step one after the other."""
    for part in node.parts:
        assert part.begin_ms >= node.begin_ms - SLACK_MS, (node.name, part.name)
        assert part.begin_ms + part.ms <= node.begin_ms + node.ms + SLACK_MS, (node.name, part.name)
        check_inside(part)
    if node.name == "step":
        ends = [part.begin_ms + part.ms for part in node.parts]
        begins = [part.begin_ms for part in node.parts[1:]]
        assert all(b >= e - SLACK_MS for e, b in zip(ends, begins, strict=False))


def names_below(node: Node) -> set[str]:
    """Return the names of all spans below one."""
    return {part.name for part in node.parts}.union(*map(names_below, node.parts))


def kernels_of(batches: list[BatchTrace]) -> dict[str, int]:
    """Return how many kernels ran for pulls and for pushes."""
    found: dict[str, int] = defaultdict(int)
    for batch in batches:
        for call in batch.root.parts:
            found[call.name] += "kernel" in names_below(call)
    return dict(found)
