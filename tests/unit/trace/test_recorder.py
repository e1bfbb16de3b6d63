"""What ``trace.recorder`` promises: the last spans, and batches that live until their last part has ended."""

import contextvars
import threading

import pytest

from pserver.trace import recorder as room
from pserver.trace.recorder import Place, Recorder, batch_of, here, within

PLACE = Place(7 << 64 | 9, 3, "track")


def test_the_oldest_spans_go_when_there_are_too_many() -> None:
    """A recorder keeps the last ``SPANS_MAX`` spans and counts all."""
    recorder = Recorder()

    for number in range(room.SPANS_MAX + 2):
        recorder.record("s", number, number + 1, PLACE, own_id=number)

    spans = recorder.spans()
    assert [spans[0].begin_ns, spans[-1].begin_ns] == [2, room.SPANS_MAX + 1]
    assert recorder.num_recorded == room.SPANS_MAX + 2


def test_no_id_comes_twice_when_two_processes_make_them() -> None:
    """Ids of spans and of batches differ within a process and between two, and none is 0."""
    ids: list[int] = []
    for recorder in (Recorder(), Recorder()):
        places = [recorder.place_of(number) for number in range(1, 50)]
        ids += [place.parent for place in places if place is not None]
        ids += [recorder.new_id() for _ in range(50)]

    assert len(set(ids)) == len(ids) == 198
    assert all(0 < key < 1 << 64 for key in ids)


def test_a_batch_ends_when_its_last_part_does() -> None:
    """The span of a batch is from its first ``hold`` to its last ``release``, which may be any thread's."""
    recorder = Recorder()
    place = recorder.place_of(5)
    assert place is not None
    recorder.hold(place.trace, begin_ns=0)
    recorder.hold(place.trace)

    recorder.release(place.trace)
    assert recorder.spans() == []
    ending = threading.Thread(target=recorder.release, args=[place.trace])
    ending.start()
    ending.join()

    (span,) = recorder.spans()
    assert (span.name, span.begin_ns, span.id, span.parent) == ("batch", 0, place.parent, 0)
    assert batch_of(span.trace) == (5, recorder.process)
    recorder.release(place.trace)
    assert len(recorder.spans()) == 1


def test_batches_that_nobody_trains_on_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that are read and never end take bounded memory."""
    monkeypatch.setattr(room, "_LIVES_MAX", 3)
    recorder = Recorder()

    for trace in range(1, 6):
        recorder.hold(trace)
    for trace in range(1, 6):
        recorder.release(trace)

    assert [batch_of(span.trace)[1] for span in recorder.spans()] == [3, 4, 5]


def test_a_place_is_left_when_the_work_there_ends(recorder: Recorder) -> None:
    """Inside ``within`` one is at its place, and outside where one was; other contexts see nothing of it."""
    del recorder
    other = contextvars.copy_context()

    with within(PLACE), within(None):
        assert here() == PLACE
        assert other.run(here) is None

    assert here() is None
