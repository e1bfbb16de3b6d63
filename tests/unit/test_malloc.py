"""What ``malloc`` promises: large blocks are kept, where the C library can be told so."""

import platform

import pytest

from pserver.malloc import keep_large_blocks


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the limits")
def test_the_limits_are_taken_when_the_library_is_glibc() -> None:
    """All three are accepted, and again when told twice."""
    assert keep_large_blocks()
    assert keep_large_blocks()
