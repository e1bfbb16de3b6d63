"""``trainer launch`` with real processes: nodes that meet, ranks that are started again, the first failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.collective.test_meeting import free_port
from tests.unit.trainer.models import criteo_line

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

RANK = Path(__file__).with_name("launched_rank.py")
WAIT_S = 280.0


def start(words: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start ``trainer launch`` in a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "trainer", "launch", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


def ended(process: subprocess.Popen[str]) -> tuple[str, int]:
    """Return what it said and its status."""
    try:
        return process.communicate(timeout=WAIT_S)[0], process.returncode
    finally:
        process.kill()
        process.wait()


def test_two_nodes_meet_again_after_a_rank_died(tmp_path: Path) -> None:
    """Four ranks on two nodes; one dies. All start again, meet in the same store, and sum to the end."""
    ips, port = ("127.0.0.1", "127.0.0.2"), str(free_port())
    common = ["--nnodes", "2", "--nproc-per-node", "2", "--cluster-node-ips", ",".join(ips)]
    common += ["--port", port, "--max-restarts", "1"]
    nodes = [start([*common, "--node-ip", ip, "--log-dir", ip, str(RANK)], tmp_path) for ip in ips]

    told = [ended(node) for node in nodes]

    assert [status for _, status in told] == [0, 0], told
    logs = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("stdout.log")]
    assert sorted(log for log in logs if log) == ["sum 16.0\n"] * 4


def test_first_failure_is_told_with_its_log(tmp_path: Path) -> None:
    """A rank that dies for good ends the launch with its number, status and last words."""
    text, status = ended(start(["--worker_num", "2", str(RANK), "always"], tmp_path))

    assert status == 1
    last = text.splitlines()[-1]
    assert last.startswith(
        "trainer launch: rank 1 ended with status 9: this rank ends here; its log"
    )
    assert Path(tmp_path, last.rpartition(" ")[2]).is_file()


def test_job_runs_by_torchrun_with_averaged_dense_parts(tmp_path: Path) -> None:
    """``trainer run`` takes its number and meeting place from torchrun, its servers from the launch."""
    (tmp_path / "rows.txt").write_text("".join(map(criteo_line, range(400))), encoding="utf-8")
    (tmp_path / "job.toml").write_text(
        '[run]\ndata = "rows.txt"\nmodel = "fm"\ndim = 4\ndevice = "cpu"\nmode = "sync"\n'
        'dense = "allreduce"\nbatch_size = 50\n',
        encoding="utf-8",
    )
    words = ["--worker_num", "2", "--server_num", "1", "job.toml", "--epochs", "2"]

    text, status = ended(start(words, tmp_path))

    assert status == 0, text
    assert "[rank0]:gradients averaged over 2 trainers" in text
    assert "400 rows, 8 steps" in text
