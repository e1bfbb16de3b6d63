"""Trainers as real processes: ``trainer run`` in a fork, what it says kept, and waited for.

What always holds: a process that was started here is killed, if it is there, when its fixture ends.
"""

import json
import re
import threading
from typing import Any

from tests.integration.forked import Piped
from tests.integration.killed import free_port
from trainer.cli.main import main

WAIT_S = 240.0
LISTENS = re.compile(r"listens on (\S+)")


class Trainer:
    """One process of ``trainer run``; what it says is kept, and can be waited for."""

    def __init__(self, *flags: str) -> None:
        self.out = ""
        self.said = ""
        self._came = threading.Condition()
        self._process = Piped(main, "run", *flags, "--json", "--json-progress")
        self._readers = [
            threading.Thread(target=self._read, args=(name,), daemon=True)
            for name in ("stdout", "stderr")
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str) -> None:
        """Keep what comes from one of its outputs."""
        stream = getattr(self._process, name)
        for line in stream:
            with self._came:
                if name == "stdout":
                    self.out += line
                else:
                    self.said += line
                self._came.notify_all()
        stream.close()

    def until(self, pattern: re.Pattern[str]) -> str:
        """Wait until it says something, and return the first group of the pattern."""
        with self._came:
            assert self._came.wait_for(lambda: pattern.search(self.said + self.out), WAIT_S), (
                self.said
            )
            match = pattern.search(self.said + self.out)
        assert match is not None
        return match[match.re.groups]

    def end(self) -> int:
        """Wait for its end, and return its status."""
        status = self._process.wait(WAIT_S)
        for reader in self._readers:
            reader.join(WAIT_S)
        return status

    def summary(self) -> dict[str, Any]:
        """Return its figures, once it has ended well."""
        assert self.end() == 0, self.said
        told: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return told

    def kill(self) -> None:
        """Kill it, if it is there."""
        self._process.kill()


def start_dense(trainers: list[Trainer], count: int, *flags: str) -> list[str]:
    """Start dense trainers and return where they listen."""
    own = ["--role", "dense", "--listen", "127.0.0.1:0", "--device", "cpu", "--threads", "1"]
    master = f"127.0.0.1:{free_port()}"
    for number in range(count):
        place = ["--trainers", str(count), "--trainer-id", str(number), "--master", master]
        trainers.append(Trainer(*own, *(place if count > 1 else ()), *flags))
    return [trainer.until(LISTENS) for trainer in trainers]


def start_embed(trainers: list[Trainer], count: int, addresses: list[str], *flags: str) -> None:
    """Start embedding trainers."""
    own = ["--role", "embed", "--next", ",".join(addresses), "--trainers", str(count)]
    trainers.extend(
        Trainer(*own, "--trainer-id", str(number), "--threads", "1", *flags)
        for number in range(count)
    )
