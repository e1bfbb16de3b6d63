"""``pserver checkpoint``: its flags, and what each of its verbs does.

Rooms before and after: ``cli`` adds the flags and prints what comes back; save and load ask a cluster, the
others work on a folder alone.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pserver.checkpoint.fit import ON_MISMATCH
from pserver.checkpoint.fold import fold
from pserver.checkpoint.manifest import MODES, Manifest, Mode
from pserver.checkpoint.places import open_store
from pserver.checkpoint.store import Store, choose_version, manifest_of
from pserver.checkpoint.tools import diff, prune, verify
from pserver.client.client import Client
from pserver.client.saving import SaveProgress, Saving
from pserver.errors import CheckpointError, ConfigError, nearest
from pserver.options import CommandParser, whole_number

NUMBERS: dict[Mode, str] = {"full": "0", "delta": "1", "base": "2", "batch": "3", "revert": "5"}
"""Paddle's numbers of the save modes; it has no 4."""

_TELL_S = 1.0  # between two lines of a save that is waited for

Connect: TypeAlias = Callable[[argparse.Namespace], Client]


@dataclass(frozen=True, slots=True)
class Output:
    """What a command prints: an object with ``--json``, lines without."""

    facts: dict[str, Any]
    lines: Sequence[str]


def mode_of(text: str) -> Mode:
    """Return the mode that a word or a number names.

    Raises:
        ArgumentTypeError: it names none.

    >>> mode_of("0"), mode_of("delta")
    ('full', 'delta')
    """
    for mode in MODES:
        if text in (mode, NUMBERS[mode]):
            return mode
    numbers = list(NUMBERS.values())
    raise argparse.ArgumentTypeError(f"unknown mode {text!r}; {nearest(text, [*MODES, *numbers])}")


def add_checkpoint(
    parser: CommandParser, *, cluster_flags: Callable[[argparse.ArgumentParser], None]
) -> None:
    """Give ``checkpoint`` its verbs."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def add(name: str, work: Callable[..., Output], text: str) -> argparse.ArgumentParser:
        verb: argparse.ArgumentParser = verbs.add_parser(name, help=text)
        verb.set_defaults(work=work)
        return verb

    saving = add("save", _save, "save all shards as of one instant, while others go on")
    cluster_flags(saving)
    modes = ", ".join(f"{mode} ({number})" for mode, number in NUMBERS.items())
    saving.add_argument(
        "--mode",
        type=mode_of,
        default="full",
        help=f"{modes}: which rows, with Paddle's number; batch and revert write what full does, base "
        "those of ctr tables that are for serving (default: full)",
        metavar="MODE",
    )
    saving.add_argument(
        "--delta", action="store_const", const="delta", dest="mode", help="as --mode delta"
    )
    saving.add_argument(
        "--wait", action="store_true", help="until the version is there, telling how far it is"
    )
    waiting = add(
        "wait", _wait, "wait for the save that is under way, or tell how the last one ended"
    )
    cluster_flags(waiting)
    loading = add("load", _load, "load a version into running servers, in place of what they hold")
    cluster_flags(loading)
    loading.add_argument("version", nargs="?", default="latest", help="(default: latest)")
    loading.add_argument(
        "--on-mismatch",
        choices=ON_MISMATCH,
        default="fail",
        help="what a table that exists with another spec takes: nothing but an error, weights only, also "
        "rows of another dim, or weights of another row_dtype, rounded (default: fail)",
    )
    listing = add("ls", _ls, "list the versions in a folder")
    verifying = add("verify", _verify, "read versions whole and check them")
    comparing = add("diff", _diff, "tell how the rows of two versions differ")
    compacting = add("compact", _compact, "write a version and the deltas under it as a full one")
    pruning = add("prune", _prune, "remove old versions and what cut-off saves left")
    merging = add("merge", _merge, "write a version, its deltas folded in, into another folder")
    for verb in (listing, verifying, comparing, compacting, pruning, merging):
        verb.add_argument("folder", help="where the versions lie")
        verb.add_argument("--json", action="store_true", help="print one JSON object")
    for verb in (verifying, compacting, merging):
        verb.add_argument("version", nargs="?", default="latest", help="(default: latest)")
    verifying.add_argument("--all", action="store_true", help="every version")
    for side in ("first", "second"):
        comparing.add_argument(side, help="a version")
    pruning.add_argument(
        "--keep", type=whole_number, default=3, help="full versions that stay (default: 3)"
    )
    merging.add_argument("--to", required=True, help="the other folder")


def checkpoint(given: argparse.Namespace, connect: Connect) -> Output:
    """Do what was asked."""
    work: Callable[[argparse.Namespace, Any], Output] = given.work
    if given.verb in ("save", "wait", "load"):
        with connect(given) as client:
            return work(given, client)
    return work(given, open_store(given.folder, where="folder", writes=False))


def _save(given: argparse.Namespace, client: Client) -> Output:
    saving = client.checkpoints.begin_save(mode=given.mode)
    if given.wait:
        return _saved(saving)
    base = f" (a delta to {saving.base})" if saving.base else ""
    line = (
        f"saving {saving.version}{base}: its cut is marked, and the servers go on by themselves; follow "
        f"it with: pserver checkpoint wait --ps {given.ps}"
    )
    return Output({"version": saving.version, "base": saving.base, "is_done": False}, [line])


def _wait(given: argparse.Namespace, client: Client) -> Output:
    del given
    saving = client.checkpoints.last_save()
    if saving is None:
        raise CheckpointError("checkpoint wait: the servers made no save since they were started")
    return _saved(saving)


def _saved(saving: Saving) -> Output:
    """Wait for a save, telling how far it is, and return what it wrote."""
    told_s = time.monotonic()

    def tell(progress: SaveProgress) -> None:
        nonlocal told_s
        if time.monotonic() - told_s < _TELL_S:
            return
        told_s = time.monotonic()
        print(
            f"saving {saving.version}: rows {progress.rows:,} of at most {progress.rows_max:,}, "
            f"bytes {progress.bytes:,}, seconds {progress.seconds:.0f}",
            file=sys.stderr,
            flush=True,
        )

    saved = saving.wait(tell)
    base = f" (a delta to {saved.base})" if saved.base else ""
    line = (
        f"saved {saved.version}{base}: rows {saved.rows:,}, bytes {saved.bytes:,}, "
        f"seconds {saved.seconds:.2f}, longest pause {1e3 * saved.longest_pause_s:.1f} ms"
    )
    return Output({**dataclasses.asdict(saved), "is_done": True}, [line])


def _load(given: argparse.Namespace, client: Client) -> Output:
    loaded = client.checkpoints.load(given.version, on_mismatch=given.on_mismatch)
    lines = [f"left as it was, since {loaded.version} has no such table: {n}" for n in loaded.left]
    lines.append(
        f"loaded {loaded.version}: tables {len(loaded.tables)}, rows {loaded.rows:,}, optimizer "
        f"state {loaded.state_taken} of {loaded.state_tables}, bytes {loaded.bytes:,}, "
        f"seconds {loaded.seconds:.2f}; clients must connect anew"
    )
    return Output(dataclasses.asdict(loaded), lines)


def _facts(manifest: Manifest) -> dict[str, Any]:
    return {
        "version": manifest.version,
        "mode": manifest.mode,
        "base": manifest.base,
        "created": manifest.created,
        "shards": manifest.num_shards,
        "epoch": manifest.epoch,
        "tables": [table.name for table in manifest.tables],
        "rows": manifest.num_rows,
        "bytes": manifest.num_bytes,
    }


def _line(manifest: Manifest) -> str:
    base = f" on {manifest.base}" if manifest.base else ""
    return (
        f"{manifest.version}  {manifest.created}  {manifest.mode}{base}: tables "
        f"{len(manifest.tables)}, rows {manifest.num_rows:,}, bytes {manifest.num_bytes:,}, "
        f"shards {manifest.num_shards}"
    )


def _ls(given: argparse.Namespace, store: Store) -> Output:
    del given
    begun = [(version, _sizes_begun(store, version)) for version in store.leftovers()]
    lines, facts = [], []
    for version in store.versions():
        try:
            manifest = manifest_of(store, version)
        except CheckpointError as error:
            lines.append(f"{version}  {error}")
            facts.append({"version": version, "error": str(error)})
        else:
            lines.append(_line(manifest))
            facts.append(_facts(manifest))
    under_way = []
    for version, sizes in begun:
        if sizes is None:
            continue
        size = sum(sizes.values())
        lines.append(
            f"{version}  not there yet: it is being saved, or was cut off; files {len(sizes)}, "
            f"bytes {size:,}"
        )
        under_way.append({"version": version, "files": len(sizes), "bytes": size})
    lines = lines or [f"{store.where}: no checkpoint is there"]
    return Output({"versions": facts, "begun": under_way}, lines)


def _sizes_begun(store: Store, version: str) -> dict[str, int] | None:
    """Return the bytes of the files of a begun version; None if it was published meanwhile."""
    try:
        return store.sizes_begun(version)
    except CheckpointError:
        return None


def _verify(given: argparse.Namespace, store: Store) -> Output:
    names = store.versions() if given.all else [choose_version(store, given.version)]
    manifests = [verify(store, name) for name in names]
    lines = [f"whole: {_line(manifest)}" for manifest in manifests]
    return Output({"versions": [_facts(m) for m in manifests]}, lines)


def _diff(given: argparse.Namespace, store: Store) -> Output:
    first, second = (choose_version(store, name) for name in (given.first, given.second))
    found = diff(store, first, second)
    lines = [f"from {first} to {second}:"]
    lines += [
        f"{each.table}: rows added {each.added:,}, removed {each.removed:,}, changed "
        f"{each.changed:,}, the same {each.same:,}; norm of the change {each.norm:.6g}"
        for each in found
    ]
    tables = [dataclasses.asdict(each) for each in found]
    return Output({"first": first, "second": second, "tables": tables}, lines)


def _compact(given: argparse.Namespace, store: Store) -> Output:
    version = choose_version(store, given.version)
    made = fold(store, version, store)
    return Output(_facts(made), [f"{version} is written as {_line(made)}"])


def _merge(given: argparse.Namespace, store: Store) -> Output:
    version = choose_version(store, given.version)
    target = open_store(given.to, where="--to", writes=True)
    made = fold(store, version, target)
    return Output(_facts(made), [f"{version} is written to {target.where} as {_line(made)}"])


def _prune(given: argparse.Namespace, store: Store) -> Output:
    if given.keep < 1:
        raise ConfigError(f"--keep must be at least 1, got {given.keep}")
    removed = prune(store, keep=given.keep)
    left = store.versions()
    line = f"removed {', '.join(removed) or 'nothing'}; {len(left)} versions stay"
    return Output({"removed": removed, "versions": left}, [line])
