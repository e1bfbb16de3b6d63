"""What ``trace.batches`` promises: spans inside spans, of the batches that are traced, and nothing else."""

from collections.abc import Iterator

import pytest

from pserver.trace import here, numbered, span, traced
from pserver.trace.recorder import ACTIVE, NOTHING, Recorder, Span, batch_of


def named(recorder: Recorder) -> dict[str, Span]:
    """Return the spans by name."""
    return {span.name: span for span in recorder.spans()}


def test_hooks_do_nothing_when_nothing_is_recorded() -> None:
    """Without a recorder every hook is the same idle object, and batches come as they are."""
    assert span("a", table="t") is NOTHING
    assert traced(1) is NOTHING
    assert here() is None
    assert list(numbered("ab")) == [(1, "a"), (2, "b")]


def test_a_span_is_inside_the_one_around_when_both_end(recorder: Recorder) -> None:
    """The parent of a span is the span around, that of the outermost the batch, and times lie inside."""
    place = recorder.place_of(3)
    assert place is not None

    with traced(3), span("outer"), span("inner", table="ads"):
        pass

    spans = named(recorder)
    outer, inner = spans["outer"], spans["inner"]
    assert (inner.parent, outer.parent) == (outer.id, place.parent)
    assert outer.begin_ns <= inner.begin_ns <= inner.end_ns <= outer.end_ns
    assert inner.facts == {"table": "ads"}
    assert inner.track == "MainThread"


def test_a_span_says_what_was_raised(recorder: Recorder) -> None:
    """A span that ends with an error is recorded with its name, and the error goes on."""
    with traced(1), pytest.raises(ZeroDivisionError), span("fails", table="t"):
        raise ZeroDivisionError

    assert named(recorder)["fails"].facts == {"table": "t", "error": "ZeroDivisionError"}
    assert here() is None


def test_only_some_batches_are_traced_when_every_is_given() -> None:
    """With ``every`` 2 the even batches have spans; of others there is nothing, not even their reading."""
    ACTIVE.recorder = recorder = Recorder(every=2)
    try:
        for number, _ in numbered("abcde"):
            with traced(number, ends=True), span("step"):
                pass
    finally:
        ACTIVE.recorder = None

    found = [(batch_of(span.trace)[0], span.name) for span in recorder.spans()]
    assert found == [(number, name) for number in (2, 4) for name in ("read", "step", "batch")]


def test_a_batch_begins_when_it_is_asked_for(recorder: Recorder) -> None:
    """The time that a batch takes to come is the span ``read``, with which the batch begins."""

    def slow() -> Iterator[int]:
        yield len(recorder.spans())
        yield len(recorder.spans())

    numbers = []
    for number, _ in numbered(slow()):
        numbers.append(number)
        with traced(number, ends=True):
            pass

    assert numbers == [1, 2]
    first, batch, *_ = recorder.spans()
    assert (first.name, batch.name) == ("read", "batch")
    assert batch.begin_ns == first.begin_ns <= first.end_ns <= batch.end_ns
    assert first.parent == batch.id
