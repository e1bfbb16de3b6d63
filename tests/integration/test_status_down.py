"""``pserver status`` when a shard is down: the tool is needed most then."""

import json
import subprocess
import sys

from tests.integration.servers import Start, endpoints, start_cluster


def test_status_shows_the_others_when_a_shard_is_down(start: Start) -> None:
    """The dead shard has a row that says down, the living one its own; exit 1 names the dead."""
    cluster = start_cluster(start, 2)
    names = endpoints(cluster)
    cluster[1].end()

    done = subprocess.run(
        [sys.executable, "-m", "pserver", "status", "--ps", names, "--timeout", "1", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    shards = json.loads(done.stdout)["shards"]
    assert [shard["state"] for shard in shards] == ["ready", "down"]
    assert [shard["endpoint"] for shard in shards] == names.split(",")
    assert cluster[1].endpoint in shards[1]["error"]
    assert done.returncode == 1
    assert cluster[1].endpoint in done.stderr
