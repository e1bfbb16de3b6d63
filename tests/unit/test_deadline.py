"""What ``deadline`` promises: a point in time that only comes nearer."""

import time

from pserver.deadline import Deadline


def test_what_remains_is_the_timeout_when_just_made() -> None:
    """Time left is at most the timeout, and does not grow."""
    deadline = Deadline.after(60.0)

    first, second = deadline.remaining_s, deadline.remaining_s

    assert 59.0 < second <= first <= 60.0
    assert not deadline.is_over


def test_nothing_remains_when_the_point_has_passed() -> None:
    """What is left is 0, never negative."""
    deadline = Deadline(time.monotonic() - 5.0)

    assert deadline.remaining_s == 0.0
    assert deadline.is_over


def test_it_is_over_at_once_when_the_timeout_is_zero_or_less() -> None:
    """No time at all is a deadline that has passed."""
    assert Deadline.after(0.0).is_over
    assert Deadline.after(-1.0).is_over
