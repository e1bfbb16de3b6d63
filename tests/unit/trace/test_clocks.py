"""What ``trace.clocks`` promises: the other clock lies between what is said of it."""

from hypothesis import given
from hypothesis import strategies as st

from pserver.trace.clocks import WINDOW_NS, Clocks

DELAYS = st.tuples(*[st.integers(0, 10**7)] * 3, st.integers(0, 3 * WINDOW_NS))


@given(st.integers(-(10**15), 10**15), st.lists(DELAYS, min_size=1))
def test_the_offset_is_within_the_bounds_whatever_calls_took(
    offset_ns: int, calls: list[tuple[int, int, int, int]]
) -> None:
    """Whatever the ways there and back take, the true offset is in every window, and bounds only get narrower."""
    clocks = Clocks()
    for there_ns, answer_ns, back_ns, t1 in sorted(calls, key=lambda call: call[3]):
        t2 = t1 + there_ns + offset_ns
        t3 = t2 + answer_ns
        clocks.add(7, "here:1", (t1, t2, t3, t3 - offset_ns + back_ns))

    ((process, endpoint, windows),) = clocks.known()
    assert (process, endpoint) == (7, "here:1")
    assert all(w.low_ns <= offset_ns <= w.high_ns for w in windows)
    widths = [there_ns + back_ns for there_ns, _, back_ns, _ in calls]
    assert min(w.high_ns - w.low_ns for w in windows) <= min(widths)
    assert [w.at_ns for w in windows] == sorted({w.at_ns for w in windows})


def test_calls_are_taken_together_when_they_lie_within_one_window() -> None:
    """Two calls of ten seconds make one window, as narrow as both say; a later one makes another."""
    clocks = Clocks()
    for begin_ns, there_ns, back_ns in ((0, 5, 100), (1000, 100, 7), (2 * WINDOW_NS, 1, 1)):
        t2 = begin_ns + there_ns
        clocks.add(1, "e", (begin_ns, t2, t2, t2 + back_ns))

    ((_, _, windows),) = clocks.known()

    assert [(w.at_ns, w.low_ns, w.high_ns) for w in windows] == [
        (WINDOW_NS // 2, -7, 5),
        (WINDOW_NS * 5 // 2, -1, 1),
    ]
