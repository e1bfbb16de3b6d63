"""``pserver status`` when a shard is down: the tool is needed most then."""

import json

from pserver.cli.main import main
from tests.integration import forked
from tests.integration.servers import WAIT_S, Start, endpoints, start_cluster


def test_status_shows_the_others_when_a_shard_is_down(start: Start) -> None:
    """The dead shard has a row that says down, the living one its own; exit 1 names the dead."""
    cluster = start_cluster(start, 2)
    names = endpoints(cluster)
    cluster[1].end()

    words = ("status", "--ps", names, "--timeout", "1", "--json")
    done = forked.run(main, *words, timeout=WAIT_S)

    shards = json.loads(done.stdout)["shards"]
    assert [shard["state"] for shard in shards] == ["ready", "down"]
    assert [shard["endpoint"] for shard in shards] == names.split(",")
    assert cluster[1].endpoint in shards[1]["error"]
    assert done.returncode == 1
    assert cluster[1].endpoint in done.stderr
