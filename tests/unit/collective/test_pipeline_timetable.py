"""Timetables: whole, in an order that every rank can keep, with the bubbles that theory gives."""

import pytest

from collective.errors import GroupError
from collective.pipeline_picture import timetable_png, timetable_text
from collective.pipeline_timetable import (
    SCHEDULES,
    Action,
    Timetable,
    bubble_formula,
    make_timetable,
)


def replay(timetable: Timetable) -> int:
    """Run the columns as slowly as can be, one action at a time; return how many ran."""
    done: set[tuple[str, int, int]] = set()
    places = [0] * len(timetable.columns)

    def is_ready(action: Action) -> bool:
        stage, part = action.stage, action.micro_batch
        if action.kind == "F":
            return stage == 0 or ("F", stage - 1, part) in done
        if action.kind == "W":
            return ("B", stage, part) in done
        is_last = stage == timetable.stages - 1
        return ("F", stage, part) in done and (is_last or ("B", stage + 1, part) in done)

    moved = True
    while moved:
        moved = False
        for rank, column in enumerate(timetable.columns):
            if places[rank] < len(column) and is_ready(column[places[rank]]):
                action = column[places[rank]]
                done.add((action.kind, action.stage, action.micro_batch))
                places[rank] += 1
                moved = True
    return len(done)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 5, 8, 13])
def test_every_rank_gets_through_whatever_the_speeds(schedule, ranks, micro_batches):
    """All actions are there once and can be done in the order of the columns, without the clock."""
    for virtual in (1, 2, 3) if schedule == "interleaved" else (1,):
        timetable = make_timetable(
            schedule, ranks=ranks, micro_batches=micro_batches, virtual=virtual
        )
        kinds = 3 if schedule == "zero_bubble" else 2
        assert replay(timetable) == kinds * ranks * virtual * micro_batches
        assert sum(map(len, timetable.columns)) == replay(timetable)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_bubbles_are_those_of_the_papers(ranks, groups):
    """gpipe and 1f1b have (S-1)/(M+S-1); v virtual stages divide by v what waits at the ends."""
    micro_batches = ranks * groups
    wanted = bubble_formula(ranks, micro_batches)

    for schedule in ("gpipe", "1f1b"):
        timetable = make_timetable(schedule, ranks=ranks, micro_batches=micro_batches)
        assert timetable.bubble_share == pytest.approx(wanted)
    for virtual in (1, 2, 3):
        timetable = make_timetable(
            "interleaved", ranks=ranks, micro_batches=micro_batches, virtual=virtual
        )
        waits = (ranks - 1) / virtual
        assert timetable.bubble_share == pytest.approx(waits / (micro_batches + waits))
    assert (
        make_timetable("zero_bubble", ranks=ranks, micro_batches=micro_batches).bubble_share
        < 0.75 * wanted
    )


def test_1f1b_holds_as_many_micro_batches_as_stages_and_gpipe_all():
    """What a rank holds at once is what its memory must hold."""
    held = {
        schedule: make_timetable(schedule, ranks=4, micro_batches=8).under_way
        for schedule in ("gpipe", "1f1b", "zero_bubble")
    }
    assert held == {"gpipe": (8, 8, 8, 8), "1f1b": (4, 3, 2, 1), "zero_bubble": (4, 4, 4, 4)}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"schedule": "gpip"}, "schedule must be one of gpipe, 1f1b"),
        ({"ranks": 0}, "1 to 256 stages, got 0 ranks"),
        ({"micro_batches": 0}, r"micro_batches must be in \[1, 4096\], got 0"),
        ({"virtual": 2}, "1f1b has one stage a rank, got 2"),
    ],
)
def test_numbers_that_make_no_pipeline_are_refused(changes, text):
    """The message says what must hold."""
    wanted = {"schedule": "1f1b", "ranks": 2, "micro_batches": 2, **changes}
    with pytest.raises(GroupError, match=text):
        make_timetable(wanted.pop("schedule"), **wanted)


def test_text_says_the_stage_where_a_rank_has_several():
    """Cells are kind, stage and micro-batch; a backward pass takes two."""
    timetable = make_timetable("interleaved", ranks=1, micro_batches=1, virtual=2)
    lines = timetable_text(timetable).splitlines()
    assert lines[0].split() == ["rank", "0", "|F0:0", "F1:0", "B1:0", "=", "B0:0", "=", "|"]
    assert lines[1].startswith("bubble 0.0% of 6 ticks")


def test_png_of_a_huge_timetable_is_refused():
    """A picture that no screen shows costs no memory."""
    timetable = make_timetable("gpipe", ranks=64, micro_batches=1024)
    with pytest.raises(ValueError, match="too large"):
        timetable_png(timetable)
