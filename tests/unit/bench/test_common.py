"""What the benchmarks share: honest timing, the workload, processes that end, and how it is shown."""

import json

import numpy as np
import pytest

import pserver
from bench import common
from bench.common import Times, fill_keys, measure, process, show, wait_ready


def test_median_and_range_of_rates() -> None:
    """The middle repeat counts, and the slowest one gives the lowest rate."""
    times = Times([0.5, 0.25, 4.0])

    assert times.median == 0.5
    assert times.rate(10.0) == {"median": 20.0, "min": 2.5, "max": 40.0}


def test_work_runs_once_before_it_counts() -> None:
    """The first call is not timed; each timed one is told how many came before it."""
    calls: list[int] = []

    times = measure(calls.append, repeats=3, inner=2)

    assert calls == [0, 0, 1, 2, 3, 4, 5]
    assert len(times.seconds) == 3
    assert all(seconds >= 0.0 for seconds in times.seconds)


def test_time_is_that_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeat of several calls is divided by how many they were."""
    now = [0.0]
    monkeypatch.setattr("bench.common.time.perf_counter", lambda: now[0])

    def work(_: int) -> None:
        now[0] += 0.25

    assert measure(work, repeats=2, inner=4).seconds == [0.25, 0.25]


def test_filling_makes_as_many_keys_as_asked() -> None:
    """The given keys come first and count; all keys together are as many as the rows."""
    first = [np.array([1, 2, 3], np.uint64), np.array([3, 4], np.uint64)]

    blocks = list(fill_keys(120_000, first))

    keys = np.concatenate(blocks)
    assert max(block.size for block in blocks) == common.FILL_BLOCK
    assert np.unique(keys).size == keys.size == 120_000
    assert keys[:4].tolist() == [1, 2, 3, 4]


def test_workload_is_the_standard_one() -> None:
    """A batch is 4096 samples of 26 slots, about 27,600 distinct keys of them."""
    (batch,) = common.batches(1)
    (keys,) = common.distinct_keys(1)

    assert (batch.num_samples, batch.num_slots) == (4096, 26)
    assert 27_000 < keys.size < 28_200
    assert np.unique(batch.keys).size == keys.size


def test_ready_line_is_waited_for() -> None:
    """A server's endpoint is read from its line; one that ends without it is an error."""
    with process("-S", "-c", "print('x'); print('shard 0 ready on 1.2.3.4:5')") as child:
        assert wait_ready(child) == "1.2.3.4:5"
    with (
        process("-S", "-c", "print('no')") as child,
        pytest.raises(RuntimeError, match="ended before it was ready"),
    ):
        wait_ready(child)
    assert child.poll() is not None


RESULT = {"rate": 2.5e6, "part": {"ms": 0.1234, "name": "x", "count": 7}}


def test_result_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` prints the figures and what they depend on, on one line."""
    show("wire", RESULT, as_json=True)

    told = json.loads(capsys.readouterr().out)
    assert (told["bench"], told["rate"], told["part"]) == ("wire", 2.5e6, RESULT["part"])
    assert set(told["environment"]) == {"version", "commit", "python", "machine", "cores"}
    assert told["environment"]["version"] == pserver.__version__
    assert told["environment"]["cores"] >= 1


def test_result_is_a_figure_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Without ``--json`` each figure stands on its line, large ones in millions."""
    show("wire", RESULT, as_json=False)

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:2] == ["bench", "wire"]
    assert lines[1:] == [
        ["rate", "2.50", "M"],
        ["part.ms", "0.123"],
        ["part.name", "x"],
        ["part.count", "7"],
    ]
