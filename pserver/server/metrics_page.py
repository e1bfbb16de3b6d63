"""The Prometheus page, on a port and a thread of its own: ``/metrics`` and nothing else.

Rooms before and after: ``app`` starts it for a shard, a trainer its own; ``pserver.metrics`` counts.

What always holds: a page that other machines can reach is served as the shard's own port is: over mutual TLS, to
whoever sends a token (``Authorization: Bearer``). On loopback it needs neither. A caller that
says nothing holds up nobody else.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app

from pserver.errors import PserverError
from pserver.metrics import AnySeries, registry_of
from pserver.server.auth import HEADER, Access
from pserver.server.pages import Start, open_pages, refuse
from pserver.server.secure import check_bind, is_loopback
from pserver.tls import FreshTls, tls_of
from pserver.transport import split_endpoint

log = structlog.get_logger(__name__)

PATH: Final = "/metrics"


def _guarded(page: Callable[..., Iterable[bytes]], access: Access | None) -> Callable[..., Any]:
    """Return the application: the page, for its path, to those who may read."""
    lock = threading.Lock()

    def answer(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != PATH:
            return refuse(start, "404 Not Found", f"only {PATH} is here")
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return refuse(start, "405 Method Not Allowed", "the page is read only")
        if access is not None and not access.is_open:
            came = str(environ.get("HTTP_AUTHORIZATION", ""))
            try:
                with lock:
                    access.grant_of(((HEADER, came),))  # each role may read it
            except PserverError as error:
                return refuse(start, "401 Unauthorized", str(error))
        return page(environ, start)

    return answer


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
    is_open = is_loopback(split_endpoint(bind, where="--metrics-bind")[0])
    page = _guarded(make_wsgi_app(registry), None if is_open else access)
    used = None if is_open else tls
    address, end = open_pages(page, bind, flag="--metrics-bind", tls=used)
    log.info("metrics page ready", scheme="https" if used else "http", address=address)
    return address, end
