"""What the dense part takes of a trainer's memory: parameters, gradients, optimizer state, and what backward needs.

Rooms before and after: ``job`` asks at the end of training; ``watch`` keeps the largest of several trainers; ``summary``
shows a line. Bytes come from what steps the dense part, which may share them with other trainers, and from ``kept``.
"""

import resource
from collections.abc import Mapping
from typing import Final

FACTS: Final = (
    "dense_parameters_bytes",
    "dense_gradients_bytes",
    "dense_state_bytes",
    "dense_kept_bytes",
    "process_peak_bytes",
)
"""Names in the watch list."""

_KIB = 1 << 10


def memory_facts(held: Mapping[str, int], *, kept_bytes: int = 0) -> dict[str, float]:
    """Return what the watch list has of a trainer's memory.

    Args:
        held: bytes of parameters, gradients and state.
        kept_bytes: what backward needed; 0: it was not measured.
    """
    facts = {f"dense_{name}_bytes": float(count) for name, count in held.items()}
    if kept_bytes:
        facts["dense_kept_bytes"] = float(kept_bytes)
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {**facts, "process_peak_bytes": float(peak_kib * _KIB)}


def memory_text(facts: Mapping[str, float]) -> str:
    """Return the line of the summary; empty where no dense part is stepped here.

    >>> memory_text({"dense_parameters_bytes": 4e6, "dense_gradients_bytes": 2e6, "dense_state_bytes": 512.0})
    'dense part: 4.0 MB of parameters, 2.0 MB of gradients, 512 bytes of optimizer state'
    """
    if "dense_parameters_bytes" not in facts:
        return ""
    names = ("parameters", "gradients", "optimizer state")
    parts = [f"{_size(facts[fact])} of {name}" for fact, name in zip(FACTS[:3], names, strict=True)]
    text = f"dense part: {', '.join(parts)}"
    if "dense_kept_bytes" in facts:
        text += f"; {_size(facts['dense_kept_bytes'])} kept for backward"
    if "process_peak_bytes" in facts:
        text += f"; process at most {_size(facts['process_peak_bytes'])}"
    return text


def _size(num_bytes: float) -> str:
    """Return bytes in words."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes:.0f} bytes"
