"""What ``pserver.client.sendqueue`` promises of an outage: it is told once, and so is its end."""

from structlog.testing import capture_logs

from pserver import errors
from pserver.client.runtime import Runtime
from pserver.client.sendqueue import SendQueue
from pserver.config import ClientSettings
from pserver.deadline import Deadline
from tests.unit.client.fakes import WAIT_S, FakeChannel


def test_outage_is_told_once_when_tries_fail_often() -> None:
    """After ``retry`` failed tries one warning names the server; one more says that it is back."""
    fails = iter([True] * 6 + [False, True, False])

    def answer(_: int, message: bytes) -> bytes:
        if next(fails):
            raise errors.UnavailableError("down")
        return message

    runtime = Runtime()
    queue = SendQueue(FakeChannel(runtime, answer), runtime, ClientSettings(retry=2))
    try:
        with capture_logs() as told:
            for message in (b"x", b"y"):
                reply = queue.put("Push", message, deadline=Deadline.after(WAIT_S))
                assert reply.result(WAIT_S) == message
    finally:
        runtime.submit(queue.close()).result(WAIT_S)
        runtime.stop()

    assert [(line["event"], line["log_level"]) for line in told] == [
        ("server does not answer", "warning"),
        ("server answers again", "warning"),
    ]
    assert (told[0]["endpoint"], told[0]["tries"]) == (queue.endpoint, 3)
    assert "down" in told[0]["error"]
    assert queue.retries == 7
