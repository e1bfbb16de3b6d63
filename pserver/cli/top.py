"""``pserver top``: a live screen of a cluster, on a terminal of any size; once, or as JSON, for scripts.

Rooms before and after: ``client.look`` asks the servers, ``cli.shards`` makes facts of it; ``cli.screen`` draws.

What always holds: keys are answered while a server that does not answer is waited for. The terminal is left as
it was found, however this ends.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.live import Live

from pserver.cli.screen import View, screen
from pserver.cli.shards import cluster_facts
from pserver.cli.shared import add_cluster_flags, client_settings, console
from pserver.client.look import Looker
from pserver.errors import ConfigError
from pserver.transport import split_endpoints

_INTERVAL_MIN_S, _INTERVAL_MAX_S = 0.2, 3600.0
_POLL_S = 0.1  # how soon an answer of the servers is shown
_LINES_ONCE = 10_000  # where nobody scrolls


def add_top(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command; ``add`` makes its parser from name and help."""
    parser = add("top", help="watch a cluster: shards, trainers, rates, queues, staleness, memory")
    add_cluster_flags(parser)
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds (default: 1)"
    )
    parser.add_argument("--once", action="store_true", help="print one screen and end")
    parser.set_defaults(run=_top)


def _top(given: argparse.Namespace) -> None:
    if not _INTERVAL_MIN_S <= given.interval <= _INTERVAL_MAX_S:
        raise ConfigError(
            f"--interval must be in [{_INTERVAL_MIN_S:g}, {_INTERVAL_MAX_S:g}] seconds, got {given.interval:g}"
        )
    endpoints = split_endpoints(given.ps, where="--ps")
    settings = client_settings(given)
    with Looker(endpoints, settings=settings, timeout_s=given.timeout) as looker:
        if given.json:
            print(json.dumps(cluster_facts(endpoints, looker.look())))
        elif given.once:
            out = console()
            facts = cluster_facts(endpoints, looker.look())
            out.print(screen(facts, View(), width=out.width, height=_LINES_ONCE, has_keys=False))
        elif sys.stdin.isatty() and sys.stdout.isatty():
            _watch(looker, interval_s=given.interval)
        else:
            raise ConfigError("top needs a terminal; for scripts give --once or --json")


def _watch(looker: Looker, *, interval_s: float) -> None:
    """Show the cluster until somebody quits."""
    out = Console()
    view, facts = View(), None
    pending: concurrent.futures.Future[Any] | None = None
    due_s = time.monotonic()
    with _keys() as read, Live(console=out, screen=True, auto_refresh=False) as live:
        size = None
        while True:
            if pending is None and not view.is_paused and time.monotonic() >= due_s:
                pending, due_s = looker.start(), time.monotonic() + interval_s
            changed = size != (size := out.size)
            if pending is not None and pending.done():
                facts, pending, changed = (
                    cluster_facts(looker.endpoints, pending.result()),
                    None,
                    True,
                )
            for key in read(_POLL_S):
                if key in "qQ\x03":
                    return
                view, changed = view.after(key), True
            if changed:
                live.update(screen(facts, view, width=size.width, height=size.height), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Have the terminal hand over keys one by one; give what reads those that came within some seconds."""
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)

    def read(wait_s: float) -> str:
        ready, _, _ = select.select([number], [], [], wait_s)
        return os.read(number, 64).decode(errors="ignore") if ready else ""

    tty.setcbreak(number)
    try:
        yield read
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
