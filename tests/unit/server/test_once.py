"""What ``pserver.server.once`` promises: a push counts once, against a plain set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.errors import StaleError
from pserver.server import once
from pserver.server.once import WINDOW, Once
from pserver.wire import PushId

TRAINER = b"0123456789abcdef"


def push(counter: int, trainer: bytes = TRAINER) -> PushId:
    """Return a push_id."""
    return PushId(trainer, counter)


def mark_all(memory: Once, *counters: int) -> None:
    """Mark counters in that order."""
    for counter in counters:
        memory.mark(push(counter))


# Counters that creep, jump back a little, and jump far.
counters = st.lists(
    st.integers(0, 50) | st.integers(0, 3 * WINDOW) | st.integers(2**40, 2**40 + 2 * WINDOW),
    max_size=80,
)


@given(st.lists(st.tuples(st.sampled_from([b"a" * 16, b"b" * 16]), st.integers(0, 3 * WINDOW))))
def test_answers_agree_with_a_set_when_trainers_mix(pushes: list[tuple[bytes, int]]) -> None:
    """Each trainer's pushes are known for as long as they are in the window, as a set knows them."""
    memory = Once()
    applied: set[tuple[bytes, int]] = set()
    for trainer, counter in pushes:
        highest = max((c for t, c in applied if t == trainer), default=-1)
        push_id = push(counter, trainer)
        if highest - counter >= WINDOW:
            with pytest.raises(StaleError):
                memory.is_applied(push_id)
            continue
        assert memory.is_applied(push_id) == ((trainer, counter) in applied)
        memory.mark(push_id)
        applied.add((trainer, counter))
        assert memory.is_applied(push_id)


@given(counters)
def test_replay_of_any_sent_pushes_changes_nothing(sent: list[int]) -> None:
    """After any pushes in any order, sending any of them again applies none."""
    memory = Once()
    applied: list[int] = []
    for counter in sent:
        try:
            if not memory.is_applied(push(counter)):
                memory.mark(push(counter))
                applied.append(counter)
        except StaleError:
            continue

    assert len(set(applied)) == len(applied)
    for counter in sent:
        try:
            assert memory.is_applied(push(counter))
        except StaleError:
            assert max(applied) - counter >= WINDOW


def test_push_is_new_until_it_is_marked() -> None:
    """Asking does not mark, and marking twice is as marking once."""
    memory = Once()

    assert not memory.is_applied(push(0))
    assert not memory.is_applied(push(0))
    mark_all(memory, 0, 0)
    assert memory.is_applied(push(0))
    assert not memory.is_applied(push(1))


def test_gaps_stay_open_when_counters_arrive_out_of_order() -> None:
    """A counter that was jumped over is still new, and may come later."""
    memory = Once()
    mark_all(memory, 5, 2)

    applied = [counter for counter in range(8) if memory.is_applied(push(counter))]

    assert applied == [2, 5]


def test_window_ends_exactly_where_it_says() -> None:
    """The last WINDOW counters are remembered; the one before them is refused, not guessed."""
    memory = Once()
    mark_all(memory, 0, WINDOW - 1)
    assert memory.is_applied(push(0))

    memory.mark(push(WINDOW))

    assert not memory.is_applied(push(1))
    with pytest.raises(StaleError) as caught:
        memory.is_applied(push(0))
    message = str(caught.value)
    assert f"push 0 of trainer 30313233 is {WINDOW} behind its newest" in message
    assert f"only the last {WINDOW} are remembered; it was not applied" in message


@pytest.mark.parametrize("jump", [WINDOW - 1, WINDOW, WINDOW + 1, 2**62])
def test_memory_is_right_when_counters_jump_over_it(jump: int) -> None:
    """A jump of about a window, or of nearly everything, forgets just what left the window."""
    memory = Once()
    mark_all(memory, 7, 7 + jump)

    assert memory.is_applied(push(7 + jump))
    assert not memory.is_applied(push(6 + jump))
    if jump < WINDOW:
        assert memory.is_applied(push(7))
    else:
        with pytest.raises(StaleError):
            memory.is_applied(push(7))


def test_trainer_that_pushed_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond TRAINERS_MAX the least recent trainer goes, and only that one."""
    monkeypatch.setattr(once, "TRAINERS_MAX", 3)
    memory = Once()
    names = [bytes([i]) * 16 for i in range(4)]
    for name in names[:3]:
        memory.mark(push(0, name))
    memory.mark(push(1, names[0]))  # the oldest one pushes again

    memory.mark(push(0, names[3]))

    assert [memory.is_applied(push(0, name)) for name in names] == [True, False, True, True]
    assert len(memory._seen) == 3


def test_memory_of_a_trainer_is_small() -> None:
    """A trainer costs at most 600 bytes, however many pushes it sent."""
    memory = Once()
    mark_all(memory, *range(5 * WINDOW))

    _, bits = memory._seen[TRAINER]

    assert bits.bit_length() <= WINDOW
    assert bits.__sizeof__() < 600
