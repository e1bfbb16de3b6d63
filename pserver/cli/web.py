"""``pserver web``: one small page with what ``pserver top`` shows, and charts of the last ten minutes.

Rooms before and after: ``client.look`` asks the servers, ``cli.shards`` makes facts of it; the page itself is
``web.html``, which asks for ``/facts`` once a second.

What always holds: nothing can be changed from the page. Beyond this machine it takes HTTPS and a token, shown once as
``/?token=...`` and then kept by the browser as a cookie that scripts cannot read. Everything that it needs is in it.
Owner of the samples: the thread that looks; the page's threads read copies.
"""

import argparse
import json
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qs

from pserver.cli.screen import p99_s
from pserver.cli.shards import cluster_facts
from pserver.cli.shared import add_cluster_flags, client_settings
from pserver.client.look import Looker
from pserver.errors import PserverError
from pserver.server.auth import HEADER, Access
from pserver.server.pages import Start, open_pages, refuse
from pserver.server.secure import check_bind, is_loopback
from pserver.tls import tls_of
from pserver.transport import split_endpoint, split_endpoints

SAMPLES_MAX: Final = 600
"""What charts look back on: ten minutes at a sample a second; about 60 KiB and 60 bytes a trainer and sample."""

CHARTED_TRAINERS: Final = 16
"""Trainers, the first by number, whose loss and AUC are charted; all are in the list."""

_COOKIE = "pserver"
_DIGITS_MAX = 16
_HEADERS = [
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
]


def add_web(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command; ``add`` makes its parser from name and help."""
    parser = add("web", help="serve a page with what `top` shows, and charts")
    add_cluster_flags(parser, has_json=False)
    parser.add_argument(
        "--bind",
        default="127.0.0.1:8470",
        metavar="HOST:PORT",
        help="of the page; port 0 takes a free one (default: 127.0.0.1:8470)",
    )
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds (default: 1)"
    )
    parser.add_argument(
        "--page-token-file",
        metavar="FILE",
        help="TOML file of tokens that may read the page beyond this machine",
    )
    parser.add_argument(
        "--insecure-bind",
        action="store_true",
        help="serve beyond this machine though TLS or tokens are missing",
    )
    parser.set_defaults(run=_web)


def _web(given: argparse.Namespace) -> None:
    settings = client_settings(given)
    is_open = is_loopback(split_endpoint(given.bind, where="--bind")[0])
    if not (given.insecure_bind or (settings.tls_cert and given.page_token_file)):
        check_bind("--bind", given.bind, command="pserver web", tokens="--page-token-file")
    endpoints = split_endpoints(given.ps, where="--ps")
    with Looker(endpoints, settings=settings, timeout_s=given.timeout) as looker:
        history = History()
        page = Page(history, Access(None if is_open else given.page_token_file))
        tls = None if is_open else tls_of(settings)
        address, end = open_pages(
            page.answer, given.bind, flag="--bind", tls=tls, asks_certificate=False
        )
        print(f"page ready on {'http' if tls is None else 'https'}://{address}/", flush=True)
        over = threading.Event()
        try:
            while not over.is_set():
                history.add(cluster_facts(endpoints, looker.look()))
                over.wait(given.interval)
        except KeyboardInterrupt:
            print("ended")
        finally:
            end()


class History:
    """The newest facts, and what charts need of those before. Thread-safe."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lock = threading.Lock()
        self._facts: dict[str, Any] | None = None
        self._samples: deque[dict[str, Any]] = deque(maxlen=SAMPLES_MAX)
        self._number = 0
        self._began = secrets.token_hex(8)  # so that a page sees when another process counts from 1

    def add(self, facts: dict[str, Any]) -> None:
        """Take in facts of a cluster."""
        sample = sample_of(facts)
        with self._lock:
            self._number += 1
            self._facts = facts
            self._samples.append({"number": self._number, **sample})

    def since(self, number: int) -> dict[str, Any]:
        """Return the newest facts and the samples after one."""
        with self._lock:
            samples = [each for each in self._samples if each["number"] > number]
            return {"began": self._began, "facts": self._facts, "samples": samples}


def sample_of(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what charts show of a moment."""
    shards = [shard for shard in facts["shards"] if shard["state"] != "down"]
    members = [] if facts["group"] is None else facts["group"]["members"]
    live = [member for member in members if member["state"] == "live"]
    return {
        "at": facts["at"],
        "pulls_per_s": sum(shard["pulls_per_s"] for shard in shards),
        "pushes_per_s": sum(shard["pushes_per_s"] for shard in shards),
        "samples_per_s": sum(member["samples_per_s"] or 0.0 for member in live),
        "p99_s": max(map(p99_s, shards), default=None),
        "queued": max((shard["queued"] for shard in shards), default=None),
        "staleness_p99": max((member["staleness_p99"] for member in live), default=None),
        "trainers": {
            str(member["trainer_id"]): [member["loss"], member["auc"]]
            for member in live[:CHARTED_TRAINERS]
        },
    }


class Page:
    """The application: ``/`` and ``/facts``, to those who may read. Its methods run in threads of callers."""

    def __init__(self, history: History, access: Access) -> None:
        """Take what is shown, and who may see it."""
        self._history = history
        self._access = access
        self._lock = threading.Lock()  # of access
        self._html = resources.files("pserver.cli").joinpath("web.html").read_bytes()

    def answer(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        """Answer one request."""
        query = parse_qs(environ.get("QUERY_STRING", ""))
        shown = query.get("token", [""])[0]
        refusal = self._refusal(environ, shown)
        if refusal is not None:
            return refuse(start, *refusal)
        if shown and not self._access.is_open:
            # Out of the address, so that it is in no history and no log of a proxy.
            cookie = f"{_COOKIE}={shown}; HttpOnly; SameSite=Strict; Path=/; Secure"
            start("303 See Other", [("Location", "/"), ("Set-Cookie", cookie), *_HEADERS])
            return []
        if environ.get("PATH_INFO") == "/":
            return self._send(start, "text/html; charset=utf-8", self._html)
        since = query.get("since", ["0"])[0]
        if not (since.isascii() and since.isdecimal() and len(since) < _DIGITS_MAX):
            return refuse(start, "400 Bad Request", "since must be a whole number")
        body = json.dumps(self._history.since(int(since)), allow_nan=False).encode()
        return self._send(start, "application/json", body)

    def _refusal(self, environ: dict[str, Any], shown: str) -> tuple[str, str] | None:
        """Return why a request is not answered; None if it is."""
        if environ.get("PATH_INFO") not in ("/", "/facts"):
            return "404 Not Found", "only / and /facts are here"
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return "405 Method Not Allowed", "the page is read only"
        if self._access.is_open:
            return None
        try:
            self._check(shown or _token_of(environ))
        except PserverError as error:
            return "401 Unauthorized", f"{error}; open /?token=TOKEN once"
        return None

    def _check(self, token: str) -> None:
        """Raise unless a token is known; each role may read the page."""
        with self._lock:
            self._access.grant_of(((HEADER, f"Bearer {token}"),))

    @staticmethod
    def _send(start: Start, kind: str, body: bytes) -> list[bytes]:
        start("200 OK", [("Content-Type", kind), ("Content-Length", str(len(body))), *_HEADERS])
        return [body]


def _token_of(environ: dict[str, Any]) -> str:
    """Return the token that a request brings as a cookie or in its header."""
    scheme, _, token = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    try:
        cookie = SimpleCookie(environ.get("HTTP_COOKIE", "")).get(_COOKIE)
    except CookieError:
        return ""
    return "" if cookie is None else cookie.value
