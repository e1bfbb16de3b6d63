"""Endpoints by name: when a name stands for another address, trainers find it without a restart.

A name server of our own answers for it, and two proxies on two loopback addresses stand for a server
that moved: the process behind them is the same, as it is when a service's address changes.
"""

import socket
import struct
import threading
from types import TracebackType

import numpy as np

import pserver
from tests.integration.proxy import Proxy
from tests.integration.servers import WAIT_S, Start

BACK_S = 5.0
HERE, THERE = "127.0.0.1", "127.0.0.2"


class NameServer:
    """Answers every question for an address with one that the test sets, to be kept for 0 s."""

    def __init__(self, address: str) -> None:
        """Say what every name stands for."""
        self.address = address
        self.num_asked = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((HERE, 0))
        self.endpoint = f"{HERE}:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "NameServer":
        """Begin to answer."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Answer no more."""
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join(WAIT_S)
        self._socket.close()

    def _run(self) -> None:
        """Be the server: RFC 1035, section 4."""
        while True:
            question, sender = self._socket.recvfrom(512)
            if not question:
                return
            end = question.index(b"\0", 12) + 5  # behind the name, its type and its class
            asks_address = question[end - 4 : end - 2] == b"\0\1"
            head = struct.pack(">2sHHHHH", question[:2], 0x8180, 1, asks_address, 0, 0)
            answer = struct.pack(">HHHIH4s", 0xC00C, 1, 1, 0, 4, socket.inet_aton(self.address))
            reply = head + question[12:end] + (answer if asks_address else b"")
            self.num_asked += 1
            self._socket.sendto(reply, sender)


def test_i1_a_name_is_resolved_again_when_the_connection_is_lost(start: Start) -> None:
    """A push that finds nobody at the old address arrives at the new one, once, within 5 s."""
    server = start().wait_ready()
    with Proxy(server.endpoint, host=HERE) as here, NameServer(HERE) as names:
        port = int(here.endpoint.rpartition(":")[2])
        there = Proxy(server.endpoint, host=THERE)
        there.endpoint = f"{THERE}:{port}"
        name = f"dns://{names.endpoint}/pserver-0.test:{port}"
        settings = pserver.ClientSettings(timeout_s=BACK_S)
        with there, pserver.connect(name, settings=settings, connect_s=WAIT_S) as client:
            client.create_table(
                pserver.TableSpec(name="t", dim=1, optimizer="sgd:lr=1", initializer="zeros")
            )
            client.push("t", [7], [[1.0]])
            before = names.num_asked
            names.address = THERE
            here.shut()
            pushed = client.start_push(
                {"t": (np.array([7], np.uint64), np.ones(1, np.float32), np.empty(0, np.uint32))}
            )

            pushed.result()

            assert names.num_asked > before
            assert there.num_bytes > 0
            assert client.peek("t", [7]).item() == -2.0
