"""The wire benchmark runs, and what it compares is the same message."""

import math

import pytest

from bench import wire


def test_wire_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure is a positive number, for a push of the standard batch's size."""
    monkeypatch.setattr(wire, "_INNER", 1)

    result = wire.run()

    assert set(result) == {
        "message_bytes",
        "build_us",
        "build_generated_us",
        "parse_us",
        "parse_generated_us",
        "copy_us",
    }
    assert all(math.isfinite(value) and value > 0 for value in result.values())
    assert 27_000 * 72 < result["message_bytes"] < 28_200 * 72 + 100
