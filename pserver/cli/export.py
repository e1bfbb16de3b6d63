"""``pserver export`` and ``pserver import``: a table to and from one file of keys and vectors.

Rooms before and after: ``cli`` adds the commands; export works on a folder alone, import asks a cluster.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pserver.checkpoint.export import DTYPES, WRITERS, export
from pserver.checkpoint.places import open_store
from pserver.checkpoint.store import choose_version
from pserver.checkpoint.vector_files import READERS, read_vectors_file
from pserver.cli.shared import add_cluster_flags, connect_given
from pserver.errors import ConfigError, ShapeError, UnknownTableError
from pserver.spec import TableSpec
from pserver.table.choice import CHOICES


def columns_of(text: str) -> list[int]:
    """Return the columns that a text such as ``5,8:16`` names; the end is not in.

    Raises:
        ArgumentTypeError: the text has another form.

    >>> columns_of("5,8:10")
    [5, 8, 9]
    """
    columns: list[int] = []
    try:
        for part in text.split(","):
            begin, colon, end = part.partition(":")
            columns += range(int(begin), int(end)) if colon else [int(begin)]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must look like 5,8:16, got {text!r}") from error
    return columns


def add_export(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands.

    Args:
        add: makes a command's parser from its name and help.
    """
    exporting = add("export", help="write a table of a checkpoint as one file, sorted by key")
    exporting.add_argument("folder", help="where the versions lie")
    exporting.add_argument("--version", default="latest", help="(default: latest)")
    exporting.add_argument("--table", required=True, help="name of the table")
    exporting.add_argument("--format", choices=[*WRITERS], default="npy", help="(default: npy)")
    exporting.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="of the weights (default: float32)"
    )
    exporting.add_argument(
        "--rows",
        choices=CHOICES,
        default="all",
        help="of a table with accessor ctr: those that Paddle's save modes 2 (base) and 1 (delta) "
        "choose for serving (default: all)",
    )
    exporting.add_argument("--out", required=True, help="the file")
    exporting.add_argument("--json", action="store_true", help="print one JSON object")
    exporting.set_defaults(run=_export)

    importing = add("import", help="write keys and vectors of a file into a table of a cluster")
    add_cluster_flags(importing)
    importing.add_argument("file", help="the file")
    importing.add_argument("--table", required=True, help="name of the table")
    importing.add_argument(
        "--format", choices=[*READERS, "text"], required=True, help="text: a line is key v0 v1 ..."
    )
    importing.add_argument(
        "--columns",
        type=columns_of,
        default=[],
        help="of a text: which numbers of a line are the weights, as 5,8:16 (default: all)",
    )
    importing.add_argument(
        "--optimizer", help="make the table with this rule if it is not there (default: an error)"
    )
    importing.set_defaults(run=_import)


def _export(given: argparse.Namespace) -> None:
    store = open_store(given.folder, where="folder", writes=False)
    version = choose_version(store, given.version)
    how = (given.format, given.dtype)
    path = Path(given.out)
    done = export(store, version, given.table, path, how=how, choice=given.rows)
    _show(
        given,
        {"version": version, "table": given.table, **dataclasses.asdict(done)},
        f"exported {given.table} of {version} to {done.path}: rows {done.rows:,}, dim {done.dim}, "
        f"bytes {done.bytes:,}, error of a weight at most {done.error_max:.3g}, "
        f"{done.error_mean:.3g} on average",
    )


def _import(given: argparse.Namespace) -> None:
    rows = 0
    with connect_given(given) as client:
        spec: TableSpec | None = None
        for keys, vectors in read_vectors_file(Path(given.file), given.format, given.columns):
            if np.unique(keys).size != keys.size:
                raise ConfigError(f"import: {given.file} names a key twice")
            if spec is None:
                try:
                    spec = client.spec(given.table)
                except UnknownTableError:
                    if given.optimizer is None:
                        raise
                    wanted = TableSpec(
                        name=given.table, dim=vectors.shape[1], optimizer=given.optimizer
                    )
                    spec = client.create_table(wanted)
            if vectors.shape[1] != spec.dim:
                raise ShapeError(
                    f"import: {given.file} has vectors of {vectors.shape[1]} numbers, table "
                    f"{given.table!r} has dim {spec.dim}; choose the weights with --columns"
                )
            client.assign(given.table, keys, vectors)
            rows += keys.size
    if not rows:
        raise ConfigError(f"import: {given.file} has no rows: nothing was written")
    _show(
        given,
        {"table": given.table, "rows": rows},
        f"imported {rows:,} rows into {given.table}; optimizer state stays as it was",
    )


def _show(given: argparse.Namespace, facts: dict[str, object], line: str) -> None:
    print(json.dumps(facts) if given.json else line)
