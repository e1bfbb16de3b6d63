"""A session of the pserver role, run by the interpreter of an environment that has no torch and none of the tests.

It serves, asks for the status, pulls and pushes, saves, ends the server and restores the version in another one.
``python role_session.py FOLDER`` prints one JSON object of what it saw; anything unexpected is an exception.
"""

import contextlib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import pserver

PROGRAM = str(Path(sys.executable).with_name("pserver"))
WAIT_S = 300.0  # a fresh environment compiles first
SETTINGS = pserver.ClientSettings(timeout_s=WAIT_S, try_timeout_s=WAIT_S)


@contextlib.contextmanager
def server(*flags: str) -> Iterator[str]:
    """Serve, and give the endpoint; the server must drain and exit 0."""
    command = [PROGRAM, "serve", "--bind=127.0.0.1:0", *flags]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        found = next(filter(None, (re.search(r"ready on (\S+)", line) for line in child.stdout)))
        yield found[1]
        child.terminate()
        child.communicate(timeout=WAIT_S)
        assert child.returncode == 0, child.returncode
    finally:
        child.kill()
        child.wait(WAIT_S)


def told(*words: str) -> str:
    """Return what a command prints."""
    return subprocess.run(
        [PROGRAM, *words], check=True, stdout=subprocess.PIPE, text=True, timeout=WAIT_S
    ).stdout


def session(folder: Path) -> dict[str, object]:
    """Do it; see the module."""
    keys = np.array([3, 5, 2**64 - 1], np.uint64)
    place = f"--checkpoint-dir={folder / 'ckpt'}"
    with server(place) as endpoint:
        status = json.loads(told("status", f"--ps={endpoint}", "--timeout=60", "--json"))
        with pserver.connect(endpoint, settings=SETTINGS, connect_s=WAIT_S) as client:
            client.create_table(
                pserver.TableSpec(name="ads", dim=2, optimizer="sgd:lr=1", initializer="zeros")
            )
            client.push("ads", keys, np.full((3, 2), 0.5, np.float32))
            pushed = client.pull("ads", keys)
        told("checkpoint", "save", f"--ps={endpoint}", "--wait")
    with (
        server(place, "--restore=latest") as endpoint,
        pserver.connect(endpoint, settings=SETTINGS, connect_s=WAIT_S) as client,
    ):
        restored = client.peek("ads", keys)
    return {
        "version": told("--version").split()[-1],
        "has_torch": importlib.util.find_spec("torch") is not None,
        "states": [shard["state"] for shard in status["shards"]],
        "pushed": pushed.tolist(),
        "restored": restored.tolist(),
        "from": str(Path(pserver.__file__).parent),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(session(Path(sys.argv[1]))))
