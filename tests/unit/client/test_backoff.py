"""How long the send queue pauses between two tries: longer each time, and never over the cap."""

import asyncio
import random

import pytest

from pserver.client.runtime import Runtime
from pserver.client.sendqueue import SendQueue
from pserver.config import ClientSettings
from pserver.deadline import Deadline
from pserver.errors import UnavailableError
from tests.unit.client.fakes import WAIT_S, FakeChannel


def test_pauses_double_up_to_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve failures in a row: 50 ms, 100 ms, ... and 2 s each from the seventh on (B4)."""
    pauses: list[float] = []
    turn = asyncio.sleep

    async def no_pause(pause_s: float) -> None:
        pauses.append(pause_s)
        await turn(0)

    def fail_twelve_times(number: int, message: bytes) -> bytes:
        if number < 12:
            raise UnavailableError("down")
        return message

    runtime = Runtime()
    queue = SendQueue(FakeChannel(runtime, fail_twelve_times), runtime, ClientSettings())
    monkeypatch.setattr(random, "random", lambda: 1.0)  # the longest pause that may be drawn
    monkeypatch.setattr(asyncio, "sleep", no_pause)
    reply = queue.put("Push", b"x", deadline=Deadline.after(WAIT_S)).result(WAIT_S)
    monkeypatch.undo()
    runtime.submit(queue.close()).result(WAIT_S)
    runtime.stop()

    assert reply == b"x"
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0])
