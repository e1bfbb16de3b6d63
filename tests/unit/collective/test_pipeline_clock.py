"""Where a rank's time goes: each second in one part, cut where the other rank gave what was waited for."""

import pytest

from collective import Group
from collective.pipeline_clock import PARTS, StepClock
from tests.ranks import results
from tests.unit.collective.pipelined import copies_for, make_pipeline, one_step


class Time:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def pass_by(time: Time, seconds: float) -> None:
    """Let time pass."""
    time.now_s += seconds


def parts(**seconds: float) -> dict[str, float]:
    """Return the seconds of all parts, of which some are not 0."""
    return {**dict.fromkeys(PARTS, 0.0), **seconds}


def test_what_comes_before_the_first_part_is_not_counted():
    """Parts follow each other, and one within another is taken out of it."""
    time = Time()
    clock = StepClock(time)

    pass_by(time, 7.0)
    clock.to("rows")
    pass_by(time, 1.0)
    clock.to("compute")
    pass_by(time, 2.0)
    with clock.during("hand_over"):
        pass_by(time, 4.0)
    pass_by(time, 8.0)
    clock.to("rest")

    assert clock.seconds == parts(rows=1.0, compute=10.0, hand_over=4.0)
    assert clock.total_s == 15.0


def test_the_first_wait_is_cut_where_the_step_began_and_where_the_parcel_was_given():
    """Waits from 100 to 120; the step began at 110, and the parcel was given at 114: it came at 114 by this clock."""
    time = Time()
    clock = StepClock(time)
    clock.to("bubble")
    clock.step(has_inputs=False)

    pass_by(time, 20.0)
    clock.waited(age_s=4.0, came_s=114.0)
    clock.to("compute")

    assert clock.seconds == parts(rows=10.0, bubble=4.0, hand_over=6.0)
    assert clock.age_s == 10.0
    assert clock.total_s == 20.0


def test_a_later_wait_is_cut_where_the_parcel_was_given():
    """One given while this rank waited; one given before; one that by its age is yet to be given."""
    time = Time()
    clock = StepClock(time)
    clock.to("bubble")
    clock.step(has_inputs=True)
    found = []

    for age_s in (3.0, 5.0, 99.0):
        pass_by(time, 4.0)
        clock.waited(age_s=age_s, came_s=0.0)
        clock.to("bubble")
        found.append((clock.seconds["bubble"], clock.seconds["hand_over"]))

    assert found == [(3.0, 1.0), (4.0, 4.0), (8.0, 4.0)]
    assert clock.total_s == 12.0


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_the_parts_of_real_steps_sum_to_their_time(schedule):
    """Three ranks: no part is below 0, and the first rank has no rows to wait for."""
    copies = copies_for(3, 3)

    def work(group: Group) -> StepClock:
        pipeline = make_pipeline(group, schedule, 4, copies[group.rank])
        for seed in range(3):
            one_step(pipeline, 8, seed=seed)
        pipeline.close()
        return pipeline.clock

    for rank, clock in enumerate(results(3, work)):
        assert sum(clock.seconds.values()) == pytest.approx(clock.total_s, abs=1e-9)
        assert min(clock.seconds.values()) >= 0.0
        assert clock.seconds["compute"] > 0.0
        assert rank or clock.seconds["rows"] == 0.0
        assert clock.seconds["dense_step"] == 0.0
