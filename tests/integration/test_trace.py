"""A trace over real servers: three processes with clocks of their own, and one batch through all of them."""

import signal
from pathlib import Path

import pytest

from pserver.cli.main import main
from tests.integration.servers import Start, endpoints, start_cluster
from tests.traced import check_batches, kernels_of
from trainer.config import RunSettings
from trainer.job.run import run

STEPS = 20


def traced_run(start: Start, folder: Path) -> Path:
    """Return the merged trace of a run on two servers, which have ended well."""
    cluster = start_cluster(start, 2, "--trace", str(folder / "s.json"))
    run(
        RunSettings(
            ps=endpoints(cluster),
            rows=64 * STEPS,
            eval_last=64,
            batch_size=64,
            scale=0.001,
            model="fm",
            device="cpu",
            mode="async",
            prefetch=0,
            trace=str(folder / "t.json"),
        )
    )
    for server in cluster:
        server.send(signal.SIGTERM)
        assert server.wait_exit()[0] == 0
    files = [str(folder / name) for name in ("t.json", "s-0.json", "s-1.json")]
    out = folder / "m.json"
    assert main(["trace", "merge", *files, "-o", str(out)]) == 0
    return out


@pytest.mark.slow
def test_a_batch_is_followed_through_two_servers_and_back(start: Start, tmp_path: Path) -> None:
    """Merged on one clock every span lies inside its parent, on both sides of the wire, and the steps add up."""
    out = traced_run(start, tmp_path)

    batches = check_batches(out, over_wire=True)
    assert [batch.number for batch in batches] == list(range(1, STEPS + 1))
    assert kernels_of(batches)["Pull"] == kernels_of(batches)["Push"] == 2 * STEPS
    where = {
        part.where.split(",")[0]
        for batch in batches
        for call in batch.root.parts
        for wire in call.parts
        for part in wire.parts
        if part.name == "answer"
    }
    assert where == {"shard 0", "shard 1"}
