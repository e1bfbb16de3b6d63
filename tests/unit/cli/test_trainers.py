"""What ``pserver status`` says of a group: each shard's view, put together."""

import io
import json
import math
import time

import pytest
from rich.console import Console

import pserver
from pserver.cli.trainers import group_facts, group_lines
from pserver.v1 import pserver_pb2 as pb
from tests.unit.trainers import WAIT_S, grads, joined, unit_table


def shard(*, open_round: int, missing: list[int], seen_s: float, staleness: int) -> pb.StatsReply:
    """Return what one shard says of a group of 2, of which trainer 1 never came."""
    return pb.StatsReply(
        group=pb.GroupStats(
            group=pb.GroupSpec(mode="sync", trainers=2, sync_divisor="samples", on_missing="drop"),
            open_round=open_round,
            missing=missing,
            trainers=[
                pb.TrainerStats(
                    trainer_id=0,
                    state="live",
                    host="a:1",
                    step=1200,
                    loss=0.5,
                    last_seen_s=seen_s,
                    staleness_max=staleness,
                ),
                pb.TrainerStats(trainer_id=1, state="absent", loss=math.nan, last_seen_s=-1.0),
            ],
        )
    )


def test_there_is_no_group_when_nobody_joined() -> None:
    """Status of servers that trainers only push to has none."""
    assert group_facts([pb.StatsReply(), pb.StatsReply()]) is None


def test_the_shard_that_is_behind_counts() -> None:
    """The lower open round, every missing trainer, the worst staleness, the latest heartbeat."""
    replies = [
        shard(open_round=8, missing=[], seen_s=2.0, staleness=1),
        shard(open_round=7, missing=[1], seen_s=0.5, staleness=4),
    ]

    facts = group_facts(replies)

    assert facts is not None
    assert (facts["open_round"], facts["missing"], facts["sync_divisor"]) == (7, [1], "samples")
    first, second = facts["members"]
    assert (first["step"], first["loss"], first["staleness_max"]) == (1200, 0.5, 4)
    assert first["last_seen_s"] == 0.5
    assert (second["state"], second["loss"], second["last_seen_s"]) == ("absent", None, None)
    json.dumps(facts, allow_nan=False)


def test_people_read_who_is_waited_for() -> None:
    """A line says round and divisor and who is missing; a row a trainer."""
    facts = group_facts([shard(open_round=7, missing=[1], seen_s=0.5, staleness=4)])
    assert facts is not None

    line, table = group_lines(facts)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table)
    text = console.export_text()

    assert line == "sync group of 2, round 7 is open, divided by samples, waiting for trainer 1"
    assert "1,200" in text
    assert "0.5 s ago" in text
    assert "never" in text


def test_metrics_tell_of_the_group() -> None:
    """Trainers by state, rounds, and staleness, without a label that names a trainer."""
    with pserver.Cluster(1) as cluster, joined(cluster, 2, mode="sync") as (a, b):
        a.client.create_table(unit_table())
        for trainer in (a, b):
            trainer.push({"t": grads([7], [1.0])}, round_number=1)
        a.pull([7], round_number=2)

        registry = cluster.shards[0].metrics.registry
        assert registry.get_sample_value("pserver_trainers", {"state": "live"}) == 2.0
        assert registry.get_sample_value("pserver_trainers", {"state": "left"}) == 0.0
        assert registry.get_sample_value("pserver_rounds_total") == 1.0
        assert registry.get_sample_value("pserver_parked_bytes") == 0.0
        assert registry.get_sample_value("pserver_staleness_versions_bucket", {"le": "0.0"}) == 0.0


def test_heartbeats_tell_of_auc_and_speed_when_a_trainer_says_them() -> None:
    """What a trainer gives its heartbeats is in the facts; a trainer that gives none, or has no AUC yet, has none."""
    with pserver.Cluster(1) as cluster, joined(cluster, 2, lease_s=0.3) as (a, _):
        told = [(math.nan, 5.0), (0.75, 1234.0)]
        a.group.tells(lambda: told[0] if len(told) == 2 else told[-1])

        def member(number: int) -> dict[str, object]:
            facts = group_facts(a.client.stats())
            assert facts is not None
            found: dict[str, object] = facts["members"][number]
            return found

        until = time.monotonic() + WAIT_S
        while member(0)["samples_per_s"] is None:
            assert time.monotonic() < until
        assert (member(0)["auc"], member(0)["samples_per_s"]) == (None, 5.0)
        told.pop(0)
        while member(0)["auc"] is None:
            assert time.monotonic() < until

        assert (member(0)["auc"], member(0)["samples_per_s"]) == (0.75, 1234.0)
        assert (member(1)["auc"], member(1)["samples_per_s"]) == (None, None)


@pytest.mark.parametrize("numbers", [[], [0], [0, 1, 1, 5], [2000, 3]])
def test_a_spread_of_several_counts_them_all(numbers: list[int]) -> None:
    """Joined spreads are the spread of all numbers; what is over 1023 is so in ``max`` only."""
    one, other, both = pserver.Spread(), pserver.Spread(), pserver.Spread()
    for place, number in enumerate(numbers):
        (one, other)[place % 2].add(number)
        both.add(number)

    joined_spread = pserver.Spread.joined([one, other])

    assert (joined_spread.count, joined_spread.max) == (both.count, both.max)
    assert [joined_spread.quantile(q) for q in (0.0, 0.5, 1.0)] == [
        both.quantile(q) for q in (0.0, 0.5, 1.0)
    ]
