"""What a start costs: seconds until a server is ready, without and with a compile cache, and its memory when empty.

Each server is a process of its own, from nothing to the line that says where it listens: interpreter, imports,
kernels, port. The cold one has an empty compile cache; those after it have what it left. ``cpu_s`` are its own
seconds of CPU, which a busy machine does not stretch as it does the others. ``import_cpu_s`` is a process that
imports the command and ends: the rest of a warm start is loading the kernels and opening the port.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common import wait_ready

_WARM_STARTS = 5
_SERVE = ("-m", "pserver", "serve", "--bind", "127.0.0.1:0", "--log-level", "warning")
_KIB_A_MIB = 1024


@dataclass(frozen=True, slots=True)
class Start:
    """One server's way to ready, and what it then holds."""

    seconds: float
    cpu_s: float
    rss_mib: float
    own_mib: float


def run() -> dict[str, Any]:
    """Return seconds of a cold start, medians of warm ones, and the memory of an empty server in MiB."""
    with tempfile.TemporaryDirectory(prefix="pserver-bench-") as cache:
        environ = {**os.environ, "NUMBA_CACHE_DIR": cache}
        cold = _start(environ)
        warm = [_start(environ) for _ in range(_WARM_STARTS)]
        imports = [_imports(environ) for _ in range(_WARM_STARTS)]
    return {
        "cold_s": cold.seconds,
        "cold_cpu_s": cold.cpu_s,
        "warm_s": statistics.median(each.seconds for each in warm),
        "warm_cpu_s": statistics.median(each.cpu_s for each in warm),
        "import_cpu_s": statistics.median(imports),
        "empty_rss_mib": statistics.median(each.rss_mib for each in warm),
        "empty_own_mib": statistics.median(each.own_mib for each in warm),
    }


def _start(environ: Mapping[str, str]) -> Start:
    """Start a server, look at it when it is ready, and end it."""
    begin = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, *_SERVE], stdout=subprocess.PIPE, text=True, env=environ
    )
    try:
        wait_ready(child)
        seconds = time.perf_counter() - begin
        return Start(seconds, _cpu_s(child.pid), *_memory_mib(child.pid))
    finally:
        child.terminate()
        child.communicate(timeout=60)


def _imports(environ: Mapping[str, str]) -> float:
    """Return the seconds of CPU of a process that imports what a server needs."""
    child = subprocess.Popen([sys.executable, "-c", "import pserver.cli.main"], env=environ)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise RuntimeError(f"the import ended with status {child.returncode}")
    return usage.ru_utime + usage.ru_stime


def _cpu_s(pid: int) -> float:
    """Return what a process has used of CPUs so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mib(pid: int) -> tuple[float, float]:
    """Return a process's resident memory, and what of it lies in no file, in MiB."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    kib = {
        name: int(number) for name, number in re.findall(r"^(VmRSS|RssAnon):\s+(\d+)", text, re.M)
    }
    return kib["VmRSS"] / _KIB_A_MIB, kib["RssAnon"] / _KIB_A_MIB
