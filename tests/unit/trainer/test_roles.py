"""Embedding trainers and dense trainers together: the parameters and rows of one process.

Trainers are threads over shards of this process; they meet by real sockets.
"""

import io
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import pserver
from collective import CollectiveError, PeerLostError
from tests import certificates
from tests.unit.trainer.models import on_file
from tests.unit.trainer.split_runs import RULE, SYNC, WAIT_S, RunTogether, alone, write
from tests.unit.trainer.test_hybrid import free_port, joined_order
from trainer.config import RunSettings
from trainer.errors import TrainerError
from trainer.job import run as job
from trainer.job.summary import Summary, summary_table


def shown(summary: Summary) -> str:
    """Return what a person sees of the figures."""
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(summary_table(summary))
    return console.export_text()


def listening(denses: int, **values: object) -> list[RunSettings]:
    """Return the settings of dense trainers on ports of their own."""
    own: dict[str, object] = {"role": "dense", "device": "cpu", "dense_optimizer": RULE, "dim": 4}
    if denses > 1:
        own |= {"trainers": denses, "master": f"127.0.0.1:{free_port()}"}
    ids = [{"trainer_id": number} if denses > 1 else {} for number in range(denses)]
    ports = [f"127.0.0.1:{free_port()}" for _ in ids]
    return [
        RunSettings.make({**own, "listen": port, **one, **values}, origins={})
        for port, one in zip(ports, ids, strict=True)
    ]


def embedding(
    path: Path, denses: list[RunSettings], embeds: int, **values: object
) -> list[RunSettings]:
    """Return the settings of embedding trainers."""
    addresses = ",".join(str(one.listen) for one in denses)
    shared = {"role": "embed", "next": addresses, "trainers": embeds, "ps": "here:1", **values}
    return [on_file(path, device=None, trainer_id=number, **shared) for number in range(embeds)]


@pytest.mark.parametrize(
    ("embeds", "denses", "parts"),
    [
        (2, 1, 3),
        (1, 2, 4),
        pytest.param(2, 2, 1, marks=pytest.mark.slow),
        pytest.param(3, 1, 9, marks=pytest.mark.slow),
    ],
)
def test_roles_equal_one_process_on_the_joined_batch(
    run_together: RunTogether, tmp_path: Path, embeds: int, denses: int, parts: int
) -> None:
    """Any number on each side, also with fewer samples than micro-batches: parameters within 1e-6."""
    rows, batch = 40 * embeds, 8
    many = write(tmp_path / "many.txt", list(range(rows)))
    one = write(tmp_path / "one.txt", joined_order(rows, embeds, batch))

    behind = listening(denses)
    before = embedding(many, behind, embeds, batch_size=batch, accumulate_steps=parts, **SYNC)
    summaries, found, weights = run_together([*behind, *before])
    (wanted_summary,), (wanted,), wanted_weights = run_together(
        [alone(one, batch_size=batch * embeds, **SYNC)]
    )

    assert len(found) == denses
    for dense in found:
        assert torch.equal(dense, found[0])
        torch.testing.assert_close(dense, wanted, rtol=0.0, atol=1e-6)
    assert np.abs(weights - wanted_weights).max() < 1e-5
    there, here = summaries[:denses], summaries[denses:]
    assert [summary.steps for summary in here] == [5] * embeds
    assert sum(summary.samples for summary in there) == sum(s.samples for s in here) == rows
    assert {summary.strategy["dense"] for summary in summaries} == {"dense_trainers"}
    for summary in here:  # all micro-batches' gradients leave as one push
        assert summary.watch["pushes"] == 5.0
        assert "dense_wait_share" in summary.watch
        assert "waited for dense trainers" in shown(summary)
    assert wanted_summary.steps == 5
    assert "in training" in shown(there[0])
    assert "held-out" not in shown(there[0])
    if denses == 1:
        assert there[0].train_auc == pytest.approx(wanted_summary.train_auc, abs=1e-3)
        assert there[0].watch["stage_queue_bytes_max"] > 0


@pytest.mark.parametrize(
    "mode",
    [
        "sync",
        "async",
        pytest.param("half_async", marks=pytest.mark.slow),
        pytest.param("geo", marks=pytest.mark.slow),
    ],
)
def test_uneven_shares_end_well_and_held_out_rows_are_scored(
    run_together: RunTogether, tmp_path: Path, mode: str
) -> None:
    """Embedding trainers with 2 and 7 steps, in every mode; trainer 0 scores when both are done."""
    path = write(tmp_path / "rows.txt", list(range(90)))
    behind = listening(1)
    before = embedding(path, behind, 2, mode=mode, eval_last=20)
    sizes = (20, 5)
    before = [
        RunSettings.make(
            {**{n: getattr(one, n) for n in one.model_fields_set}, "batch_size": size}, origins={}
        )
        for one, size in zip(before, sizes, strict=True)
    ]

    (dense, first, second), _, _ = run_together([*behind, *before])

    assert (first.steps, second.steps, dense.steps) == (2, 7, 7)
    assert dense.samples == first.samples + second.samples == 70
    assert (first.eval_samples, second.eval_samples) == (20, 0)
    assert first.auc is not None
    assert first.mode == dense.mode == mode


@pytest.mark.gpu
def test_a_dense_part_on_a_gpu_agrees_with_one_process(
    run_together: RunTogether, tmp_path: Path
) -> None:
    """Rows travel through host memory: parameters within 1e-4 of those of a run on the CPU."""
    path = write(tmp_path / "rows.txt", list(range(80)))
    behind = listening(1, device="cuda")

    told, (found,), _ = run_together([*behind, *embedding(path, behind, 1, batch_size=8, **SYNC)])
    _, (wanted,), _ = run_together([alone(path, batch_size=8, **SYNC)])

    torch.testing.assert_close(found.cpu(), wanted, rtol=0.0, atol=1e-4)
    assert [one.device for one in told] == ["cuda", "cpu"]


def test_roles_with_tls_reach_each_other_and_strangers_do_not(
    run_together: RunTogether, tmp_path: Path
) -> None:
    """The flags of TLS hold between trainers too: a run is as without; another authority is refused by name."""
    path = write(tmp_path / "rows.txt", list(range(16)))
    ours, theirs = (certificates.made(tmp_path / name) for name in ("ours", "theirs"))
    behind = listening(1, **certificates.files(ours, "server"))
    before = embedding(path, behind, 1, batch_size=8, **certificates.files(ours))
    bad = embedding(path, behind, 1, **certificates.files(ours, ca=theirs))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(job.run, behind[0])

        with pytest.raises(pserver.ConfigError, match=r"--next: .* certificate is not good here"):
            run_together(bad)
        (here,), _, _ = run_together(before)

        assert (here.samples, running.result(WAIT_S).samples) == (16, 16)


def test_another_model_is_refused_with_both_names(
    run_together: RunTogether, tmp_path: Path
) -> None:
    """The embedding trainer ends with a setting that cannot work; who waited in vain is told."""
    path = write(tmp_path / "rows.txt", list(range(10)))
    (behind,) = listening(1, model="fm", barrier_timeout=0.5)
    (before,) = embedding(path, [behind], 1)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(job.run, behind)

        with pytest.raises(pserver.ConfigError, match=r"model 'fm' here and 'deepfm' there"):
            run_together([before])

        with pytest.raises(PeerLostError, match=r"no embedding trainer came within 0.5 s; refused"):
            running.result(WAIT_S)


def test_an_embedding_trainer_that_fails_ends_the_dense_one_with_its_words(
    run_together: RunTogether, tmp_path: Path
) -> None:
    """A bad line in its data: the dense trainer's error has the line, and so has the other's."""
    path = write(tmp_path / "rows.txt", list(range(40)))
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[35] = "bad\n"
    path.write_text("".join(lines), encoding="utf-8")
    (behind,) = listening(1)
    before = embedding(path, [behind], 2, batch_size=4)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(job.run, behind)

        with pytest.raises((CollectiveError, TrainerError)):
            run_together(before)

        with pytest.raises(PeerLostError, match=r"embedding trainer 1 .* failed: .*rows.txt:36"):
            running.result(WAIT_S)


def test_a_taken_port_is_refused(tmp_path: Path) -> None:
    """The error names the flag and the address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        given = RunSettings.make({"role": "dense", "listen": address}, origins={})

        with pytest.raises(pserver.ConfigError, match=f"--listen: cannot listen on {address}"):
            job.run(given)
