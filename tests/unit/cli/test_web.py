"""What ``cli.web`` promises: a page that needs nothing else, facts since a moment, and a token where it is asked for."""

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from pserver.cli import main as cli
from pserver.cli.web import CHARTED_TRAINERS, SAMPLES_MAX, History, Page, sample_of
from pserver.server.auth import Access
from tests.unit.cli.test_screen import facts

HTML = (Path(cli.__file__).parent / "web.html").read_text(encoding="utf-8")
TOKEN = "0f3c8d1e5b7a49c2"


def ask(
    page: Page, path: str, *, query: str = "", method: str = "GET", **headers: str
) -> tuple[str, Mapping[str, str], bytes]:
    """Return status, headers and body of a request."""
    environ: dict[str, Any] = {"PATH_INFO": path, "QUERY_STRING": query, "REQUEST_METHOD": method}
    environ.update({f"HTTP_{name.upper()}": value for name, value in headers.items()})
    environ["wsgi.input"] = io.BytesIO()
    setup_testing_defaults(environ)
    came: list[Any] = []
    body = b"".join(page.answer(environ, lambda status, given: came.extend((status, given))))
    return came[0], dict(came[1]), body


@pytest.fixture
def page() -> Page:
    """Return the page of a cluster that was looked at three times, for everybody."""
    history = History()
    for _ in range(3):
        history.add(facts(2, 2))
    return Page(history, Access(None))


@pytest.fixture
def guarded(tmp_path: Path) -> Page:
    """Return a page that asks for a token."""
    file = tmp_path / "tokens.toml"
    file.write_text(f'[phone]\ntoken = "{TOKEN}"\nrole = "read"\n', encoding="utf-8")
    file.chmod(0o600)
    return Page(History(), Access(str(file)))


def test_the_page_needs_nothing_from_elsewhere(page: Page) -> None:
    """It is one file: no address of another place, no asset, and its policy forbids to load any."""
    status, headers, body = ask(page, "/")

    assert (status, body.decode()) == ("200 OK", HTML)
    assert not re.findall(
        r"(?:https?:)?//[\w.]+|@import|<link rel=.stylesheet|src=", HTML.split("<script>")[0]
    )
    assert re.findall(r"fetch\(([^,]+),", HTML) == ['"/facts?since=" + last']
    assert "innerHTML" not in HTML  # what trainers say of themselves is text, never markup
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert 'name="viewport"' in HTML


def test_facts_bring_only_what_is_new(page: Page) -> None:
    """All samples at first, then those since the last one, always with the newest facts."""
    _, _, body = ask(page, "/facts")
    told = json.loads(body)
    assert [sample["number"] for sample in told["samples"]] == [1, 2, 3]
    assert [shard["state"] for shard in told["facts"]["shards"]] == ["ready", "ready"]

    _, _, later = ask(page, "/facts", query="since=2")

    assert [sample["number"] for sample in json.loads(later)["samples"]] == [3]
    assert json.loads(later)["began"] == told["began"]


def test_samples_are_what_charts_draw() -> None:
    """Sums of rates, the worst latency, queue and staleness, and loss and AUC of each live trainer."""
    sample = sample_of(facts(3, 2))

    assert (sample["pulls_per_s"], sample["pushes_per_s"]) == (30.0, 0.0)
    assert (sample["p99_s"], sample["queued"], sample["staleness_p99"]) == (0.0123, 2, 1)
    assert sample["samples_per_s"] == 1000.0
    assert sample["trainers"] == {"0": [0.5, 0.75], "1": [0.5, 0.75]}
    assert len(sample_of(facts(1, 40))["trainers"]) == CHARTED_TRAINERS
    lonely = sample_of(facts(1, down=0))
    assert (lonely["p99_s"], lonely["staleness_p99"], lonely["trainers"]) == (None, None, {})


def test_memory_of_the_past_is_bounded() -> None:
    """Ten minutes are kept, however long the page runs."""
    history = History()
    for _ in range(SAMPLES_MAX + 5):
        history.add(facts(1))

    samples = history.since(0)["samples"]

    assert len(samples) == SAMPLES_MAX
    assert samples[-1]["number"] == SAMPLES_MAX + 5


@pytest.mark.parametrize(
    ("path", "query", "method", "status"),
    [
        ("/metrics", "", "GET", "404 Not Found"),
        ("/../web.html", "", "GET", "404 Not Found"),
        ("/", "", "POST", "405 Method Not Allowed"),
        ("/facts", "", "DELETE", "405 Method Not Allowed"),
        ("/facts", "since=-1", "GET", "400 Bad Request"),
        ("/facts", "since=" + "9" * 40, "GET", "400 Bad Request"),
    ],
)
def test_nothing_else_is_answered(
    page: Page, path: str, query: str, method: str, status: str
) -> None:
    """There are two addresses, both to read."""
    assert ask(page, path, query=query, method=method)[0] == status


def test_a_token_is_asked_for_and_kept_by_the_browser(guarded: Page) -> None:
    """Without it neither page nor facts; shown once it leaves the address and comes back as a cookie."""
    for path in ("/", "/facts"):
        status, _, body = ask(guarded, path)
        assert status == "401 Unauthorized"
        assert b"open /?token=TOKEN once" in body
        assert ask(guarded, path, cookie="pserver=wrong")[0] == "401 Unauthorized"
        assert ask(guarded, path, query="token=wrong")[0] == "401 Unauthorized"

    status, headers, _ = ask(guarded, "/", query=f"token={TOKEN}")

    assert (status, headers["Location"]) == ("303 See Other", "/")
    cookie, *flags = headers["Set-Cookie"].split("; ")
    assert set(flags) == {"HttpOnly", "SameSite=Strict", "Path=/", "Secure"}
    assert ask(guarded, "/facts", cookie=cookie)[0] == "200 OK"
    assert ask(guarded, "/facts", authorization=f"Bearer {TOKEN}")[0] == "200 OK"


def test_a_page_beyond_this_machine_is_refused_without_tls_and_tokens(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As a server's port is, with the commands that make both; nothing was asked of the servers."""
    status = cli.main(["web", "--ps", "127.0.0.1:1", "--bind", "0.0.0.0:0"])

    said = capsys.readouterr().err
    assert status == 2
    assert "--page-token-file" in said
    assert "pserver certs make" in said
