"""Where the small real data of the tests lies, if it is at hand."""

from pathlib import Path

SHARED = Path(__file__).resolve().parents[4].parent / "shared" / "data"
"""Beside the checkout; tests on it are skipped where it is not."""
