"""``python -m bench NAME``: run one benchmark and print it, with ``--json`` as one object."""

import sys
from collections.abc import Sequence

import pserver
from bench import kernel, load, rpc, table, train, wire
from bench.common import show
from pserver.malloc import keep_large_blocks


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = pserver.CommandParser(prog="python -m bench", description="Measure one layer.")
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, text in (
        ("kernel", "index, gather and optimizer kernels alone"),
        ("table", "a table in process, and its growth"),
        ("wire", "building and reading messages"),
        ("rpc", "pull and push through a server, beside a bare echo and torch's RPC"),
        ("train", "training through a server, beside the dense part alone"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--json", action="store_true", help="print one JSON object")
        if name in ("kernel", "table", "rpc"):
            command.add_argument(
                "--rows", type=int, default=8_000_000, help="of the table (default: 8000000)"
            )
    load.add_command(commands)
    given = parser.parse_args(arguments)
    keep_large_blocks()
    if given.name == "load":
        return load.run_command(given)
    if given.name == "kernel":
        result = kernel.run(num_rows=given.rows)
    elif given.name == "table":
        result = table.run(num_rows=given.rows)
    elif given.name == "rpc":
        result = rpc.run(num_rows=given.rows)
    else:
        result = wire.run() if given.name == "wire" else train.run()
    show(given.name, result, as_json=given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
