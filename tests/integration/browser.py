"""A headless Chromium under the hand of a test, over a pair of pipes: any size of screen, scripts, pictures.

What always holds: the browser ends with its context. Every wait has a limit. ``Tab.complaints`` has each error of
a page: an exception of a script, or what the page's own policy forbids.
"""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.servers import WAIT_S

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_LIMIT_S = 3 * WAIT_S  # to start, on a busy machine
_CHUNK = 1 << 16


class Browser:
    """The process, and what goes to and fro: JSON objects, each with a 0 behind it."""

    def __init__(self, *, words: int, answers: int) -> None:
        """Take where words are written to and answers are read from."""
        self._words, self._answers = words, answers
        self._numbers = itertools.count(1)
        self._read = b""
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, session: str = "", /, **given: Any) -> dict[str, Any]:
        """Return the answer to a command of the browser, or of a tab."""
        number = next(self._numbers)
        words = {"id": number, "method": method, "params": given}
        os.write(
            self._words,
            json.dumps(words | ({"sessionId": session} if session else {})).encode() + b"\0",
        )
        until = time.monotonic() + _LIMIT_S
        while (told := self._next(until)).get("id") != number:
            self.events.append(told)
        assert "error" not in told, told
        return dict(told["result"])

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            chunk = os.read(self._answers, _CHUNK)
            assert chunk, "the browser ended"
            self._read += chunk
        line, _, self._read = self._read.partition(b"\0")
        return dict(json.loads(line))

    def open(self, address: str, *, width: int, height: int, scheme: str = "light") -> "Tab":
        """Return a tab with a page, on a screen of that size whose owner likes light or dark."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable", session)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", session, **size)
        liked = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", session, features=[liked])
        self.ask("Page.navigate", session, url=address)
        return Tab(self, session)


@dataclass(frozen=True)
class Tab:
    """A page that is shown."""

    browser: Browser
    session: str

    def value(self, script: str) -> Any:
        """Return what an expression is worth in the page."""
        told = self.browser.ask(
            "Runtime.evaluate", self.session, expression=script, returnByValue=True
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def wait(self, script: str) -> None:
        """Return once an expression is true."""
        until = time.monotonic() + _LIMIT_S
        while not self.value(f"Boolean({script})"):
            assert time.monotonic() < until, f"{script} is not true"
            select.select([], [], [], 0.1)

    def picture(self, file: Path) -> None:
        """Write all of the page as a PNG, however long it is."""
        height = self.value("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": self.value("innerWidth"), "height": height, "scale": 1}
        told = self.browser.ask(
            "Page.captureScreenshot", self.session, captureBeyondViewport=True, clip=clip
        )
        file.write_bytes(base64.b64decode(told["data"]))

    @property
    def complaints(self) -> list[dict[str, Any]]:
        """Return the errors of the page so far."""
        self.value("0")
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded")
        mine = [event for event in self.browser.events if event.get("sessionId") == self.session]
        return [event["params"] for event in mine if event["method"] in kinds]


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Have a browser with a new profile."""
    heard, words = os.pipe()
    answers, said = os.pipe()
    # Chromium hears from file 3 and answers to file 4.
    script = f'exec "$0" "$@" 3<&{heard} 4>&{said}'
    command = ["bash", "-c", script, CHROMIUM, *_FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(command, pass_fds=(heard, said), stderr=subprocess.DEVNULL)
    os.close(heard)
    os.close(said)
    try:
        yield Browser(words=words, answers=answers)
    finally:
        process.kill()
        process.wait(WAIT_S)
        os.close(words)
        os.close(answers)
