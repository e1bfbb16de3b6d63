"""What ``bench.link`` promises: all bytes arrive in order, and not before the link lets them."""

import random
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest
from typing_extensions import override

from bench.link import Link, Links
from bench.link_process import far_link

WAIT_S = 30.0


class _Echo(socketserver.BaseRequestHandler):
    @override
    def handle(self) -> None:
        """Send back what comes."""
        while chunk := self.request.recv(1 << 16):
            self.request.sendall(chunk)


@pytest.fixture
def echo() -> Iterator[str]:
    """Return the endpoint of a server that sends back what comes."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(WAIT_S)


def sent_and_back(endpoint: str, data: bytes) -> bytes:
    """Return what came back of some bytes."""
    host, _, port = endpoint.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as line:
        sender = threading.Thread(target=line.sendall, args=(data,))
        sender.start()
        back = bytearray()
        while len(back) < len(data) and (chunk := line.recv(1 << 16)):
            back += chunk
        sender.join(WAIT_S)
    return bytes(back)


@pytest.mark.parametrize(
    ("shape", "least_s"),
    [
        (Link(), 0.0),
        (Link(round_trip_s=0.2), 0.2),
        (Link(bytes_per_s=1e6), 0.3),
        (Link(round_trip_s=0.2, bytes_per_s=1e6), 0.5),
    ],
)
def test_link_delivers_all_and_takes_its_time(echo: str, shape: Link, least_s: float) -> None:
    """300 kB come back as they were, after the round trip and the time that they fill the link."""
    data = random.Random(1).randbytes(300_000)
    with Links([echo], shape) as links:
        begin = time.monotonic()

        back = sent_and_back(links.endpoints[0], data)

        assert back == data
        assert time.monotonic() - begin >= least_s


def test_a_link_in_a_process_of_its_own_carries_bytes(echo: str) -> None:
    """It listens where it says, gets farther when told to, and ends with its context."""
    with far_link(echo) as link:
        link.set_round_trip(0.3)
        begin = time.monotonic()

        assert sent_and_back(link.endpoint, b"hello") == b"hello"
        while time.monotonic() - begin < 0.3:  # the line that says so may be read a little later
            begin = time.monotonic()
            assert sent_and_back(link.endpoint, b"hello") == b"hello"
