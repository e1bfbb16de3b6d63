"""What mutual TLS costs a call: pulls and pushes with it and without, in turns of one run.

Two servers with the same rows, one of them with certificates of its own; the client, the batches and the figures are those of
``rpc``. Ratios are medians of the turns'.
"""

import contextlib
import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench.common import distinct_keys, process, servers, wait_ready
from bench.rpc import WINDOWS, fill, ours
from pserver.certs import make_certs

_ROWS = 1_000_000
_TURNS = 5
_SERVE = ("-m", "pserver", "serve", "--bind", "127.0.0.1:0", "--log-level", "warning")


def _files(folder: Path, name: str) -> dict[str, str]:
    return {
        "tls_cert": str(folder / f"{name}.pem"),
        "tls_key": str(folder / f"{name}-key.pem"),
        "tls_ca": str(folder / "ca.pem"),
    }


def run(*, num_rows: int = _ROWS) -> dict[str, Any]:
    """Return the figures of pull and push with TLS, and their ratios to those without."""
    wanted = distinct_keys(20)
    turns: dict[str, list[dict[str, float]]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_certs(folder, hosts=("localhost", "127.0.0.1"), days=1)
        flags = [f"--{k.replace('_', '-')}={v}" for k, v in _files(folder, "server").items()]
        plain = stack.enter_context(servers(1))
        secret = wait_ready(stack.enter_context(process(*_SERVE, *flags)))
        access = _files(folder, "client")
        fill(plain, num_rows, wanted)
        fill(secret, num_rows, wanted, access)
        for _ in range(_TURNS):
            for window in WINDOWS:
                without = ours(plain, window, wanted)
                for verb, figures in ours(secret, window, wanted, access).items():
                    ratios = {f"{k}_ratio": figures[k] / without[verb][k] for k in figures}
                    turns.setdefault(f"{verb}_{window}", []).append({**figures, **ratios})
    return {
        name: {key: statistics.median(turn[key] for turn in each) for key in each[0]}
        for name, each in turns.items()
    }
