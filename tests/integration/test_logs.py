"""Logs of real processes as JSON: a line is an object, from the settings to the last words."""

import json
import signal
import subprocess
from typing import Any

from tests.integration import forked
from tests.integration.servers import Start
from trainer.cli.main import main

ENDED_S = 60.0  # for a process with torch on a busy machine


def events(text: str) -> list[dict[str, Any]]:
    """Return the events of a log."""
    return [json.loads(line) for line in text.splitlines()]


def test_a_server_writes_json_from_its_start_to_its_end(start: Start) -> None:
    """Every line but the announced one is an object with the shard; drained is the last event."""
    server = start("--shard", "1", "--shards", "2", "--log-format", "json")
    server.wait_ready()
    server.send(signal.SIGTERM)

    status, printed = server.wait_exit()

    told = events("\n".join(line for line in printed.splitlines() if not line.startswith("shard ")))
    assert status == 0
    assert (told[0]["event"], told[-1]["event"]) == ("starting", "drained")
    assert {event["shard"] for event in told} == {1}


def test_a_server_that_cannot_start_says_what_to_do_as_its_last_event(start: Start) -> None:
    """A refused address is one event, with the commands that help and the exit status."""
    server = start("--bind", "0.0.0.0:0", "--log-format", "json")

    status, printed = server.wait_exit()

    last = events(printed)[-1]
    assert (status, last["status"], last["event"]) == (2, 2, "ended")
    assert "pserver certs make" in last["error"]


def test_a_trainer_writes_json_from_progress_to_the_failure() -> None:
    """Its steps are events with its number; so is its end, when no server answers."""

    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        return forked.run(main, "run", "--log-format=json", "--device=cpu", *flags, timeout=ENDED_S)

    small = ("--rows=256", "--batch-size=64", "--scale=0.001", "--model=lr", "--shards=1")
    done = run(*small)
    failed = run("--ps=127.0.0.1:1", "--give-up-after=1", "--barrier-timeout=1")

    progress = [event for event in events(done.stderr) if event["event"] == "progress"]
    assert done.returncode == 0
    assert progress[-1]["step"] == 4
    assert {"samples_per_s", "loss", "auc", "queue"} <= set(progress[-1])
    assert {event["trainer"] for event in progress} == {0}
    last = events(failed.stderr)[-1]
    assert (failed.returncode, last["status"], last["event"]) == (1, 1, "ended")
    assert "127.0.0.1:1" in last["error"]
