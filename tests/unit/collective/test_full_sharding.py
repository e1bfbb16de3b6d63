"""Stage 3: the unsharded model's parameters in real processes, 1/N of the bytes on each."""

import pytest

from collective import GroupError
from collective.full_sharding import FullOptions, shard_fully
from tests.integration.forked import Piped
from tests.integration.servers import WAIT_S
from tests.unit.collective.fully_sharded import RANKS, main, model


@pytest.mark.integration
def test_parameters_and_bytes_are_those_of_one_process_and_the_formula(tmp_path):
    """Two processes, 50 steps of Adam: equal to 1e-6; parameters, gradients and state by rows.

    So are two copies of degree 1; layers that compute in bfloat16 come near.
    """
    meeting = f"file://{tmp_path}/meeting"
    started = [Piped(main, str(rank), meeting) for rank in range(RANKS)]
    try:
        for process in started:
            _, said = process.communicate(timeout=100)
            assert process.returncode == 0, said
    finally:
        for process in started:
            process.end(WAIT_S)


def test_stage_3_without_torchs_process_group_is_refused_with_the_reason():
    """The message says what to call, or what to take instead."""
    with pytest.raises(GroupError, match=r"call torch\.distributed\.init_process_group first"):
        shard_fully(model(), ["0"])


def test_offload_from_host_memory_is_refused():
    """On device cpu there is nothing to move."""
    with pytest.raises(GroupError, match="on device cpu it is in host memory already"):
        shard_fully(model(), ["0"], options=FullOptions(offload="cpu"))
