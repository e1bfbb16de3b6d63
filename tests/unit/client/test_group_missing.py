"""Trainers that do not come, go, or come back: who is named, and what is applied."""

import functools
import re
from collections.abc import Iterator

import pytest

import pserver
from tests.unit.trainers import Trainer, at_once, grads, joined, unit_table

SOON_S = 0.3
"""A barrier's limit in these tests."""


@pytest.fixture
def cluster() -> Iterator[pserver.Cluster]:
    """Two shards with one table of dim 1."""
    with pserver.Cluster(2) as made, made.connect() as client:
        client.create_table(unit_table())
        yield made


def push(trainer: Trainer, round_number: int, value: float = 6.0) -> None:
    """Send a part of key 7."""
    trainer.push({"t": grads([7], [value])}, round_number=round_number)


def rejoin(cluster: pserver.Cluster, trainer: Trainer, **changes: object) -> Trainer:
    """Join under a trainer's id with a client of its own, which stays open with the cluster."""
    client = cluster.connect()
    settings = trainer.group.settings.model_copy(update=changes)
    try:
        return Trainer(client, client.join(settings))
    except BaseException:
        client.close()
        raise


def test_the_missing_are_named_when_a_barrier_ends_in_failure(cluster: pserver.Cluster) -> None:
    """Every call of the others says who, its last round, and when it was last seen."""
    with joined(cluster, 3, mode="sync", barrier_timeout=SOON_S) as trainers:
        for trainer in trainers:
            push(trainer, 1)
        for trainer in trainers[:2]:
            push(trainer, 2)

        for trainer in trainers[:2]:
            with pytest.raises(pserver.BarrierError) as failure:
                trainer.pull([7], round_number=3)
            text = str(failure.value)
            assert "round 2: no part of 1 of 3 trainers within 0.3 s" in text
            assert re.search(
                r"trainer 2 \(process 1 of .*\): last round 1, last seen \d+\.\d s", text
            )
        push(trainers[2], 2)
        with pytest.raises(pserver.BarrierError, match="round 2"):
            trainers[2].client.flush()
        assert trainers[0].client.peek("t", [7]).tolist() == [[-6.0]]


def test_one_that_never_came_is_named_too(cluster: pserver.Cluster) -> None:
    """The group has as many trainers as was said, whether they have come or not."""
    with joined(cluster, 1, mode="sync", trainers=2, barrier_timeout=SOON_S) as (trainer,):
        push(trainer, 1)

        with pytest.raises(
            pserver.BarrierError, match="missing are trainer 1: last round 0, never"
        ):
            trainer.pull([7], round_number=2)


def test_the_others_go_on_when_the_missing_are_dropped(cluster: pserver.Cluster) -> None:
    """D follows: 6 and 6 over 2, not over 3. The dropped one is told so, and may come back."""
    with joined(
        cluster,
        3,
        mode="sync",
        on_missing="drop",
        sync_divisor="registered",
        barrier_timeout=SOON_S,
    ) as trainers:
        for trainer in trainers[:2]:
            push(trainer, 1)
        for trainer in trainers[:2]:
            assert trainer.pull([7], round_number=2).tolist() == [[-6.0]]

        with pytest.raises(pserver.GroupError, match=r"trainer 2 .* was dropped: round 1"):
            trainers[2].pull([7], round_number=1)
        back = rejoin(cluster, trainers[2])
        assert back.group.first_round == 2
        for trainer in (*trainers[:2], back):
            push(trainer, 2, 9.0)
        assert back.pull([7], round_number=3).tolist() == [[-15.0]]
        back.client.close()


def test_a_round_goes_on_waiting_when_it_was_told_to(
    cluster: pserver.Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """With on_missing wait nobody fails, however often the limit passes: four times here."""
    with joined(cluster, 2, mode="sync", on_missing="wait", barrier_timeout=0.05) as (a, b):
        push(a, 1)
        pending = a.group.start_pull({"t": grads([7], [0.0])[0]}, round_number=2)
        limits = 0
        while limits < 4:  # each tells of itself by a line in the log
            limits = capsys.readouterr().out.count("a sync round waits") + limits

        push(b, 1)

        assert pending.result()[0].tolist() == [[-6.0]]


def test_a_barrier_may_take_longer_than_a_call(
    cluster: pserver.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that gives a call 1 s waits for the others as long as the barrier allows (B6)."""
    monkeypatch.setattr("pserver.server.waiting.HOLD_S", 0.05)
    monkeypatch.setattr("pserver.client.group.HOLD_S", 0.05)
    hasty = pserver.ClientSettings(timeout_s=1.0)
    with joined(cluster, 2, client=hasty, mode="sync", barrier_timeout=30.0) as (a, b):
        push(a, 1)
        pending = a.group.start_pull({"t": grads([7], [0.0])[0]}, round_number=2)
        held = 0
        while held < 25:  # times that a server held the pull for 0.05 s and let it ask again
            methods = [m for shard in b.client.stats() for m in shard.methods]
            held = sum(method.errors for method in methods if method.method == "Pull")

        push(b, 1)

        assert pending.result()[0].tolist() == [[-6.0]]
        assert a.client.retries == 0


def test_two_live_trainers_of_one_id_are_refused(cluster: pserver.Cluster) -> None:
    """Both are named as soon as the first one is heard from again."""
    with (
        joined(cluster, 2, mode="sync", lease_s=0.3) as trainers,
        pytest.raises(pserver.GroupError, match=r"trainer 1 is running already: .* came under"),
    ):
        rejoin(cluster, trainers[1])


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"mode": "async"}, "mode sync, .* with mode async"),
        ({"trainers": 3}, "trainers 2, .* with trainers 3"),
        ({"sync_divisor": "samples"}, "sync_divisor contributors, .* sync_divisor samples"),
    ],
)
def test_a_trainer_that_wants_another_group_is_refused(
    cluster: pserver.Cluster, change: dict[str, object], difference: str
) -> None:
    """The one that is there and the one that came are named with what differs."""
    with (
        joined(cluster, 1, mode="sync", trainers=2) as (trainer,),
        pytest.raises(pserver.GroupError, match=f"trainer 0 .* runs with {difference}"),
    ):
        rejoin(cluster, trainer, trainer_id=1, **change)


def test_e6_a_trainer_that_comes_back_replaces_its_old_process(cluster: pserver.Cluster) -> None:
    """Its acknowledged part counts, it goes on behind it, and what the old one sends is refused."""
    with joined(cluster, 2, mode="sync", lease_s=0.3) as (a, b):
        push(b, 1, 2.0)
        b.client.flush()
        b.group._beating.cancel()  # it is not heard from any more

        back = rejoin(cluster, b)
        assert back.group.first_round == 2
        push(a, 1, 4.0)
        assert back.pull([7], round_number=2).tolist() == [[-3.0]]
        push(b, 2)
        with pytest.raises(pserver.GroupError, match=r"process 1 of .* was replaced by process 2"):
            b.client.flush()
        push(a, 2, 4.0)
        push(back, 2, 2.0)
        assert a.pull([7], round_number=3).tolist() == [[-6.0]]
        back.client.close()


def test_a_trainer_that_was_silent_is_taken_back(cluster: pserver.Cluster) -> None:
    """A lease that ended costs nothing if the trainer is heard from before the barrier ends."""
    with joined(cluster, 2, mode="sync", lease_s=0.2) as (a, b):
        b.group._beating.cancel()
        states: list[str] = []
        while "expired" not in states:
            states = [t.state for t in a.client.stats()[0].group.trainers]
        assert states == ["live", "expired"]

        b.group._beating = b.group._way.runtime.submit(b.group._beat())
        push(a, 1)
        push(b, 1)

        assert a.pull([7], round_number=2).tolist() == [[-6.0]]


def test_a_group_that_failed_is_over_and_another_one_begins(cluster: pserver.Cluster) -> None:
    """The old trainers stay refused; rounds go on counting; nothing of the failed round counts."""
    with joined(cluster, 2, mode="sync", barrier_timeout=SOON_S) as old:
        push(old[0], 1)
        with pytest.raises(pserver.BarrierError):
            old[0].pull([7], round_number=2)

        with joined(cluster, 2, mode="sync", sync_divisor="samples") as new:
            first = new[0].group.first_round
            for trainer in new:
                push(trainer, first, 1.0)
            assert new[0].pull([7], round_number=first + 1).tolist() == [[-1.0]]
            with pytest.raises(pserver.GroupError, match="no longer in a group: round 1"):
                old[1].pull([7], round_number=1)


def test_what_waits_is_bounded(cluster: pserver.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that would pass the limit end the group, with the limit in the message."""
    monkeypatch.setattr("pserver.server.rounds.PARKED_BYTES_MAX", 100)
    with joined(cluster, 2, mode="sync") as (a, _):
        a.push({"t": grads(range(64), [1.0] * 64)}, round_number=1)

        with pytest.raises(pserver.BarrierError, match="would pass 100 bytes"):
            a.client.flush()


def test_a_late_trainer_begins_at_one_round_on_every_shard(cluster: pserver.Cluster) -> None:
    """Trainer 1 comes when trainer 0 has sent three rounds: all of them wait for it."""
    with joined(cluster, 1, mode="sync", trainers=2) as (a,):
        push(a, 1)
        push(a, 2)
        late = rejoin(cluster, a, trainer_id=1)
        assert late.group.first_round == 1

        for number in (1, 2):
            push(late, number)

        results = at_once(
            functools.partial(a.pull, [7], round_number=3),
            functools.partial(late.pull, [7], round_number=3),
        )
        assert [weights.tolist() for weights in results] == [[[-12.0]], [[-12.0]]]
        late.client.close()


def test_the_part_of_one_that_left_counts_as_its_own(cluster: pserver.Cluster) -> None:
    """It sent round 1 and left before the others did: D of registered is 2, not 1."""
    with joined(cluster, 2, mode="sync", sync_divisor="registered") as (a, b):
        push(b, 1, 4.0)
        b.client.flush()
        b.group.leave()
        push(a, 1, 8.0)

        assert a.pull([7], round_number=2).tolist() == [[-6.0]]


def test_a_client_too_hasty_for_a_group_is_refused(cluster: pserver.Cluster) -> None:
    """Its tries would end before a server tells it to ask again."""
    hasty = pserver.ClientSettings(try_timeout_s=0.4)
    with (
        cluster.connect(settings=hasty) as client,
        pytest.raises(pserver.ConfigError, match=r"must be over 0.5 s, .*; got 0.4 s"),
    ):
        client.join(pserver.GroupSettings(mode="sync"))
