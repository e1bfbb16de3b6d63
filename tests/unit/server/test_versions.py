"""What a shard tells of checkpoints beside saving and loading them: the last one, and how old it is."""

from pathlib import Path

from tests.unit.checkpoint.helpers import KEYS, cluster, push, spec


def test_shards_tell_of_the_last_version_when_one_was_saved_or_restored(tmp_path: Path) -> None:
    """None at first; then its name and age on every shard, after a restart too."""
    with cluster(tmp_path, 2) as client:
        client.create_table(spec())
        push(client, KEYS)
        assert [shard.checkpoint for shard in client.stats()] == ["", ""]
        first = client.checkpoints.save().version
        assert [shard.checkpoint for shard in client.stats()] == [first] * 2
        push(client, KEYS)

        last = client.checkpoints.save().version

        assert [shard.checkpoint for shard in client.stats()] == [last] * 2
        assert all(0.0 <= shard.checkpoint_age_s < 600.0 for shard in client.stats())
        age = client.stats()[0].checkpoint_age_s

    with cluster(tmp_path, 2, restore=first) as client:
        assert [shard.checkpoint for shard in client.stats()] == [first] * 2
        assert client.stats()[0].checkpoint_age_s > age
