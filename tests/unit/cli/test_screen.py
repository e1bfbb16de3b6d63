"""What ``cli.screen`` promises: lines that fit, what goes first, and the order that was asked for."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.cli.screen import SHARD_COLUMNS, View, screen
from pserver.cli.shards import down_facts, shard_facts
from pserver.cli.trainers import group_facts
from pserver.errors import UnavailableError
from pserver.v1 import pserver_pb2 as pb


def stats(shard: int, *, trainers: int = 0, pulls_per_s: float = 10.0) -> pb.StatsReply:
    """Return what a shard says."""
    reply = pb.StatsReply(
        server=pb.DescribeReply(shard_index=shard, state="ready"),
        uptime_s=3725.0,
        memory_bytes=300 << 20,
        queued=shard,
        checkpoint="v00000001",
        checkpoint_age_s=75.0,
        tables=[pb.TableStats(table="ads", rows=1_234_567, bytes=1 << 30)],
        methods=[pb.MethodStats(method="Pull", calls_per_s=pulls_per_s, p99_s=0.0123)],
    )
    if trainers:
        reply.group.CopyFrom(
            pb.GroupStats(
                group=pb.GroupSpec(mode="async", trainers=trainers),
                trainers=[
                    pb.TrainerStats(
                        trainer_id=number,
                        state="live",
                        host=f"host-{number}:1",
                        step=100 * number,
                        loss=0.5,
                        auc=0.75,
                        samples_per_s=1000.0 * number,
                        staleness_p99=number,
                        last_seen_s=1.0,
                    )
                    for number in range(trainers)
                ],
            )
        )
    return reply


def facts(shards: int = 2, trainers: int = 0, *, down: int | None = None) -> dict[str, Any]:
    """Return the facts of a cluster."""
    replies = [stats(shard, trainers=trainers, pulls_per_s=10.0 * shard) for shard in range(shards)]
    listed = [shard_facts(f"10.0.0.{shard}:6170", reply) for shard, reply in enumerate(replies)]
    if down is not None:
        listed[down] = down_facts("10.0.0.9:6170", down, UnavailableError("no answer from it"))
    return {"at": "2026-01-31T12:34:56+00:00", "shards": listed, "group": group_facts(replies)}


def lines(text: Any) -> list[str]:
    """Return the lines of a screen."""
    return [line.rstrip() for line in text.plain.split("\n")]


def column(shown: list[str], begin: str) -> list[str]:
    """Return the first word of each row below the head that begins with a word."""
    head = next(place for place, line in enumerate(shown) if line.startswith(begin))
    words = []
    for line in shown[head + 1 :]:
        found = re.match(r"\s*(\d+)\s", line)
        if found is None:
            break
        words.append(found[1])
    return words


def test_a_screen_has_sums_shards_and_trainers() -> None:
    """A wide terminal shows every column of both lists."""
    shown = lines(screen(facts(2, 2), View(), width=140, height=24))

    assert shown[0].startswith("2 of 2 shards  10 pulls/s  0 pushes/s  2.47M rows  600 MiB")
    assert all(column.head in shown[1] for column in SHARD_COLUMNS)
    for part in ("ready", "12.3", "300 MiB", "1.23M", "1m15s", "1h2m", "10.0.0.0:6170"):
        assert part in shown[2]
    assert "async group of 2" in shown
    assert {"live", "1,000", "0.5000", "0.7500", "host-1:1"} <= set(shown[8].split())
    assert shown[-1].startswith("q quit")


@given(
    width=st.integers(1, 200),
    height=st.integers(1, 60),
    shards=st.integers(1, 40),
    trainers=st.integers(0, 70),
    down=st.booleans(),
)
def test_nothing_is_wider_or_longer_than_the_terminal(
    width: int, height: int, shards: int, trainers: int, *, down: bool
) -> None:
    """Whatever there is to show, it fits."""
    told = facts(shards, trainers, down=0 if down else None)

    text = screen(told, View(), width=width, height=height)

    shown = text.plain.split("\n")
    assert len(shown) <= height
    assert max(map(len, shown)) <= width


def test_a_small_terminal_keeps_what_matters() -> None:
    """At 44 by 9, rates and losses stay, and both shards and both trainers are there."""
    shown = lines(screen(facts(2, 2), View(), width=44, height=9))

    assert column(shown, "shard") == ["0", "1"]
    assert column(shown, "trainer") == ["0", "1"]
    assert "pulls/s" in shown[1]
    assert "endpoint" not in shown[1]


def test_rows_that_do_not_fit_are_counted() -> None:
    """Of 40 shards and 64 trainers on 24 lines some are shown, and the rest is said."""
    shown = lines(screen(facts(40, 64), View(), width=80, height=24))

    hidden = [int(line.split()[1]) for line in shown if line.endswith("more")]
    assert hidden[0] == 40 - len(column(shown, "shard"))
    assert hidden[1] == 64 - len(column(shown, "trainer"))
    assert len(shown) == 24


def test_keys_sort_reverse_and_pause() -> None:
    """s and t go through the columns, the largest number first; r turns the order round; p says so."""
    told = facts(3, 3)
    view = View().after("s").after("s")
    assert SHARD_COLUMNS[view.shards_by].head == "pulls/s"

    assert column(lines(screen(told, View(), width=80, height=24)), "shard") == ["0", "1", "2"]
    assert column(lines(screen(told, view, width=80, height=24)), "shard") == ["2", "1", "0"]
    turned = lines(screen(told, view.after("r"), width=80, height=24))
    assert column(turned, "shard") == ["0", "1", "2"]
    assert "pulls/s*" in turned[1]
    by_speed = View().after("t").after("t")
    assert column(lines(screen(told, by_speed, width=80, height=24)), "trainer") == list("210")
    assert "paused" in lines(screen(told, View().after("p"), width=80, height=24))[0]
    assert View().after("p").after(" ") == View()
    assert View().after("x") == View()


def test_what_is_wrong_stands_on_top() -> None:
    """A shard that is down is counted and its error told; the others are summed without it."""
    shown = lines(screen(facts(2, down=1), View(), width=100, height=20))

    assert shown[0].startswith("1 of 2 shards  0 pulls/s")
    assert shown[1] == "no answer from it"
    assert "down" in shown[4]


@pytest.mark.parametrize("height", [1, 24])
def test_the_first_screen_asks(height: int) -> None:
    """Before the first answer it says what it waits for."""
    assert lines(screen(None, View(), width=80, height=height)) == ["asking the servers ..."]
