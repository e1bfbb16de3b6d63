"""``pserver checkpoint``: verbs, their one line, and what is refused."""

import json
from pathlib import Path

import pytest

from pserver.checkpoint.local import LocalStore
from pserver.checkpoint.tensors import encoded
from pserver.cli import main as cli
from tests.unit.checkpoint.helpers import KEYS, clients, cluster, push, spec


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A full version and a delta."""
    folder = tmp_path_factory.mktemp("versions")
    with cluster(folder, 2) as client:
        client.create_table(spec())
        push(client, KEYS)
        client.checkpoints.save()
        push(client, KEYS[:3])
        client.checkpoints.save(mode="delta")
    return folder


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    try:
        status = cli.main(["checkpoint", *words])
    except SystemExit as error:
        status = int(error.code or 0)
    captured = capsys.readouterr()
    return status, captured.out + captured.err


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            ["ls"],
            ["v00000001  20", "full: tables 1, rows 411", "delta on v00000001: tables 1, rows 3"],
        ),
        (["verify"], ["whole: v00000002"]),
        (["verify", "1"], ["whole: v00000001"]),
        (["verify", "--all"], ["whole: v00000001", "whole: v00000002"]),
        (["diff", "1", "latest"], ["t: rows added 0, removed 0, changed 3, the same 408; norm"]),
    ],
)
def test_a_verb_shows_its_facts(
    folder: Path, words: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """In lines, and as one object with --json."""
    verb, *rest = words
    status, text = run(capsys, verb, str(folder), *rest)
    _, json_text = run(capsys, verb, str(folder), *rest, "--json")

    assert status == 0
    assert all(part in text for part in parts), text
    assert isinstance(json.loads(json_text), dict)


def test_versions_are_folded_moved_and_pruned(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """merge writes into another folder, compact into the same, prune keeps the newest full ones."""
    other = str(tmp_path / "other")
    _, merged = run(capsys, "merge", str(folder), "--to", other)
    _, compacted = run(capsys, "compact", other)
    _, pruned = run(capsys, "prune", other, "--keep", "1")

    assert "v00000002 is written to" in merged
    assert "rows 411" in merged
    assert "v00000001 is written as v00000002" in compacted
    assert pruned == "removed v00000001; 1 versions stay\n"


@pytest.mark.parametrize(
    ("words", "status", "problem"),
    [
        (["ls", "nowhere"], 2, "folder nowhere: there is no such folder"),
        (
            ["save", "--ps", "a:1", "--mode", "4"],
            2,
            "unknown mode '4'; valid: 0, 1, 2, 3, 5, base, batch, delta, full, revert",
        ),
        (["sav"], 2, "invalid choice"),
        (["verify", "{}", "9"], 1, "no version '9'; the last ones are v00000001, v00000002"),
        (["prune", "{}", "--keep", "0"], 2, "--keep must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_must_hold(
    folder: Path,
    words: list[str],
    status: int,
    problem: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With exit status 2 for settings, 1 for what is not there."""
    found, text = run(capsys, *(word.format(folder) for word in words))

    assert (found, problem in text) == (status, True), text


def test_a_save_returns_at_once_or_waits_as_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --wait it names the version and how to follow it; wait and --wait tell of its end."""
    monkeypatch.setattr("pserver.cli.checkpoint._TELL_S", 0.0)
    with clients(tmp_path, 2) as connect:
        connect().create_table(spec())
        push(connect(), KEYS)
        monkeypatch.setattr("pserver.cli.main.connect_given", lambda _: connect())

        _, none = run(capsys, "wait", "--ps", "a:1")
        _, begun = run(capsys, "save", "--ps", "a:1")
        status, ended = run(capsys, "wait", "--ps", "a:1", "--json")
        _, delta = run(capsys, "save", "--ps", "a:1", "--delta", "--wait")

    assert "made no save since they were started" in none
    assert begun.startswith("saving v00000001: its cut is marked")
    assert "pserver checkpoint wait --ps a:1" in begun
    facts = json.loads(ended.splitlines()[0 if ended.startswith("{") else -1])
    assert (status, facts["version"], facts["rows"], facts["is_done"]) == (
        0,
        "v00000001",
        411,
        True,
    )
    assert "saved v00000002 (a delta to v00000001): rows 0" in delta


def test_a_save_that_is_under_way_is_listed_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the files and bytes that are there, and not as a version."""
    store = LocalStore(tmp_path)
    store.begin("v00000007")
    store.write("v00000007", "a", encoded([memoryview(b"12345")]))

    _, text = run(capsys, "ls", str(tmp_path))
    _, facts = run(capsys, "ls", str(tmp_path), "--json")

    assert "v00000007  not there yet: it is being saved, or was cut off; files 1, bytes 5" in text
    begun = [{"version": "v00000007", "files": 1, "bytes": 5}]
    assert json.loads(facts) == {"versions": [], "begun": begun}
