"""Mutual TLS of a connection on which one thread sends while another receives.

Rooms before and after: ``hetero`` and ``hetero_sender`` open connections; with ``TlsFiles`` they are encrypted, and
each end shows a certificate that an authority of the other vouches for.

The standard library's encrypted socket is no good for two threads at once, so a ``TlsConnection`` keeps TLS's state
apart from the socket: the state is under a lock for moments, while the socket may wait in both directions.

What always holds: nothing of a message leaves or is taken before both certificates were found good.
Owner: one thread sends at a time, one receives; both may go on at once.
"""

import contextlib
import socket
import ssl
import threading
from dataclasses import dataclass
from types import TracebackType

from collective.errors import GroupError

_PIECE_BYTES = 256 << 10

_LAST_WORDS_S = 2.0
"""How long who refuses a certificate waits for the other to hear it."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where an end has its certificate and key, and the authorities whose certificates it takes. PEM."""

    cert: str
    key: str
    ca: str

    def accepting(self) -> ssl.SSLContext:
        """Return what the end that listens goes by.

        Raises:
            GroupError: the files cannot be used.
        """
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def connecting(self) -> ssl.SSLContext:
        """Return what the end that connects goes by; it also checks the other's name.

        Raises:
            GroupError: as ``accepting``.
        """
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_cert_chain(self.cert, self.key, password=lambda: "")
            context.load_verify_locations(self.ca)
        except (OSError, ValueError) as error:  # of ssl too
            raise GroupError(
                f"TLS takes PEM files of a certificate, of its own key without a passphrase, and of "
                f"authorities; got {self.cert}, {self.key} and {self.ca}: {error}"
            ) from error
        return context


class TlsConnection:
    """A connected socket with TLS around it, as far as trainers use one."""

    def __init__(
        self, raw: socket.socket, context: ssl.SSLContext, *, to_host: str | None = None
    ) -> None:
        """Shake hands, within the socket's own time limit.

        Args:
            raw: closed with this; the caller closes it if this raises.
            context: of ``TlsFiles``.
            to_host: whose certificate it must be, for the end that connects; None: the end that listens.

        Raises:
            OSError: the connection broke, or a certificate was found bad (``ssl.SSLError``).
        """
        self._raw = raw
        self._came, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._came, self._leaving, server_side=to_host is None, server_hostname=to_host
        )
        self._state = threading.Lock()
        self._sends = threading.Lock()  # taken before the other
        self._shake_hands()

    def __enter__(self) -> "TlsConnection":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._raw.close()

    def settimeout(self, seconds: float | None, /) -> None:
        """Limit every wait for the socket."""
        self._raw.settimeout(seconds)

    def shutdown(self, how: int, /) -> None:
        """Break the connection, also for a thread that waits in it."""
        self._raw.shutdown(how)

    def sendall(self, data: bytes | memoryview, /) -> None:
        """Send all bytes.

        Raises:
            OSError: the connection broke.
        """
        rest = memoryview(data).cast("B")
        while rest:
            with self._sends:
                with self._state:
                    rest = rest[self._tls.write(rest[:_PIECE_BYTES]) :]
                    coded = self._leaving.read()
                self._raw.sendall(coded)

    def recv_into(self, buffer: memoryview, /) -> int:
        """Wait for some bytes; return how many came, 0 at an orderly end.

        Raises:
            OSError: the connection broke, or the other end refused our certificate.
        """
        while True:
            with self._state, contextlib.suppress(ssl.SSLWantReadError):
                return self._tls.read(len(buffer), buffer)  # type: ignore[return-value]  # a count
            self._flush()
            self._take()

    def _take(self) -> None:
        """Wait for coded bytes of the other end."""
        coded = self._raw.recv(_PIECE_BYTES)
        if not coded:
            raise ConnectionError("the connection closed")
        with self._state:
            self._came.write(coded)

    def _flush(self) -> None:
        """Send what TLS itself has to say; what ``sendall`` codes is never left under the lock."""
        with self._state:
            has_to_say = self._leaving.pending > 0
        if has_to_say:
            with self._sends:
                with self._state:
                    coded = self._leaving.read()
                self._raw.sendall(coded)

    def _shake_hands(self) -> None:
        try:
            while True:
                try:
                    self._tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    self._flush()
                    self._take()
            self._flush()
        except ssl.SSLError:
            with contextlib.suppress(OSError):
                self._say_why()
            raise

    def _say_why(self) -> None:
        """Let the other end read what TLS found before the socket closes: unread bytes would take it back."""
        self._flush()
        self._raw.shutdown(socket.SHUT_WR)
        self._raw.settimeout(_LAST_WORDS_S)
        while self._raw.recv(_PIECE_BYTES):
            pass
