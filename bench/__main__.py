"""``python -m bench NAME``: run one benchmark and print it, with ``--json`` as one object."""

import importlib
import os
import sys
from collections.abc import Sequence

import pserver
from bench import load
from bench.common import ROWS, show
from pserver.malloc import keep_large_blocks


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as trainer.cli does; before torch loads
    parser = pserver.CommandParser(prog="python -m bench", description="Measure one layer.")
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, text in (
        ("kernel", "index, gather and optimizer kernels alone"),
        ("table", "a table in process, and its growth"),
        ("push", "1,000 rows to a small and to a large table, every optimizer"),
        ("storage", "tables on a file, up to three times the memory"),
        ("start", "a server until it is ready, cold and warm, and its memory when it is empty"),
        ("wire", "building and reading messages"),
        ("checkpoint", "a save under load and a load, beside a plain write of the same bytes"),
        ("journal", "pushes without a journal and with each promise of fsync, and a restart"),
        ("rpc", "pull and push through a server, beside a bare echo and torch's RPC"),
        ("tls", "pull and push with mutual TLS, beside the same without"),
        ("train", "training through a server, beside the dense part alone"),
        ("modes", "every mode over links of several latencies and widths: samples/s and AUC"),
        ("collective", "all-reduce: ring, hierarchical and gloo, fused sums, overlap, a slow link"),
        ("overlap", "a step of async beside its dense part alone, which costs as much as its link"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--json", action="store_true", help="print one JSON object")
        if name in ("kernel", "table", "push", "checkpoint", "rpc"):
            rows = 10_000_000 if name == "push" else ROWS
            command.add_argument(
                "--rows", type=int, default=rows, help=f"of the table (default: {rows})"
            )
    load.add_command(commands)
    given = parser.parse_args(arguments)
    keep_large_blocks()
    if given.name == "load":
        return load.run_command(given)
    layer = importlib.import_module(f"bench.{given.name}")
    result = layer.run(num_rows=given.rows) if "rows" in given else layer.run()
    show(given.name, result, as_json=given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
