"""``pserver top`` on a terminal and ``pserver web`` in a browser, with real servers and a trainer."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pserver
from pserver.cli.main import main
from tests.integration import forked
from tests.integration.browser import CHROMIUM, browser
from tests.integration.servers import WAIT_S, Server, endpoints

ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][A-Z0-9])")


class Terminal:
    """A command on a pty: what it wrote, without escapes, and keys for it."""

    def __init__(self, *words: str, lines: int, columns: int) -> None:
        """Start it on a terminal of that size."""
        self._number, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(other)
        self._other = other  # kept open, so that its settings can be looked at in the end
        environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pserver", *words],
            stdin=other,
            stdout=other,
            stderr=other,
            env={**environ, "TERM": "xterm-256color"},
        )
        self.text = ""

    def wait(self, pattern: str) -> None:
        """Return once a pattern is in what came since the last wait."""
        until = time.monotonic() + WAIT_S
        while (found := re.search(pattern, self.text)) is None:
            assert time.monotonic() < until, f"no {pattern!r} in {self.text[-2000:]!r}"
            self._read()
        self.text = self.text[found.end() :]

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._number, keys.encode())

    def settings(self) -> list[object]:
        """Return how the terminal is set now."""
        return termios.tcgetattr(self._other)

    def _read(self) -> None:
        ready, _, _ = select.select([self._number], [], [], 0.2)
        if ready:
            self.text += ESCAPES.sub("", os.read(self._number, 65536).decode(errors="replace"))

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait(WAIT_S)
        os.close(self._number)
        os.close(self._other)


def fill(ps: str) -> None:
    """Give a cluster rows and some calls."""
    with pserver.connect(ps, connect_s=WAIT_S) as client:
        client.create_table(pserver.TableSpec(name="ads", dim=2, optimizer="sgd:lr=1"))
        client.push("ads", np.arange(500), np.ones((500, 2)))


def test_top_shows_sorts_pauses_and_quits(pair: list[Server]) -> None:
    """On a small terminal: both shards, another order, a stop and its end, and q leaves it as it was."""
    ps = endpoints(pair)
    fill(ps)
    terminal = Terminal("top", f"--ps={ps}", "--interval=0.2", lines=12, columns=80)
    try:
        terminal.wait(r"2 of 2 shards")
        terminal.wait(r"shard\*")
        terminal.wait(r"0\s+ready")
        terminal.wait(r"1\s+ready")
        terminal.press("s")
        terminal.wait(r"state\*")
        terminal.press("ss")
        terminal.wait(r"pushes/s\*")
        terminal.press("p")
        terminal.wait("paused")
        terminal.press("q")
        assert terminal.process.wait(WAIT_S) == 0
        assert terminal.settings() == terminal.before
    finally:
        terminal.end()


def test_top_prints_once_for_scripts(pair: list[Server]) -> None:
    """--once is a screen without keys, --json an object; without a terminal it says to use them."""
    ps = endpoints(pair)
    fill(ps)

    def top(*flags: str) -> subprocess.CompletedProcess[str]:
        return forked.run(main, "top", f"--ps={ps}", *flags, timeout=WAIT_S)

    once, told, nothing = top("--once"), top("--json"), top()

    assert once.returncode == told.returncode == 0
    assert once.stdout.startswith("2 of 2 shards")
    assert "q quit" not in once.stdout
    facts = json.loads(told.stdout)
    assert [shard["state"] for shard in facts["shards"]] == ["ready", "ready"]
    assert sum(shard["rows"] for shard in facts["shards"]) == 500
    assert nothing.returncode == 2
    assert "--once or --json" in nothing.stderr


@contextlib.contextmanager
def web(ps: str) -> Iterator[str]:
    """Have a page; give its address."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pserver",
            "web",
            f"--ps={ps}",
            "--bind=127.0.0.1:0",
            "--interval=0.2",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"page ready on (\S+)", process.stdout.readline())
        assert found is not None
        yield found[1]
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)


def test_web_tells_of_a_cluster(pair: list[Server]) -> None:
    """The page and its facts come over HTTP from the command, with loopback's freedom from tokens."""
    ps = endpoints(pair)
    fill(ps)
    with web(ps) as address:
        with urllib.request.urlopen(address, timeout=WAIT_S) as reply:
            assert b"<title>pserver</title>" in reply.read()
        until = time.monotonic() + WAIT_S
        told: dict[str, Any] = {"samples": []}
        while len(told["samples"]) < 2:
            assert time.monotonic() < until
            with urllib.request.urlopen(f"{address}facts", timeout=WAIT_S) as reply:
                told = json.load(reply)

    assert [shard["state"] for shard in told["facts"]["shards"]] == ["ready", "ready"]


WHOLE = "[document.documentElement, ...document.querySelectorAll('.card, .list, header')]"
"""What nothing may stick out of."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not CHROMIUM, reason="needs chromium")
def test_web_is_drawn_in_a_browser(pair: list[Server], tmp_path: Path) -> None:
    """On a desk and on a phone, light and dark: shards, trainer and charts, and nothing to scroll sideways."""
    ps = endpoints(pair)
    fill(ps)
    screens = [(1280, 900, "light"), (390, 844, "light"), (390, 844, "dark")]
    grounds = set()
    with (
        pserver.connect(ps, connect_s=WAIT_S) as trainer,
        web(ps) as address,
        browser(tmp_path / "profile") as chromium,
    ):
        group = trainer.join(pserver.GroupSettings(trainer_id=0, trainers=1, lease_s=600.0))
        for width, height, scheme in screens:
            tab = chromium.open(address, width=width, height=height, scheme=scheme)
            tab.wait("document.body?.dataset.samples > 1 && document.querySelector('#trainers td')")
            text = tab.value("document.body.innerText")
            assert "2 of 2 shards answer" in text
            assert all(server.endpoint in text for server in pair)
            assert text.count("p99") >= 2
            assert tab.value("document.querySelectorAll('canvas').length") == 6
            assert tab.value("document.documentElement.scrollWidth") == width
            assert tab.value(f"{WHOLE}.filter(e => e.scrollWidth > e.clientWidth).length") == 0
            grounds.add(tab.value("getComputedStyle(document.body).backgroundColor"))
            tab.picture(tmp_path / f"web-{width}-{scheme}.png")
            assert tab.complaints == []
        group.leave()

    assert len(grounds) == 2  # a light one and a dark one
    for width, _, scheme in screens:
        data = (tmp_path / f"web-{width}-{scheme}.png").read_bytes()
        assert struct.unpack(">I", data[16:20]) == (width,)
