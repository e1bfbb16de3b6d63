"""What ``python -m bench`` promises: one benchmark by its name, and errors that name the nearest."""

import json

import pytest

from bench import __main__ as command
from bench import collective, kernel, modes, overlap, rpc, start, table, train, wire

MODULES = {
    "kernel": kernel,
    "table": table,
    "start": start,
    "wire": wire,
    "rpc": rpc,
    "train": train,
    "modes": modes,
    "overlap": overlap,
    "collective": collective,
}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, int]]]:
    """Return which benchmarks would have run, and with what; none does."""
    calls: list[tuple[str, dict[str, int]]] = []
    monkeypatch.setattr(command, "keep_large_blocks", lambda: None)
    monkeypatch.setenv("OMP_WAIT_POLICY", "")  # which the command sets if nobody has
    for name, module in MODULES.items():

        def run(name: str = name, **options: int) -> dict[str, float]:
            calls.append((name, options))
            return {"figure": 1.5}

        monkeypatch.setattr(module, "run", run)
    return calls


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_runs_by_its_name(
    name: str, ran: list[tuple[str, dict[str, int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each name runs its benchmark alone, with the standard rows where a table is filled."""
    assert command.main([name, "--json"]) == 0

    has_rows = name in ("kernel", "table", "rpc")
    assert ran == [(name, {"num_rows": 8_000_000} if has_rows else {})]
    assert json.loads(capsys.readouterr().out)["bench"] == name


def test_rows_are_handed_on(ran: list[tuple[str, dict[str, int]]]) -> None:
    """``--rows`` makes a smaller table."""
    assert command.main(["table", "--rows", "1000"]) == 0
    assert ran == [("table", {"num_rows": 1000})]


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        ([], "NAME"),
        (["kernle"], "invalid choice: 'kernle'"),
        (["wire", "--rows", "3"], "unknown option --rows"),
        (["kernel", "--row", "3"], "unknown option --row; did you mean '--rows'?"),
        (["load"], "the following arguments are required: --ps"),
        (["load", "--ps", "a:1", "--loop", "half"], "invalid choice: 'half'"),
        (["load", "--ps", "a:1", "--second", "3"], "did you mean '--seconds'?"),
    ],
)
def test_usage_errors_exit_2(
    words: list[str],
    fact: str,
    ran: list[tuple[str, dict[str, int]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A name or flag that does not exist exits 2; nothing runs."""
    with pytest.raises(SystemExit, match="2"):
        command.main(words)

    assert fact in capsys.readouterr().err
    assert ran == []
