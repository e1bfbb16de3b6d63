"""A timetable that is run: it takes at least as long as planned, whatever the schedule."""

import pytest

from collective.pipeline_measure import measure
from collective.pipeline_timetable import SCHEDULES, make_timetable

TICK_S = 0.004


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_step_takes_the_planned_ticks_at_least(schedule):
    """Stages are busy for their ticks and no rank begins early; the rest is bubble."""
    virtual = 2 if schedule == "interleaved" else 1
    timetable = make_timetable(schedule, ranks=3, micro_batches=2, virtual=virtual)

    found = measure(timetable, tick_s=TICK_S)

    busy = sum(action.ticks for column in timetable.columns for action in column) * TICK_S
    assert found.step_s >= busy / 3
    if schedule in ("gpipe", "1f1b"):
        assert found.step_s >= timetable.ticks * TICK_S
    assert 0.0 < found.bubble_share < 1.0
    assert found.queue_bytes > 0


def test_one_rank_hardly_waits():
    """Without others there is no bubble but what the step itself costs."""
    found = measure(make_timetable("gpipe", ranks=1, micro_batches=3), tick_s=TICK_S)

    assert 0.0 <= found.bubble_share < 1.0
    assert found.queue_bytes == 0
