"""A save while a trainer pulls and pushes, and a load: beside a plain write of the same bytes.

One server process, one client process, loopback, a folder of the disk that holds temporary files; rows
of dim 16 with adagrad state. Quiet and busy saves, and plain writes, take turns within one run. A busy
save is held against the time right before it: the same client, the same batches. Beside the longest pause
stands the longest gap that a process saw that only sleeps: a save cannot pause for less.
"""

import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import pserver
from bench.common import DIM, distinct_keys, fill_keys, process, wait_ready
from bench.gaps import Gaps, watched
from pserver.arrays import Keys
from pserver.client.saving import Saved

ROWS = 10_000_000
_TURNS = 3
_BLOCK = 32 << 20  # as the files of a save
_BEFORE_S = 3.0
_TABLE = "bench"


def run(*, num_rows: int = ROWS) -> dict[str, Any]:
    """Return bytes a second of saves, loads and plain writes, and what requests saw of a save."""
    with tempfile.TemporaryDirectory(prefix="pserver-bench-") as folder:
        arguments = ["-m", "pserver", "serve", "--bind", "127.0.0.1:0", "--log-level", "warning"]
        with process(*arguments, "--checkpoint-dir", folder) as child:
            endpoint = wait_ready(child)
            wanted = distinct_keys(20)
            with pserver.connect(endpoint) as client:
                client.create_table(pserver.TableSpec(name=_TABLE, dim=DIM, optimizer="adagrad"))
                for keys in fill_keys(num_rows, wanted):
                    client.pull(_TABLE, keys)
                with watched() as gaps:
                    turns = [
                        _turn(client, Path(folder), wanted, child.pid, gaps) for _ in range(_TURNS)
                    ]
        begin = time.perf_counter()
        with process(*arguments, "--checkpoint-dir", folder, "--restore", "latest") as child:
            endpoint = wait_ready(child)
            with pserver.connect(endpoint) as client:
                rows = sum(table.rows for table in client.stats()[0].tables)
            seconds = time.perf_counter() - begin
        assert rows == num_rows
    result: dict[str, Any] = {
        name: statistics.median(turn[name] for turn in turns) for name in turns[0]
    }
    # Freed memory stays with the process, so only the first save shows what one takes.
    result["quiet_more_memory_mib"] = max(turn["quiet_more_memory_mib"] for turn in turns)
    for name in ("longest_pause_ms", "longest_gap_ms"):
        result[f"{name}_worst"] = max(turn[name] for turn in turns)
    result["load_bytes_per_s_with_start"] = turns[-1]["bytes"] / seconds
    return result


def _turn(
    client: pserver.Client, folder: Path, wanted: list[Keys], pid: int, gaps: Gaps
) -> dict[str, float]:
    """Write plainly, save while nothing else happens, save under load."""
    memory = _resident(pid)
    quiet, peak = _watched(client, pid)
    plain_s = _plain(folder, quiet.bytes)
    load = _Load(client, wanted)
    gaps.longest_ms()
    time.sleep(_BEFORE_S)
    before, gap_before_ms = load.cut_off(), gaps.longest_ms()
    busy, _ = _watched(client, pid)
    during, gap_ms = load.cut_off(), gaps.longest_ms()
    load.end()
    return {
        "bytes": float(quiet.bytes),
        "plain_bytes_per_s": quiet.bytes / plain_s,
        "quiet_bytes_per_s": quiet.bytes / quiet.seconds,
        "quiet_share_of_plain": plain_s / quiet.seconds,
        "quiet_more_memory_mib": (peak - memory) / 2**20,
        "busy_seconds": busy.seconds,
        "busy_steps_share": during[0] / before[0],
        "busy_longest_step_ms": 1e3 * during[1],
        "before_longest_step_ms": 1e3 * before[1],
        "longest_pause_ms": 1e3 * busy.longest_pause_s,
        "longest_gap_ms": gap_ms,
        "before_longest_gap_ms": gap_before_ms,
    }


def _watched(client: pserver.Client, pid: int) -> tuple[Saved, int]:
    """Save, and return the most memory that the server had meanwhile."""
    peak, is_over = [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            peak[0] = max(peak[0], _resident(pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        return client.checkpoints.save(), peak[0]
    finally:
        is_over.set()
        thread.join()


class _Load:
    """A trainer's pulls and pushes, without the training."""

    def __init__(self, client: pserver.Client, wanted: list[Keys]) -> None:
        self._client, self._wanted = client, wanted
        self._grads = np.full(max(map(len, wanted)) * DIM, 0.01, np.float32)
        self._counts = np.empty(0, np.uint32)
        self._steps: list[float] = []
        self._begin = time.perf_counter()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        step = 0
        while not self._is_over.is_set():
            keys = self._wanted[step % len(self._wanted)]
            begin = time.perf_counter()
            self._client.start_pull({_TABLE: keys}).result()
            grads = self._grads[: keys.size * DIM]
            self._client.start_push({_TABLE: (keys, grads, self._counts)}).result()
            self._steps.append(time.perf_counter() - begin)
            step += 1

    def cut_off(self) -> tuple[float, float]:
        """Return steps a second since the last call, and the longest step."""
        steps, self._steps = self._steps, []
        seconds, self._begin = time.perf_counter() - self._begin, time.perf_counter()
        return len(steps) / seconds, max(steps)

    def end(self) -> None:
        """Stop."""
        self._is_over.set()
        self._thread.join()


def _plain(folder: Path, num_bytes: int) -> float:
    """Return the seconds in which files of these bytes are written and synced, one after the other."""
    block = np.random.default_rng(0).bytes(_BLOCK)
    begin = time.perf_counter()
    paths = [folder / f"plain-{i}" for i in range(-(-num_bytes // _BLOCK))]
    for path in paths:
        with path.open("wb") as file:
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
    seconds = time.perf_counter() - begin
    for path in paths:
        path.unlink()
    return seconds


def _resident(pid: int) -> int:
    """Return the memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
