"""Training over real servers: the same numbers as in one process, and no push lost or repeated."""

import json
import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from typing_extensions import override

import pserver
from tests.integration.forked import Piped
from tests.integration.servers import WAIT_S, Server, Start, endpoints, start_cluster
from trainer.cli.main import main
from trainer.config import RunSettings
from trainer.dataset import Generator
from trainer.embedding import EmbeddingBag
from trainer.job import model as job_model
from trainer.job import run as job
from trainer.job.run import run
from trainer.loop import CtrModel, train
from trainer.model import make_model

CRITEO = (
    Path(__file__).resolve().parents[2].parent
    / "shared"
    / "data"
    / "criteo_10k"
    / "train_examples.txt"
)
AUC_MIN = 0.735
"""What lr and wide_deep must reach on the last 2,000 rows after one pass over the first 8,000."""

BATCH, STEPS = 64, 30


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Leave the other cores to the servers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def name_table(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let runs in this process have a table of their own on servers that tests share."""
    for module in (job, job_model):
        monkeypatch.setattr(module, "TABLE", name)


# --- the same numbers ---------------------------------------------------------------------------


def losses(servers: str | None, *, shards: int = 1) -> list[float]:
    """Return the loss of each step of a run in which a pull sees every push before it."""
    where: dict[str, object] = {"ps": servers} if servers else {"shards": shards}
    small = {"rows": BATCH * STEPS, "batch_size": BATCH, "scale": 0.001, "eval_last": 100}
    settings = {"window": 1, "seed": 4, "device": "cpu", **small, **where}
    told: list[float] = []

    run(RunSettings.make(settings, origins={}), on_step=lambda step: told.append(step.loss))

    assert len(told) == STEPS
    return told


def test_a6_losses_are_those_of_embedded_shards(
    pair: list[Server], start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one seed and a window of one, 1, 2 and 3 processes give embedded mode's loss each step."""
    name_table(monkeypatch, "losses")
    one, three = (
        [start("--shard", str(i), "--shards", str(count)) for i in range(count)] for count in (1, 3)
    )
    expected = losses(None)
    others = [losses(None, shards=3)]
    for server in [*one, *three]:
        server.wait_ready()

    others += [losses(endpoints(cluster)) for cluster in (one, pair, three)]

    for other in others:
        assert other == pytest.approx(expected, rel=0.0, abs=1e-5)


# --- the command --------------------------------------------------------------------------------


@contextmanager
def trainer(*words: str) -> Iterator[Piped]:
    """Run ``trainer run`` as a process, which ends with the block."""
    process = Piped(main, "run", *words)
    try:
        yield process
    finally:
        process.end(WAIT_S)


def counts(cluster: list[Server], table: str) -> tuple[list[int], int]:
    """Return the pushes that each shard applied to a table, and its rows over all shards."""
    with pserver.connect(endpoints(cluster)) as client:
        tables = [t for shard in client.stats() for t in shard.tables if t.table == table]
    return [t.version for t in tables], sum(t.rows for t in tables)


def test_command_reaches_its_auc_on_real_data(pair: list[Server]) -> None:
    """``trainer run`` with lr, one pass over 8,000 rows of Criteo on two servers, is worth 0.735."""
    if not CRITEO.exists():
        pytest.skip("the real data is not here")
    words = ["--ps", endpoints(pair), "--data", str(CRITEO), "--eval-last", "2000"]

    with trainer(*words, "--model", "lr", "--batch-size", "32", "--json") as process:
        out, err = process.communicate(timeout=2 * WAIT_S)

    assert process.returncode == 0, err
    told = json.loads(out.splitlines()[-1])
    assert told["auc"] >= AUC_MIN
    assert (told["samples"], told["steps"], told["eval_samples"]) == (8000, 250, 2000)
    assert (told["shards"], told["retries"]) == (2, 0)
    assert counts(pair, "embedding") == ([250, 250], told["rows"])


def test_wide_deep_reaches_its_auc_on_real_data(
    pair: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run of wide_deep reaches 0.735 as well."""
    if not CRITEO.exists():
        pytest.skip("the real data is not here")
    name_table(monkeypatch, "wide_deep")
    given = {"ps": endpoints(pair), "data": str(CRITEO), "eval_last": 2000}

    summary = run(RunSettings.make({**given, "model": "wide_deep", "batch_size": 32}, origins={}))

    assert summary.auc is not None
    assert summary.auc >= AUC_MIN
    assert counts(pair, "wide_deep") == ([250, 250], summary.rows)


def test_a_run_with_all_that_tables_can_keep_small_learns_and_stays_small(
    pair: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of ctr, admitted at the third sight, 1,500 a shard at most: all three are at work, and it learns."""
    if not CRITEO.exists():
        pytest.skip("the real data is not here")
    name_table(monkeypatch, "small")
    given = {
        "ps": endpoints(pair),
        "data": str(CRITEO),
        "eval_last": 2000,
        "model": "wide_deep",
        "batch_size": 32,
        "accessor": "ctr:embedx_threshold=1",
        "admission": "count:n=3",
        "evict": "lfu:rows=1500",
    }

    summary = run(RunSettings.make(given, origins={}))

    with pserver.connect(endpoints(pair)) as client:
        tables = [t for shard in client.stats() for t in shard.tables if t.table == "small"]
    for table in tables:
        assert 1000 < table.rows <= 1500
        assert 0 < table.embedx_rows < table.rows
        assert min(table.keys_waiting, table.keys_unadmitted, table.evicted) > 0
    assert summary.auc is not None
    assert summary.auc >= AUC_MIN - 0.03


def lines_of(process: Piped) -> "queue.Queue[str | None]":
    """Return what a process prints on standard error, line by line as it comes, and None at its end."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in process.stderr:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def test_run_ends_with_advice_when_a_server_came_back_empty(start: Start) -> None:
    """A server killed and restarted under a run ends it in time, named; nothing reaches the new one."""
    cluster = start_cluster(start, 2)
    endless = [
        "--rows",
        "1000000000",
        "--batch-size",
        "256",
        "--scale",
        "0.001",
        "--eval-last",
        "9",
    ]

    with trainer("--ps", endpoints(cluster), *endless, "--device", "cpu", "--json") as process:
        lines = lines_of(process)
        assert "train deepfm async: step 1/" in str(lines.get(timeout=WAIT_S))
        cluster[1].send(signal.SIGKILL)
        cluster[1].wait_exit()
        start("--bind", cluster[1].endpoint, "--shard", "1", "--shards", "2").wait_ready()
        begin = time.monotonic()
        status = process.wait(WAIT_S)
        took_s = time.monotonic() - begin
        out = process.stdout.read()
        said = last_line(lines)

    assert (status, out) == (1, "")
    assert took_s < WAIT_S
    assert said.startswith("trainer run: ")
    assert f"{cluster[1].endpoint}: shard 1 was restarted" in said
    assert "start the run again" in said
    with pserver.connect(endpoints(cluster)) as client:
        assert client.stats()[1].pushes_applied == 0
        assert not client.stats()[1].tables


def last_line(lines: "queue.Queue[str | None]") -> str:
    """Return the last line before the end."""
    said = ""
    while (line := lines.get(timeout=WAIT_S)) is not None:
        said = line
    return said


# --- a server that stands still -----------------------------------------------------------------


def model_of(client: pserver.Client) -> tuple[CtrModel, torch.optim.Optimizer]:
    """Return a small model on the CPU and the optimizer of its dense part."""
    rows = EmbeddingBag(client, "still", dim=4, optimizer="adagrad:lr=0.02")
    dense = make_model("deepfm", num_slots=26, num_dense=13, dim=4)
    model = CtrModel(rows, dense, device=torch.device("cpu"))
    return model, torch.optim.Adam(dense.parameters(), lr=0.001)


def generated(steps: int) -> Generator:
    """Return the data of that many steps."""
    return Generator(2, batch_size=BATCH, rows=BATCH * steps, scale=0.001)


def test_training_goes_on_when_a_server_stood_still(pair: list[Server]) -> None:
    """A server stopped for 2 s is waited for: each push counts once, and no loss is another one."""
    told: list[float] = []
    waits: list[float] = []

    def stop_and_go(loss: float) -> None:
        told.append(loss)
        if len(told) == 5:
            pair[1].send(signal.SIGSTOP)
            threading.Timer(2.0, pair[1].send, [signal.SIGCONT]).start()
            waits.append(time.monotonic())
        if len(told) == STEPS:
            waits.append(time.monotonic())

    settings = pserver.ClientSettings(window=1, timeout_s=WAIT_S, try_timeout_s=0.2)
    with pserver.connect(endpoints(pair), settings=settings) as client:
        model, optimizer = model_of(client)
        steps = train(
            model,
            generated(STEPS),
            optimizer=optimizer,
            on_step=lambda step: stop_and_go(step.loss),
        )
        retries = client.retries

    undisturbed: list[float] = []
    with pserver.embedded(2, settings=settings) as client:
        model, optimizer = model_of(client)
        train(
            model,
            generated(STEPS),
            optimizer=optimizer,
            on_step=lambda step: undisturbed.append(step.loss),
        )
    assert steps == STEPS
    assert counts(pair, "still")[0] == [STEPS, STEPS]
    assert retries > 0
    assert waits[1] - waits[0] > 1.5
    assert told == pytest.approx(undisturbed, rel=0.0, abs=1e-5)


# --- loader workers -----------------------------------------------------------------------------


class Keys(torch.utils.data.Dataset[tuple[torch.Tensor, float]]):
    """Samples of three keys, which forked workers make."""

    def __len__(self) -> int:
        """Return how many there are."""
        return 16

    @override
    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        """Return one."""
        return torch.tensor([index, index + 1, 100]), float(index % 2)


def train_on_a_loader(cluster: list[Server], rounds: int) -> None:
    """Train a module on batches that forked workers bring, while the client lives here."""
    table = f"loader-{rounds}"
    with pserver.connect(endpoints(cluster), connect_s=WAIT_S) as client:
        module = EmbeddingBag(client, table, dim=1, optimizer="sgd:lr=1", initializer="zeros")
        module(np.array([[100]]))  # the client's threads work before the first fork
        for _ in range(rounds):
            loader = torch.utils.data.DataLoader(
                Keys(), batch_size=4, num_workers=2, multiprocessing_context="fork"
            )
            for keys, _labels in loader:
                module(keys).sum().backward()
        module.flush()

        # Each key is in two samples, but for the ends; the last one is in all of them.
        counted = client.peek(table, [0, 1, 8, 16, 100]).flatten()
    assert (counted == -float(rounds) * np.array([1, 2, 2, 1, 16])).all()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12, on threads
def test_loader_workers_that_fork_do_not_disturb_training(pair: list[Server]) -> None:
    """Five epochs of a DataLoader with two forked workers train each sample once (B7)."""
    train_on_a_loader(pair, 5)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_loader_workers_may_fork_200_times(pair: list[Server]) -> None:
    """The same, 200 epochs long (B7)."""
    train_on_a_loader(pair, 200)
