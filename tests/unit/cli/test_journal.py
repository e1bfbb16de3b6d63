"""``pserver journal`` and ``pserver promote``: what they print, and what they refuse."""

import json
from pathlib import Path

import pytest

from pserver.cli.main import main
from pserver.journal.folder import segments
from pserver.journal.writer import Journal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a journal of three records."""
    journal = Journal(tmp_path, shard=1, num_shards=2)
    journal.begin()
    for kind, body in ((2, b"table"), (4, b"push"), (4, b"other")):
        journal.append(kind, body)
    journal.settle()
    journal.close()
    return tmp_path


def test_ls_lists_segments(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whose it is, how it was left, and each file with its records and bytes."""
    assert main(["journal", "ls", str(folder)]) == 0

    ((_, path),) = segments(folder)
    assert capsys.readouterr().out.splitlines() == [
        f"{folder}: shard 1 of 2, closed, fsync interval",
        f"{path.name}: records 1 to 3, bytes {path.stat().st_size}",
    ]


def test_verify_counts_what_is_whole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All records by kind; a torn end is told of; damage before it fails, with file and offset."""
    ((_, path),) = segments(folder)

    assert main(["journal", "verify", str(folder)]) == 0
    whole = capsys.readouterr().out
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["journal", "verify", str(folder), "--json"]) == 0
    torn = json.loads(capsys.readouterr().out)
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    assert main(["journal", "verify", str(folder)]) == 1

    assert whole == f"{folder}: records 1 to 3 are whole, bytes 14: Push 2, CreateTable 1\n"
    assert (torn["last"], torn["torn_bytes"]) == (2, 28 + 4)
    assert f"{path}: damaged at offset 56" in capsys.readouterr().err


def test_dump_shows_records(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One a line, from a position on, as many as asked for."""
    assert main(["journal", "dump", str(folder), "--after", "1", "--count", "1"]) == 0

    assert capsys.readouterr().out == f"2 Push bytes 4 {b'push'.hex()}\n"


def test_a_folder_without_a_journal_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named, with the status of a mistake."""
    assert main(["journal", "ls", str(tmp_path / "none")]) == 2
    assert "there is no journal" in capsys.readouterr().err


def test_promote_of_nobody_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that does not answer is named; an address that is none is a mistake."""
    assert main(["promote", "127.0.0.1:1", "--timeout", "0.1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert main(["promote", "nowhere"]) == 2
