"""The Prometheus page, on a port and a thread of its own: ``/metrics`` and nothing else.

Rooms before and after: ``app`` starts it for a shard, a trainer its own; ``pserver.metrics`` counts.

What always holds: a page that other machines can reach is served as the shard's own port is: over mutual TLS, to
whoever sends a token (``Authorization: Bearer``). On loopback it needs neither. A caller that
says nothing holds up nobody else.
"""

import socketserver
import ssl
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app
from typing_extensions import override

from pserver.errors import ConfigError, PserverError
from pserver.metrics import AnySeries, registry_of
from pserver.server.auth import HEADER, Access
from pserver.server.secure import check_bind, is_loopback
from pserver.tls import FreshTls, tls_of
from pserver.transport import split_endpoint

log = structlog.get_logger(__name__)

PATH: Final = "/metrics"
_SILENT_S = 10.0  # that a caller may say nothing

Start = Callable[..., Any]


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
        log.debug("metrics page: a caller failed", peer=str(client_address))

    @override
    def server_bind(self) -> None:
        """Bind, without asking what this machine is called: that may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


def _guarded(page: Callable[..., Iterable[bytes]], access: Access | None) -> Callable[..., Any]:
    """Return the application: the page, for its path, to those who may read."""
    lock = threading.Lock()

    def answer(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != PATH:
            return _refuse(start, "404 Not Found", f"only {PATH} is here")
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return _refuse(start, "405 Method Not Allowed", "the page is read only")
        if access is not None and not access.is_open:
            came = str(environ.get("HTTP_AUTHORIZATION", ""))
            try:
                with lock:
                    access.grant_of(((HEADER, came),))  # each role may read it
            except PserverError as error:
                return _refuse(start, "401 Unauthorized", str(error))
        return page(environ, start)

    return answer


def _refuse(start: Start, status: str, text: str) -> list[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]


class HasPage(Protocol):
    """Settings of a page that is not a shard's."""

    metrics_bind: str | None
    metrics_token_file: str | None
    insecure_bind: bool
    tls_cert: str | None
    tls_key: str | None
    tls_ca: str | None


def start_page_of(
    settings: HasPage, series: Iterable[AnySeries], *, prefix: str, command: str
) -> tuple[str, Callable[[], None]] | None:
    """Serve the page of another process than a shard, as a shard's is served.

    Args:
        settings: where, and what it is guarded with.
        series: read at each scrape, from the page's own thread.
        prefix: of their names.
        command: that was given the settings, for errors.

    Returns:
        See ``start_metrics_page``; None if no page is asked for.

    Raises:
        ConfigError: other machines could reach it without TLS and a token, or nobody can listen there.
    """
    if settings.metrics_bind is None:
        return None
    if not (settings.insecure_bind or (settings.tls_cert and settings.metrics_token_file)):
        check_bind(
            "--metrics-bind",
            settings.metrics_bind,
            command=command,
            tokens="--metrics-token-file",
        )
    return start_metrics_page(
        registry_of(series, prefix=prefix),
        settings.metrics_bind,
        tls=tls_of(settings),
        access=Access(settings.metrics_token_file),
    )


def start_metrics_page(
    registry: CollectorRegistry, bind: str, *, tls: FreshTls | None, access: Access
) -> tuple[str, Callable[[], None]]:
    """Serve the page.

    Args:
        registry: what is on it.
        bind: HOST:PORT; port 0 takes a free one.
        tls: of the shard's port, used beyond loopback.
        access: tokens of its own for this thread, used beyond loopback.

    Returns:
        The address that it is at, and what ends it.

    Raises:
        ConfigError: the port cannot be listened on.
    """
    host, port = split_endpoint(bind, where="--metrics-bind")
    is_open = is_loopback(host)
    page = _guarded(make_wsgi_app(registry), None if is_open else access)
    try:
        server = _Server((host.strip("[]"), port), _Handler)
    except OSError as error:
        raise ConfigError(f"--metrics-bind {bind}: cannot listen there: {error}") from error
    server.set_app(page)
    scheme = "http"
    if tls is not None and not is_open:
        scheme = "https"
        server.socket = _context(tls).wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    log.info("metrics page ready", scheme=scheme, address=f"{host}:{server.server_port}")

    def end() -> None:
        server.shutdown()
        server.server_close()

    return f"{host}:{server.server_port}", end


def _context(tls: FreshTls) -> ssl.SSLContext:
    """Return a context that takes newer files at a handshake; callers must show a certificate."""
    seen = [0]
    files = tls.files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED

    def load(_socket: object, _name: object, mine: ssl.SSLContext) -> None:
        tls.renew()
        if seen[0] != tls.generation:
            seen[0] = tls.generation
            mine.load_cert_chain(files.cert, files.key)
            mine.load_verify_locations(files.ca)

    load(None, None, context)
    context.sni_callback = load
    return context
