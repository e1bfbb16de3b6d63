"""How many series a shard's page has: a stated number, that tables make larger, and trainers do not."""

import pserver
from pserver.config import GroupSettings
from pserver.metrics import series_max
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import group_proto_of

TABLES, TRAINERS = 100, 64


def num_series(cluster: pserver.Cluster) -> tuple[int, int, int]:
    """Return the series of the shard's page, the methods on it, and the pairs of method and code."""
    families = list(cluster.shards[0].metrics.registry.collect())
    samples = [sample for family in families for sample in family.samples]
    answers = {
        (sample.labels["method"], sample.labels["code"])
        for sample in samples
        if "code" in sample.labels
    }
    return len(samples), len({method for method, _ in answers}), len(answers)


def join(client: pserver.Client, number: int) -> None:
    """Be one more trainer of the group."""
    settings = GroupSettings(trainers=TRAINERS, trainer_id=number)
    request = pb.JoinRequest(
        incarnation=client.shards[0].incarnation,
        trainer=number.to_bytes(16, "big"),
        trainer_id=number,
        group=group_proto_of(settings),
        lease_s=60.0,
        host=f"host-{number}",
    )
    client._ask("Join", [(0, request)], what="join")


def test_the_number_of_series_is_bounded_when_there_are_many_tables_and_trainers() -> None:
    """100 tables and 64 trainers stay under the stated number; one trainer has as many series as 64."""
    with pserver.Cluster(1) as cluster, cluster.connect() as client:
        for number in range(TABLES):
            client.create_table(pserver.TableSpec(name=f"t{number}", dim=1, optimizer="sgd"))
            client.push(f"t{number}", [number], [[1.0]])
        join(client, 0)
        few, _, _ = num_series(cluster)
        for number in range(1, TRAINERS):
            join(client, number)

        many, methods, answers = num_series(cluster)

        joined = cluster.shards[0].metrics.registry.get_sample_value(
            "pserver_trainers", {"state": "live"}
        )
    assert joined == TRAINERS
    assert many == few
    assert 12 * TABLES < many <= series_max(tables=TABLES, methods=methods, answers=answers)
