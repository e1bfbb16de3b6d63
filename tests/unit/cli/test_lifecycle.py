"""What ``pserver clear``, ``drop``, ``shrink`` and ``top-keys`` print, ask, and exit with."""

import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pserver
from pserver.cli import main as cli
from pserver.cli import shared as cli_shared

PS = ["--ps", "embedded", "--table", "ads"]
KEYS = np.arange(1, 201, dtype=np.uint64)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[pserver.Client]:
    """Return a client of two shards with a table of 200 rows; commands get this very client."""
    with pserver.embedded(2) as client:
        client.create_table(pserver.TableSpec(name="ads", dim=2, ttl_days=1))
        client.push("ads", KEYS, np.ones((KEYS.size, 2)))
        monkeypatch.setattr(cli_shared, "connect", lambda *_, **__: _Kept(client))
        yield client


class _Kept:
    """A client that outlives the command that uses it."""

    def __init__(self, client: pserver.Client) -> None:
        self._client = client

    def __enter__(self) -> pserver.Client:
        return self._client

    def __exit__(self, *_: object) -> None:
        pass


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return exit status, output and errors of a command line."""
    status = cli.main([words[0], *PS, *words[1:]])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Return the JSON that a command line prints."""
    status, out, err = run(capsys, *words, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def rows(client: pserver.Client) -> int:
    """Return the rows on all shards."""
    return sum(table.rows for stats in client.stats() for table in stats.tables)


@pytest.mark.parametrize("command", ["clear", "drop"])
def test_nothing_is_removed_unasked(
    client: pserver.Client, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nobody can be asked, the command is refused and says which flag it needs."""
    status, out, err = run(capsys, command)

    assert (status, out) == (2, "")
    assert err.startswith(f"pserver {command}: this would remove ")
    assert "--yes" in err
    assert rows(client) == 200


@pytest.mark.parametrize(("answer", "left"), [("ads\n", 0), ("yes\n", 200), ("", 200)])
def test_the_name_of_the_table_is_the_answer(
    client: pserver.Client,
    answer: str,
    left: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only who types it removes anything."""
    terminal = io.StringIO(answer)
    terminal.isatty = lambda: True  # type: ignore[method-assign] # a terminal in all that matters here
    monkeypatch.setattr("sys.stdin", terminal)

    status, out, _ = run(capsys, "clear")

    assert status == (2 if left else 0)
    assert "Type the table's name" in out
    assert rows(client) == left


def test_what_a_clear_removed_is_told(
    client: pserver.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows and bytes over all shards, for people and as JSON."""
    status, out, err = run(capsys, "clear", "--yes")

    assert (status, err) == (0, "")
    assert out.startswith("cleared table 'ads': 200 rows are gone, 0.2")
    assert out.endswith("MiB on 2 shards\n")
    facts = told(capsys, "clear", "--yes")
    assert (facts["table"], facts["rows"], facts["shards"]) == ("ads", 0, [0, 1])
    assert client.spec("ads").dim == 2


def test_dropping_what_is_not_there_is_fine(
    client: pserver.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second drop says so and exits 0; a clear of it exits 2."""
    assert told(capsys, "drop", "--yes")["rows"] == 200

    status, out, _ = run(capsys, "drop", "--yes")

    assert (status, out) == (0, "there was no table 'ads'; nothing was done\n")
    assert run(capsys, "clear", "--yes")[0] == 2


def test_a_dry_run_shows_what_would_go(
    client: pserver.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for the sums and a histogram; nothing changes."""
    run(capsys, "shrink", "--day", "2026-03-01")
    client.push("ads", KEYS[:50], np.ones((50, 2)))

    status, out, err = run(capsys, "shrink", "--day", "2026-03-03", "--dry-run")

    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == ("table 'ads', day 20515: 150 of 200 rows would go, 0.01 MiB")
    assert [line.split() for line in lines[1:]] == [
        ["days", "unseen", "rows", "would", "go"],
        ["under", "1", "50", "0"],
        ["2", "to", "3", "150", "150"],
    ]
    assert rows(client) == 200


def test_a_day_is_shrunk_once(client: pserver.Client, capsys: pytest.CaptureFixture[str]) -> None:
    """The same or an earlier day is said to be past, and exits 0."""
    assert told(capsys, "shrink", "--day", "7")["is_past"] is False

    status, out, _ = run(capsys, "shrink", "--day", "6")

    assert status == 0
    assert out == (
        "table 'ads' was shrunk for day 7 before; day 6 is not later, so nothing was done there\n"
    )
    assert told(capsys, "shrink", "--day", "7")["past_shards"] == [0, 1]
    assert rows(client) == 200


@pytest.mark.parametrize("day", ["0", "-1", "yesterday", "2026-13-01", "2147483648", "1.5", ""])
def test_a_day_that_is_none_is_refused(
    client: pserver.Client, day: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It must be a date or a whole number over 0."""
    status, _, err = run(capsys, "shrink", f"--day={day}")

    assert status == 2
    assert (
        f"--day: must be a date such as 2026-03-01, or a whole number in [1, 2147483647], got '{day}'"
        in err
    )
    assert client.num_shards == 2


def test_top_keys_are_listed_with_their_bounds(
    client: pserver.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """First how exact they are, then a line a key, most first."""
    for _ in range(300):
        client.push("ads", [5], [[0.0, 0.0]])

    status, out, err = run(capsys, "top-keys", "-n", "1")

    assert (status, err) == (0, "")
    first, _, line = out.splitlines()
    assert first.startswith("of about ")
    assert "may be up to 0 too low" in first
    assert line.split()[0] == "5"
    assert [entry["key"] for entry in told(capsys, "top-keys", "-n", "1")["keys"]] == [5]
    assert run(capsys, "top-keys", "-n", "0")[0] == 2


def test_rows_of_ctr_are_told_by_score(capsys: pytest.CaptureFixture[str]) -> None:
    """The reasons have a line, the histogram is of scores, keys are ordered by score or shows."""
    spec = pserver.TableSpec(name="ads", dim=2, accessor="ctr")
    with pserver.embedded(2) as client, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(cli_shared, "connect", lambda *_, **__: _Kept(client))
        client.create_table(spec)
        for turn in range(4):
            keys = KEYS[: 50 * (turn + 1)]
            client.push("ads", keys, np.zeros((keys.size, 2)), counts=np.full(keys.size, 4))

        status, out, _ = run(capsys, "shrink", "--day", "7")
        facts = told(capsys, "top-keys", "--by", "show", "-n", "3")
        scores = told(capsys, "top-keys", "--by", "score", "-n", "300")

    lines = out.splitlines()
    assert status == 0
    assert lines[0].startswith("table 'ads', day 7: 100 of 200 rows are gone")
    assert lines[1] == "100 for their score, 0 for their age (some for both)"
    assert lines[2].split() == ["score", "after", "the", "decay", "rows", "gone"]
    assert [entry["key"] for entry in facts["keys"]] == [1, 2, 3]
    assert {round(entry["value"], 2) for entry in facts["keys"]} == {15.68}
    assert (scores["seen"], len(scores["keys"])) == (100, 100)
