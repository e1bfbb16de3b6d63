"""What ``pserver ls``, ``inspect`` and ``plan`` tell, on shards inside this process."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

import pserver
from pserver.cli import main as cli
from pserver.cli import shared as cli_shared
from pserver.client.connect import make_client
from pserver.config import ClientSettings
from pserver.embedded import InProcessChannel, make_shards
from pserver.placement import partitions_of_shard
from pserver.server.servicer import Servicer
from tests.unit.server.messages import create

ADS = pserver.TableSpec(name="ads", dim=2, optimizer="adam", seed=3, capacity_max=999)
PS = ("--ps", "127.0.0.1:6170")


@pytest.fixture
def shards() -> Iterator[list[Servicer]]:
    """Return two shards, without tables."""
    shards = list(make_shards(2))
    yield shards
    for shard in shards:
        shard.close()


@pytest.fixture
def client(shards: list[Servicer], monkeypatch: pytest.MonkeyPatch) -> Iterator[pserver.Client]:
    """Return a client of the shards; the commands get one of their own."""

    class Channel(InProcessChannel):
        @override
        async def close(self) -> None:
            """Leave the shard open for the next client."""

    def connect(*_: object, **__: object) -> pserver.Client:
        return make_client(
            lambda: [Channel(shard) for shard in shards], settings=ClientSettings(), connect_s=5.0
        )

    monkeypatch.setattr(cli_shared, "connect", connect)
    with connect() as client:
        yield client


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return exit status, output and errors of a command line."""
    status = cli.main(words)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Return the JSON that a command line prints."""
    status, out, err = run(capsys, *words, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def test_tables_are_told_with_every_shard(
    client: pserver.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """``ls --json`` has the whole spec, the sums, and each shard's numbers and partitions."""
    spec = client.create_table(ADS)
    client.create_table(pserver.TableSpec(name="empty", dim=1))
    keys = np.arange(100, dtype=np.uint64)
    seconds = keys[pserver.shard_of(keys, 2) == 1]
    client.push("ads", keys, np.ones((100, 2)))
    client.push("ads", seconds, np.ones((seconds.size, 2)))
    stats = client.stats()

    ads, empty = told(capsys, "ls", *PS)["tables"]

    for field in ("name", "dim", "optimizer", "initializer", "seed", "capacity_max"):
        assert ads[field] == getattr(spec, field)
    assert (ads["rows"], ads["version_min"], ads["version_max"]) == (100, 1, 2)
    assert ads["bytes"] == sum(s.tables[0].bytes for s in stats)
    assert ads["bytes_per_row"] == ads["bytes"] / 100
    assert ads["missing_on"] == []
    for shard, (fact, one) in enumerate(zip(ads["shards"], stats, strict=True)):
        begin, end = partitions_of_shard(shard, 2)
        assert (fact["shard"], fact["endpoint"]) == (shard, f"embedded shard {shard}")
        assert (fact["first_partition"], fact["last_partition"]) == (begin, end - 1)
        for field in ("rows", "bytes", "version", "keys_pulled", "keys_pushed"):
            assert fact[field] == getattr(one.tables[0], field)
    assert (empty["rows"], empty["bytes_per_row"]) == (0, None)


def test_status_tells_of_bad_pushes_and_of_stopped_tables(
    client: pserver.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beneath the shards stands which table got NaN, from which trainer, and which one stopped."""
    client.create_table(dataclasses.replace(ADS, on_nan="fail"))
    with pytest.raises(pserver.NotFiniteError):
        client.push("ads", [7], [[np.nan, 0.0]])

    status, out, err = run(capsys, "status", *PS)

    shard = int(pserver.shard_of(np.array([7], np.uint64), 2)[0])
    assert (status, err) == (0, "")
    *_, stopped, bad = out.splitlines()
    assert stopped.startswith(
        f"table 'ads' on shard {shard} takes no more pushes: push 0 of trainer"
    )
    assert bad.startswith(f"table 'ads' on shard {shard}: 1 pushes with NaN")
    assert "value 0 of key 7 is nan" in bad
    facts = told(capsys, "status", *PS)["shards"]
    assert [len(fact["troubles"]) for fact in facts] == [2 * (s == shard) for s in range(2)]


def test_each_table_is_one_line(client: pserver.Client, capsys: pytest.CaptureFixture[str]) -> None:
    """``ls`` prints a line a table, with its rules in full, however long they are."""
    spec = client.create_table(ADS)
    client.create_table(pserver.TableSpec(name="empty", dim=1))
    client.push("ads", [7], np.ones((1, 2)))

    status, out, err = run(capsys, "ls", *PS)

    assert (status, err) == (0, "")
    (line,) = [line for line in out.splitlines() if line.lstrip().startswith("ads")]
    assert line.split()[:3] == ["ads", "sparse", "2"]
    rules = ["float32", "memory", spec.optimizer, spec.initializer]
    rules += ["plain", "always", "none", "nothing"]
    assert line.split()[5:] == ["0..1", "999", "3", *rules]
    (line,) = [line for line in out.splitlines() if line.lstrip().startswith("empty")]
    assert line.split()[2:7] == ["1", "0", "-", "0", f"{2**28:,}"]


def test_dense_tables_are_told_behind_the_sparse_ones(
    client: pserver.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kind, length, bytes and versions stand in a line of their own, and in ``--json``."""
    spec = client.create_dense(pserver.DenseSpec(name="top", length=1001, optimizer="adam"))
    client.create_table(ADS)
    client.init_dense("top", np.zeros(1001))
    client.push_dense("top", np.ones(1001))

    ads, top = told(capsys, "ls", *PS)["tables"]
    _, out, _ = run(capsys, "ls", *PS)

    assert (ads["kind"], top["kind"], top["length"]) == ("sparse", "dense", 1001)
    assert (top["version_min"], top["version_max"], top["missing_on"]) == (1, 1, [])
    assert top["bytes"] == 4 * (3 * 1001 + 2)
    assert [shard["length"] for shard in top["shards"]] == [500, 501]
    (line,) = [line for line in out.splitlines() if line.lstrip().startswith("top")]
    rules = [*"----", spec.optimizer, *"-----"]
    assert line.split() == ["top", "dense", "-", "1,001", "-", "1", *rules]


@pytest.mark.parametrize("words", [("ls",), ("ls", "--json")])
def test_no_tables_are_told_as_none(
    client: pserver.Client, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Servers without tables are no error."""
    assert client.num_shards == 2

    status, out, _ = run(capsys, *words, *PS)

    assert status == 0
    assert out in ("the servers have no tables\n", '{"tables": []}\n')


def test_tables_that_differ_between_shards_are_pointed_out(
    client: pserver.Client, shards: list[Servicer], capsys: pytest.CaptureFixture[str]
) -> None:
    """A table that one shard lacks, or has with another spec, is a warning beside the list."""
    create(shards[1], pserver.TableSpec(name="half", dim=1))
    for dim, shard in zip((4, 5), shards, strict=True):
        create(shard, pserver.TableSpec(name="odd", dim=dim))
    assert client.num_shards == 2

    status, out, err = run(capsys, "ls", *PS, "--json")

    assert status == 0
    assert {fact["name"]: fact["missing_on"] for fact in json.loads(out)["tables"]} == {
        "odd": [],
        "half": [0],
    }
    assert err.splitlines() == [
        "pserver ls: warning: table 'odd' has another spec on shard 1 (shown against that): "
        "dim: 4 against 5",
        "pserver ls: warning: table 'half' is missing on shard 0; create it again",
    ]


@pytest.mark.parametrize("text", ["-5", "-0x5", "0xFFFFFFFFFFFFFFFB", str(2**64 - 5)])
def test_row_of_a_key_is_told(
    client: pserver.Client, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """``inspect --json`` has where the key lives and its row; nothing counts it as pulled."""
    client.create_table(ADS)
    client.push("ads", [-5], np.ones((1, 2)))

    fact = told(capsys, "inspect", *PS, "--table", "ads", "--key", text)

    found = client.inspect("ads", -5)
    assert (fact["key"], fact["has_row"], fact["epoch"]) == (2**64 - 5, True, 1)
    assert (fact["shard"], fact["partition"]) == (found.shard, found.partition)
    assert fact["endpoint"] == f"embedded shard {found.shard}"
    assert np.array_equal(np.float32(fact["weights"]), found.weights)
    assert {name: len(values) for name, values in fact["state"].items()} == {"m": 2, "v": 2, "t": 1}
    assert sum(t.keys_pulled for s in client.stats() for t in s.tables) == 0


def test_row_of_a_key_is_shown_line_by_line(
    client: pserver.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """``inspect`` prints a name and its numbers on each line."""
    client.create_table(
        pserver.TableSpec(name="ads", dim=2, optimizer="adam", initializer="constant:value=0.5")
    )
    client.push("ads", [255], np.array([[0.0, 0.0]]))

    status, out, _ = run(capsys, "inspect", *PS, "--table", "ads", "--key", "0xff")

    found = client.inspect("ads", 255)
    assert status == 0
    assert out.splitlines() == [
        "table    ads, 1 pushes applied on this shard",
        "key      255 (0xff)",
        f"shard    {found.shard} at embedded shard {found.shard}, partition {found.partition}",
        "row      last changed in epoch 1; the table is in 1",
        "weights  0.5 0.5",
        "state m  0.0 0.0",
        "state v  0.0 0.0",
        "state t  1.0",
    ]


def test_key_without_a_row_is_shown_with_its_first_weights(
    client: pserver.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """``inspect`` of an unseen key says so, and makes no row; sgd has no state to show."""
    client.create_table(
        pserver.TableSpec(name="ads", dim=1, optimizer="sgd", initializer="constant:value=0.5")
    )

    before = run(capsys, "inspect", *PS, "--table", "ads", "--key", "7")
    assert [t.rows for s in client.stats() for t in s.tables] == [0, 0]
    client.pull("ads", [7])
    after = run(capsys, "inspect", *PS, "--table", "ads", "--key", "7")

    assert before[0] == after[0] == 0
    assert before[1].splitlines()[-2:] == [
        "row       none; a pull or push would make one",
        "reads as  0.5",
    ]
    assert after[1].splitlines()[-2:] == ["weights  0.5", "state    none"]


def test_unknown_table_exits_2_with_the_nearest(
    client: pserver.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table that is not there is one line with the nearest name, exit 2."""
    client.create_table(ADS)

    assert run(capsys, "inspect", *PS, "--table", "adds", "--key", "1") == (
        2,
        "",
        "pserver inspect: no table 'adds'; did you mean 'ads'? Valid: ads\n",
    )


def test_plan_is_told_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """``plan --json`` takes either form of a number and needs no server."""
    words = ("plan", "--dim", "16", "--optimizer", "adagrad", "--shards", "8")

    one = told(capsys, *words, "--rows", "2e9")
    other = told(capsys, *words, "--rows", "2_000_000_000")

    assert one == other
    assert one["rows"] == 2 * 10**9
    assert one["is_capacity_enough"] is True
    assert one["shard_rows"] == 250_000_000
    assert (one["weights_bytes"], one["state_bytes"], one["epoch_bytes"]) == (64, 64, 4)
    assert one["row_bytes"] == 132 + one["index_bytes"]


def test_plan_is_shown_with_the_load_of_the_index(capsys: pytest.CaptureFixture[str]) -> None:
    """``plan`` prints each figure, and where the index's load comes from."""
    status, out, err = run(capsys, "plan", "--rows", "1e6", "--optimizer", "sgd")

    lines = dict(line.split("  ", maxsplit=1) for line in out.splitlines() if line[0] != " ")
    assert (status, err) == (0, "")
    assert lines["table"].strip() == "1,000,000 rows of dim 16 on 1 shard"
    assert lines["capacity_max"].strip().endswith("rows a shard: enough, 1,000,000 are needed")
    assert "state        0: none" in out
    assert "16 bytes a bucket, 48 % of them filled" in out
    assert "doubles its buckets when they are 1/2 to 3/4 full" in out


def test_plan_says_what_lies_in_memory_and_what_on_a_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With ``--storage file`` the largest shard is split; weights are shown with their dtype."""
    words = ("plan", "--rows", "1e6", "--optimizer", "sgd", "--row-dtype", "bfloat16")

    status, out, _ = run(capsys, *words, "--storage", "file")

    assert status == 0
    assert "  weights      32: bfloat16" in out
    assert "  file         30.52 MiB for weights and state" in out
    assert "MiB for keys and epochs" in out
    assert "keys and epochs" not in run(capsys, *words)[1]


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("--shards", "2"), "too small; make it 50,949, or take 11 shards or more"),
        (("--rows", "3e9", "--capacity-max", "2e9"), "too small; take 2 shards or more"),
        (("--rows", "3e9", "--capacity-max", "5"), "too small; raise it, and take more shards"),
    ],
)
def test_plan_says_what_to_do_when_there_is_no_room(
    words: tuple[str, ...], advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Too small a capacity is told with the capacity and the shards that would do."""
    given = ("--rows", "1e5", "--capacity-max", "1e4", *words)

    status, out, _ = run(capsys, "plan", *given)

    assert status == 0
    assert advice in out


def test_plan_that_cannot_be_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    """A number out of range is one line, exit 2."""
    assert run(capsys, "plan", "--rows", "0") == (
        2,
        "",
        "pserver plan: --rows must be in [1, 2199023254528], got 0\n",
    )
