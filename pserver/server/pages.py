"""Small HTTP servers, each on a port and threads of its own: what serves the metrics page and ``pserver web``.

Rooms before and after: ``metrics_page`` and ``web`` bring the application that answers; this listens.

What always holds: a caller that says nothing holds up nobody else.
"""

import socketserver
import ssl
import threading
from collections.abc import Callable
from typing import Any, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog
from typing_extensions import override

from pserver.errors import ConfigError
from pserver.tls import FreshTls
from pserver.transport import split_endpoint

log = structlog.get_logger(__name__)

_SILENT_S = 10.0  # that a caller may say nothing

Start: TypeAlias = Callable[..., Any]
"""What a WSGI application begins its answer with."""


class _Handler(WSGIRequestHandler):
    """Reads one request, and logs none."""

    timeout = int(_SILENT_S)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: a scrape is no event."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """One thread a caller."""

    daemon_threads = True

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say who failed; a broken handshake is the caller's."""
        log.debug("page: a caller failed", peer=str(client_address))

    @override
    def server_bind(self) -> None:
        """Bind, without asking what this machine is called: that may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


def refuse(start: Start, status: str, text: str) -> list[bytes]:
    """Answer with an error: its status, and a line for people."""
    start(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]


def open_pages(
    application: Callable[..., Any],
    bind: str,
    *,
    flag: str,
    tls: FreshTls | None,
    asks_certificate: bool = True,
) -> tuple[str, Callable[[], None]]:
    """Serve an application.

    Args:
        application: of WSGI.
        bind: HOST:PORT; port 0 takes a free one.
        flag: that gave it, for errors.
        tls: serve HTTPS with these files; None: HTTP.
        asks_certificate: of whoever calls, with TLS.

    Returns:
        The address that it is at, and what ends it.

    Raises:
        ConfigError: the port cannot be listened on.
    """
    host, port = split_endpoint(bind, where=flag)
    try:
        server = _Server((host.strip("[]"), port), _Handler)
    except OSError as error:
        raise ConfigError(f"{flag} {bind}: cannot listen there: {error}") from error
    server.set_app(application)
    if tls is not None:
        server.socket = _context(tls, asks_certificate=asks_certificate).wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    threading.Thread(target=server.serve_forever, name="pages", daemon=True).start()

    def end() -> None:
        server.shutdown()
        server.server_close()

    return f"{host}:{server.server_port}", end


def _context(tls: FreshTls, *, asks_certificate: bool) -> ssl.SSLContext:
    """Return a context that takes newer files at a handshake."""
    seen = [0]
    files = tls.files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED if asks_certificate else ssl.CERT_NONE

    def load(_socket: object, _name: object, mine: ssl.SSLContext) -> None:
        tls.renew()
        if seen[0] != tls.generation:
            seen[0] = tls.generation
            mine.load_cert_chain(files.cert, files.key)
            mine.load_verify_locations(files.ca)

    load(None, None, context)
    context.sni_callback = load
    return context
