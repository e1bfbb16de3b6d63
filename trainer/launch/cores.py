"""How many processors this process may use, which in a container or under a batch system are not all there are.

Rooms before and after: ``launch.local`` shares them out among trainers, ``launch.ray_cluster`` tells them to a Ray of its own.
"""

import math
import os
from pathlib import Path

_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Return the processors of this process's affinity, or of its control groups' quota (version 2) if that is less."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota(_OWN_GROUP, _GROUPS)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _quota(own_group: Path, groups: Path) -> float | None:
    """Return the least quota of a control group and those around it, in processors; None without one.

    Args:
        own_group: file that names the group of this process, such as ``0::/pod/container``.
        groups: where groups are mounted.
    """
    try:
        lines = own_group.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    path = next((line[len("0::/") :] for line in lines if line.startswith("0::/")), "")
    own = groups / path
    found = [_quota_of(group) for group in (own, *own.parents) if group.is_relative_to(groups)]
    return min((quota for quota in found if quota is not None), default=None)


def _quota_of(group: Path) -> float | None:
    """Return the quota of one group: ``cpu.max`` says ``max 100000``, or microseconds of CPU a period."""
    try:
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
    except (
        OSError,
        ValueError,
    ):  # the root has none, and other versions of groups have other files
        return None
    return None if quota == "max" else int(quota) / int(period)
