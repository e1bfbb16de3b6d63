"""A trace as text: what the batches spent their time on, the slowest ones, and one of them in full.

Rooms before and after: ``merge`` or one process's file brings the events; ``pserver trace show`` prints what comes back.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pserver.errors import ConfigError
from pserver.trace.chrome import Event

_SLOWEST = 5
_MS = 1e-3  # of a microsecond


@dataclass(slots=True)
class Node:
    """A span and its parts.

    Attributes:
        name: of it.
        begin_ms: on the trace's clock.
        ms: that it took.
        where: process and track.
        facts: what else there is to say.
        parts: by time.
    """

    name: str
    begin_ms: float
    ms: float
    where: str
    facts: dict[str, Any]
    parts: list["Node"] = field(default_factory=list)

    @property
    def own_ms(self) -> float:
        """Return what no part of it took; parts of ``step`` lie one after the other."""
        return self.ms - sum(part.ms for part in self.parts)


@dataclass(frozen=True, slots=True)
class BatchTrace:
    """One batch.

    Attributes:
        number: from 1, as the trainer read them.
        trainer: that read it, by name.
        root: the whole of it.
    """

    number: int
    trainer: str
    root: Node

    @property
    def step(self) -> Node | None:
        """Return the step of the trainer; None if it is not in the trace."""
        return next((part for part in self.root.parts if part.name == "step"), None)


def batches_of(about: dict[str, Any], events: Sequence[Event]) -> list[BatchTrace]:
    """Return the batches of a trace that are there as a whole, by trainer and number."""
    names = {one["process"]: one["name"] for one in about["processes"]}
    tracks = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    owners = {
        event["pid"]: event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "process_name"
    }
    spans = [event for event in events if event["ph"] == "X"]
    parts: dict[str, list[Event]] = defaultdict(list)
    for event in sorted(spans, key=lambda event: float(event["ts"])):
        parts[event["args"]["parent"]].append(event)

    def node(event: Event) -> Node:
        args = dict(event["args"])
        key = args.pop("id")
        for name in ("batch", "of", "parent"):
            args.pop(name)
        where = f"{owners[event['pid']]}, {tracks[event['pid'], event['tid']]}"
        found = Node(event["name"], event["ts"] * _MS, event["dur"] * _MS, where, args)
        found.parts = [node(part) for part in parts[key]]
        return found

    found = [
        BatchTrace(event["args"]["batch"], names.get(event["args"]["of"], "?"), node(event))
        for event in spans
        if event["name"] == "batch"
    ]
    return sorted(found, key=lambda one: (one.trainer, one.number))


def step_shares(batch: BatchTrace) -> list[tuple[str, float]]:
    """Return what a batch's step spent its milliseconds on; their sum is what it took."""
    step = batch.step
    if step is None:
        return []
    shares: dict[str, float] = defaultdict(float)

    def walk(node: Node) -> None:
        shares["the rest" if node is step else node.name] += node.own_ms
        for part in node.parts:
            walk(part)

    walk(step)
    rest = shares.pop("the rest")
    return [*shares.items(), ("the rest", rest)]


def chosen(batches: Sequence[BatchTrace], number: int, trainer: str | None) -> BatchTrace:
    """Return one batch.

    Raises:
        ConfigError: it is not there, or several trainers have one of that number.
    """
    there = [one for one in batches if trainer in (None, one.trainer)]
    if not there:
        names = sorted({one.trainer for one in batches})
        raise ConfigError(f"--trainer {trainer!r}: has no batch in this trace; there are {names}")
    found = [one for one in there if one.number == number]
    if not found:
        numbers = [one.number for one in there]
        raise ConfigError(
            f"--batch {number}: not in this trace, which has {len(numbers)} batches from "
            f"{min(numbers)} to {max(numbers)}"
        )
    if len(found) > 1:
        names = sorted(one.trainer for one in found)
        raise ConfigError(f"--batch {number}: of which trainer? Give --trainer, one of {names}")
    return found[0]


def batch_lines(batch: BatchTrace) -> Iterator[str]:
    """Yield what one batch went through, a span a line, and what its step took."""
    root, step = batch.root, batch.step
    took = "" if step is None else f"; its step took {step.ms:.3f} ms"
    yield f"batch {batch.number} of {batch.trainer}: {root.ms:.3f} ms from reading it to its last reply{took}"
    yield f"{'at ms':>10} {'ms':>10}  what"

    def lines(node: Node, depth: int) -> Iterator[str]:
        facts = "".join(f" {name}={value}" for name, value in node.facts.items())
        at = node.begin_ms - root.begin_ms
        yield f"{at:10.3f} {node.ms:10.3f}  {'  ' * depth}{node.name}{facts}  [{node.where}]"
        for part in node.parts:
            yield from lines(part, depth + 1)

    for part in root.parts:
        yield from lines(part, 0)
    if step is not None and step.ms:
        yield "the step: " + ", ".join(
            f"{name} {ms:.3f} ms ({ms / step.ms:.0%})" for name, ms in step_shares(batch)
        )


def span_rows(batches: Sequence[BatchTrace]) -> list[dict[str, Any]]:
    """Return, for each kind of span, how many there are and what they took, in the order in which a batch meets them."""
    took: dict[str, list[float]] = defaultdict(list)

    def walk(node: Node) -> None:
        took[node.name].append(node.ms)
        for part in node.parts:
            walk(part)

    for batch in batches:
        walk(batch.root)
    rows = []
    for name, times in took.items():
        ordered = sorted(times)
        rows.append(
            {
                "name": name,
                "spans": len(ordered),
                "p50_ms": ordered[len(ordered) // 2],
                "p99_ms": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
                "max_ms": ordered[-1],
                "ms_a_batch": sum(ordered) / len(batches),
            }
        )
    return rows


def slowest(batches: Sequence[BatchTrace]) -> list[BatchTrace]:
    """Return the batches whose steps took longest, the slowest first."""
    stepped = [batch for batch in batches if batch.step is not None]
    return sorted(stepped, key=lambda batch: -(batch.step.ms if batch.step else 0.0))[:_SLOWEST]
