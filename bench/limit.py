"""Processes that may use only so much memory, page cache included: a control group, or nothing.

Which of them a machine has differs: a writable group of version 1 or 2, or systemd. Where there is none
a benchmark that needs one says so and measures nothing.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")
_JOIN = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


@contextmanager
def memory_limit(num_bytes: int) -> Iterator[tuple[str, Sequence[str]] | None]:
    """Give what holds a command to that much memory: its name, and the words before the command.

    None if this machine lets us set no limit. A group is removed when the block ends.
    """
    for name, folder, file in (
        ("cgroup v2", _V2, "memory.max"),
        ("cgroup v1", _V1, "memory.limit_in_bytes"),
    ):
        group = folder / f"pserver-bench-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if _is_set(group / file, num_bytes):
                yield name, ("sh", "-c", _JOIN, str(group))
                return
        finally:
            group.rmdir()
    words = ("systemd-run", "--scope", "--quiet", "-p", f"MemoryMax={num_bytes}")
    if shutil.which(words[0]) and not subprocess.run([*words, "true"], check=False).returncode:
        yield "systemd-run", words
    else:
        yield None


def _is_set(limit: Path, num_bytes: int) -> bool:
    """Return whether a group that was just made has such a limit, and took it."""
    try:
        if limit.exists():  # the system makes it; in a plain folder there is none
            limit.write_text(str(num_bytes), encoding="ascii")
            return True
    except OSError:
        pass
    return False
