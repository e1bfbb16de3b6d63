"""Stage 3: the unsharded model's parameters in real processes, 1/N of the bytes on each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collective import GroupError
from collective.full_sharding import FullOptions, shard_fully
from tests.unit.collective.fully_sharded import RANKS, model

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.integration
def test_parameters_and_bytes_are_those_of_one_process_and_the_formula(tmp_path):
    """Two processes, 50 steps of Adam: equal to 1e-6; parameters, gradients and state by rows.

    So are two copies of degree 1; layers that compute in bfloat16 come near.
    """
    meeting = f"file://{tmp_path}/meeting"
    programs = [
        f"from tests.unit.collective.fully_sharded import main; main({rank}, {meeting!r})"
        for rank in range(RANKS)
    ]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for program in programs
    ]
    try:
        for process in started:
            said, _ = process.communicate(timeout=100)
            assert process.returncode == 0, said
            assert said.endswith("equal\n")
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_stage_3_without_torchs_process_group_is_refused_with_the_reason():
    """The message says what to call, or what to take instead."""
    with pytest.raises(GroupError, match=r"call torch\.distributed\.init_process_group first"):
        shard_fully(model(), ["0"])


def test_offload_from_host_memory_is_refused():
    """On device cpu there is nothing to move."""
    with pytest.raises(GroupError, match="on device cpu it is in host memory already"):
        shard_fully(model(), ["0"], options=FullOptions(offload="cpu"))
