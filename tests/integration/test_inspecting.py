"""``pserver ls`` and ``pserver inspect`` against two real servers, as a user types them."""

import json
import re
import subprocess

import numpy as np

import pserver
from pserver.cli.main import main
from tests.integration import forked
from tests.integration.servers import WAIT_S, Server, endpoints


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return forked.run(main, *words, timeout=WAIT_S, env={"COLUMNS": "80"})


def test_tables_and_rows_of_two_servers_are_told(pair: list[Server]) -> None:
    """What was pushed over the network is what ``ls`` and ``inspect`` say of it, key by key."""
    keys = np.array([0, 1, 7, 2**63, 2**64 - 1], np.uint64)
    names = endpoints(pair)
    with pserver.connect(names, connect_s=WAIT_S) as client:
        client.create_table(
            pserver.TableSpec(name="told", dim=2, optimizer="momentum:lr=1", initializer="zeros")
        )
        client.push("told", keys, np.ones((keys.size, 2)))
    owners = pserver.shard_of(keys, 2).tolist()
    assert set(owners) == {0, 1}

    listed = run("ls", "--ps", names, "--json")

    assert (listed.returncode, listed.stderr) == (0, "")
    (table,) = [t for t in json.loads(listed.stdout)["tables"] if t["name"] == "told"]
    assert (table["rows"], table["optimizer"]) == (5, "momentum:lr=1.0,momentum=0.9")
    assert [shard["rows"] for shard in table["shards"]] == [owners.count(0), owners.count(1)]
    assert [shard["endpoint"] for shard in table["shards"]] == [s.endpoint for s in pair]
    assert [shard["first_partition"] for shard in table["shards"]] == [0, 512]

    told = run("inspect", "--ps", names, "--table", "told", "--key", "-0x1", "--json")

    assert (told.returncode, told.stderr) == (0, "")
    fact = json.loads(told.stdout)
    assert (fact["key"], fact["has_row"]) == (2**64 - 1, True)
    assert (fact["shard"], fact["endpoint"]) == (owners[-1], pair[owners[-1]].endpoint)
    assert (fact["weights"], fact["state"]) == ([-1.0, -1.0], {"m": [1.0, 1.0]})

    missing = run("inspect", "--ps", names, "--table", "told", "--key", "2")
    assert missing.returncode == 0
    assert re.search(r"^row +none; a pull or push would make one$", missing.stdout, re.MULTILINE)
    assert "told" in run("ls", "--ps", names).stdout
    with pserver.connect(names) as client:
        tables = [t for s in client.stats() for t in s.tables if t.table == "told"]
        assert sum(table.rows for table in tables) == 5
        assert sum(table.keys_pulled for table in tables) == 0


def test_mistakes_are_one_line_with_their_status(pair: list[Server]) -> None:
    """An unknown table exits 2 and names the nearest; servers that do not fit exit 1."""
    names = endpoints(pair)
    with pserver.connect(names, connect_s=WAIT_S) as client:
        client.create_table(pserver.TableSpec(name="known", dim=1))

    unknown = run("inspect", "--ps", names, "--table", "knwon", "--key", "1")
    alone = run("ls", "--ps", pair[1].endpoint)

    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert unknown.stderr.startswith("pserver inspect: no table 'knwon'; did you mean 'known'?")
    assert (alone.returncode, alone.stdout) == (1, "")
    assert alone.stderr.startswith(f"pserver ls: {pair[1].endpoint} is shard 1 of a cluster")
    assert unknown.stderr.count("\n") == alone.stderr.count("\n") == 1
