"""What ``trainer.launch.cores`` promises: no more processors than this process gets."""

import os
from pathlib import Path

import pytest

from trainer.launch import cores
from trainer.launch.cores import usable_cores


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a tree of control groups in which this process is ``pod/container``, on 8 processors."""
    (tmp_path / "own").write_text("1:name=systemd:/other\n0::/pod/container\n", encoding="ascii")
    (tmp_path / "groups" / "pod" / "container").mkdir(parents=True)
    monkeypatch.setattr(cores, "_OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(cores, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    return tmp_path / "groups"


@pytest.mark.parametrize(
    ("container", "pod", "expected"),
    [
        ("max 100000", "max 100000", 8),
        ("400000 100000", "max 100000", 4),
        ("150000 100000", "max 100000", 2),  # a part of one more is worth a thread
        ("max 100000", "300000 100000", 3),
        ("600000 100000", "200000 100000", 2),
        ("1600000 100000", "max 100000", 8),
        ("10000 100000", "max 100000", 1),
        ("odd", None, 8),
        (None, None, 8),
    ],
)
def test_the_least_quota_counts(
    groups: Path, container: str | None, pod: str | None, expected: int
) -> None:
    """Of this process's group and those around it, but never more than its affinity or less than one."""
    for folder, text in (("pod/container", container), ("pod", pod)):
        if text is not None:
            (groups / folder / "cpu.max").write_text(f"{text}\n", encoding="ascii")

    assert usable_cores() == expected


def test_affinity_counts_where_there_are_no_groups(groups: Path) -> None:
    """A system without control groups, or with those of version 1, has no quota that is read."""
    (groups.parent / "own").unlink()

    assert usable_cores() == 8


def test_a_process_that_is_bound_to_one_processor_has_one() -> None:
    """As under ``taskset`` or a batch system: what the machine has beside it does not count."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})

        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
