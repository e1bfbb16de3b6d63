"""What a shard does with walks: one at a time, named by who asked, ended with their table."""

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from structlog.testing import capture_logs

from pserver import errors
from pserver.server.lifecycle import REMEMBERED_MAX
from pserver.server.report import resident_bytes
from pserver.server.servicer import Servicer
from pserver.spec import TableSpec
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small, parse_small
from tests.unit.server.messages import call, create, pull_bytes, push_bytes, stats

ROWS = 60_000  # several slices


@pytest.fixture
def servicer() -> Iterator[Servicer]:
    """Return a shard with a table of many rows, whose next shrink but one removes all of them."""
    made = Servicer(shard=0, num_shards=1, queue_max=8)
    create(made, TableSpec(name="t", dim=1, optimizer="sgd", ttl_days=1))
    create(made, TableSpec(name="other", dim=1, optimizer="sgd", ttl_days=1))
    call(made, "Pull", pull_bytes({"t": range(ROWS)}))
    done(made, day=1, walk=1)
    yield made
    made.close()


def shrink_bytes(*, day: int, walk: int, table: str = "t", dry: bool = False) -> bytes:
    """Return the bytes of a request."""
    return build_small(pb.ShrinkRequest(table=table, day=day, walk=walk, dry=dry))


def ask(servicer: Servicer, **request: object) -> pb.ShrinkReply:
    """Begin a walk or ask how far it is."""
    message = shrink_bytes(**request)  # type: ignore[arg-type] # of the function's own types
    return parse_small(pb.ShrinkReply, call(servicer, "Shrink", message))


def done(servicer: Servicer, **request: object) -> pb.ShrinkReply:
    """Ask until it is done."""
    for _ in range(10_000):
        reply = ask(servicer, **request)
        if reply.is_done:
            return reply
    raise AssertionError("it does not end")


def remove(servicer: Servicer, method: str, *, request: int, table: str = "t") -> pb.GoneReply:
    """Clear or drop."""
    message = build_small(pb.TableRequest(table=table, request=request))
    return parse_small(pb.GoneReply, call(servicer, method, message))


def test_a_walk_goes_on_between_requests(servicer: Servicer) -> None:
    """It is begun at once and done a slice after each request, so that others are served meanwhile."""

    async def run() -> list[str]:
        """Begin a walk and ask other things until it is done; return the order of the answers."""
        order: list[str] = []
        message = shrink_bytes(day=3, walk=2)
        first = parse_small(pb.ShrinkReply, await servicer.call("Shrink", message))
        assert not first.is_done
        while not order or order[-1] != "done":
            await servicer.call("Pull", pull_bytes({"other": [1]}))
            order.append("pull")
            reply = parse_small(pb.ShrinkReply, await servicer.call("Shrink", message))
            order.append("done" if reply.is_done else "walking")
        return order

    order = asyncio.run(run())

    assert order.count("pull") >= 2
    reply = ask(servicer, day=3, walk=2)
    assert (reply.is_done, reply.rows, reply.gone) == (True, ROWS, ROWS)
    assert [table.rows for table in stats(servicer).tables] == [0, 1]


def test_two_walks_over_one_table_are_refused(servicer: Servicer) -> None:
    """The second one is told what goes on; another table may be walked, and the same number asks."""
    assert not ask(servicer, day=3, walk=2).is_done

    with pytest.raises(errors.BusyError, match="table 't': a shrink for day 3 is under way"):
        ask(servicer, day=4, walk=3)
    with pytest.raises(errors.BusyError, match="one at a time"):
        ask(servicer, day=3, walk=3, dry=True)
    done(servicer, day=1, walk=4, table="other")

    assert done(servicer, day=3, walk=2).gone == ROWS
    assert done(servicer, day=4, walk=3).rows == 0


def test_a_walk_ends_when_its_table_is_dropped(servicer: Servicer) -> None:
    """Who asks for it is told; a table of that name that is made again has no walk."""
    assert not ask(servicer, day=3, walk=2).is_done
    assert remove(servicer, "Drop", request=9).rows >= 0
    call(servicer, "Describe")

    with pytest.raises(errors.UnknownTableError, match="'t' was dropped in its shrink for day 3"):
        done(servicer, day=3, walk=2)
    create(servicer, TableSpec(name="t", dim=2, optimizer="sgd", ttl_days=1))
    assert done(servicer, day=1, walk=3).rows == 0


def test_a_retried_clear_removes_nothing_that_came_meanwhile(servicer: Servicer) -> None:
    """The same request is answered as the first time and does nothing; another one clears again."""
    first = remove(servicer, "Clear", request=5)
    call(servicer, "Push", push_bytes({"t": ([1], [1.0])}, counter=0))

    again = remove(servicer, "Clear", request=5)

    assert (first.rows, again) == (ROWS, first)
    assert stats(servicer).tables[0].rows == 1
    assert remove(servicer, "Clear", request=6).rows == 1


@pytest.mark.parametrize("method", ["Clear", "Drop"])
def test_memory_goes_back_to_the_system(servicer: Servicer, method: str) -> None:
    """The pages of rows and index are given back, in slices, not only reused."""
    create(servicer, TableSpec(name="big", dim=64, optimizer="adagrad"))
    for start in range(0, 200_000, 10_000):
        call(servicer, "Pull", pull_bytes({"big": range(start, start + 10_000)}))
    held = stats(servicer).tables[2].bytes
    before = resident_bytes()

    assert remove(servicer, method, request=8, table="big").rows == 200_000
    servicer.close()  # which finishes what goes on

    assert before - resident_bytes() > 0.9 * held


def test_answers_are_remembered_up_to_a_number(servicer: Servicer) -> None:
    """A clear that is forgotten is done again: the memory for retries has an end."""
    remove(servicer, "Clear", request=1)
    for request in range(2, REMEMBERED_MAX + 2):
        remove(servicer, "Clear", request=request)
    call(servicer, "Push", push_bytes({"t": ([1], [1.0])}, counter=0))

    assert remove(servicer, "Clear", request=REMEMBERED_MAX + 1).rows == 0
    assert remove(servicer, "Clear", request=1).rows == 1


def test_what_goes_is_said_in_the_log(servicer: Servicer) -> None:
    """A table that is made says what is in force; what fell out is told now and then, not each time."""
    with capture_logs() as lines:
        create(servicer, TableSpec(name="small", dim=1, optimizer="sgd", evict="lru:rows=100"))
        for turn in range(5):
            keys = np.arange(turn * 100, turn * 100 + 100).tolist()
            call(servicer, "Push", push_bytes({"small": (keys, [1.0] * 100)}, counter=turn))

        remove(servicer, "Clear", request=3, table="small")

    made, fell, cleared = lines
    assert cleared["event"] == "table cleared"
    assert (made["event"], made["evict"], made["shrink"], made["on_nan"]) == (
        "table made",
        "lru:rows=100",
        "nothing",
        "reject",
    )
    assert (fell["event"], fell["table"], fell["rows"]) == ("rows fell out", "small", 100)
    assert "not written for" in fell["last"]
    assert stats(servicer).tables[2].evicted == 400


@pytest.mark.parametrize("by", ["score", "show", "hits"])
def test_top_keys_of_what_rows_do_not_have_are_refused(servicer: Servicer, by: str) -> None:
    """A table of plain knows pushes only; a word that is none is told the nearest."""
    message = build_small(pb.TopKeysRequest(table="t", by=by, count=3, walk=77))

    with pytest.raises(errors.ConfigError, match=r"top-keys 't'"):
        call(servicer, "TopKeys", message)


@pytest.mark.timeout(60)
def test_a_shard_closes_when_its_walk_cannot_be_recorded(
    servicer: Servicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the journal is full and stays so: a restart goes on where the walk stood."""
    ask(servicer, day=3, walk=2)

    def full(*_: object) -> None:
        raise errors.StorageError("no space left on device")

    monkeypatch.setattr(servicer._recorder, "note", full)
    closing = threading.Thread(target=servicer.close, daemon=True)
    closing.start()
    closing.join(20.0)

    assert not closing.is_alive()
