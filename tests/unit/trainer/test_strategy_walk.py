"""A walk over every knob of ``Strategy``: given to a run, it arrives where it has its effect.

What the effect is, is tested where the mode is.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pserver
from collective import alone
from tests.unit.trainer.models import settings
from trainer import loop
from trainer.config import RunSettings
from trainer.job import run as job
from trainer.modes import Mode, make_mode
from trainer.modes.dense import DenseOnServers
from trainer.modes.dense_buckets import (
    AveragedGradients,
    AveragedParameters,
    InBuckets,
    make_in_buckets,
)
from trainer.strategy import Strategy

IN_MODE: dict[str, tuple[dict[str, Any], Callable[[Any], object], object]] = {
    "mode": ({"mode": "half_async"}, lambda mode: mode.name, "half_async"),
    "sync_divisor": (
        {"mode": "sync", "sync_divisor": "samples"},
        lambda mode: mode.group.settings.sync_divisor,
        "samples",
    ),
    "on_missing": (
        {"mode": "sync", "on_missing": "drop"},
        lambda mode: mode.group.settings.on_missing,
        "drop",
    ),
    "barrier_timeout": (
        {"barrier_timeout": 7.0},
        lambda mode: mode.group.settings.barrier_timeout,
        7.0,
    ),
    "lease_s": ({"lease_s": 2.5}, lambda mode: mode.group.settings.lease_s, 2.5),
    "max_staleness": ({"max_staleness": 3}, lambda mode: mode.group.settings.max_staleness, 3),
    "staleness_lr": (
        {"staleness_lr": "inverse"},
        lambda mode: mode.group.settings.staleness_lr,
        "inverse",
    ),
    "k_steps": ({"mode": "geo", "k_steps": 9}, lambda mode: mode._k_steps, 9),
    "geo_average": ({"mode": "geo", "geo_average": "none"}, lambda mode: mode._averages, False),
    "geo_cache_rows": (
        {"mode": "geo", "geo_cache_rows": 5000},
        lambda mode: mode._cache._rows_max,
        5000,
    ),
    "max_merge_num": (
        {"mode": "half_async", "max_merge_num": 3},
        lambda mode: mode._max_merge_num,
        3,
    ),
    "merge": ({"mode": "half_async", "merge": "mean"}, lambda mode: mode._merge, "mean"),
    "flush_interval_ms": (
        {"mode": "half_async", "flush_interval_ms": 250},
        lambda mode: mode._interval_s,
        0.25,
    ),
    "on_full": ({"on_full": "merge"}, lambda mode: mode._max_merge_num, 20),
    "clip_norm": ({"clip_norm": 0.5}, lambda mode: mode._clip_norm, 0.5),
}
"""Knobs that the mode reads: what is given, where it is found, and what is found there."""

IN_CLIENT = {
    "send_queue_size": ("send_queue_size", 5),
    "send_queue_bytes": ("send_queue_bytes", 6 << 20),
    "give_up_after": ("timeout_s", 90.0),
    "retry": ("retry", 7),
}
"""Knobs that the client reads, by which name, and a value."""

IN_DENSE: dict[str, tuple[dict[str, Any], Callable[[Any], object], object]] = {
    "allreduce": ({"allreduce": "ring"}, lambda dense: dense.summer._choice, "ring"),
    "inter_nranks": (
        {"inter_nranks": 1},
        lambda dense: "hierarchical" in dense.summer._ways,
        True,
    ),
    "fuse_grad_mb": (
        {"fuse_grad_mb": 1e-6, "last_group_mb": 1e-6},
        lambda dense: len(dense.buckets),
        4,
    ),
    "last_group_mb": ({"last_group_mb": 1e-6}, lambda dense: len(dense.buckets), 2),
    "wire": ({"wire": "bfloat16"}, lambda dense: "torch" in dense.summer._ways, False),
    "accumulate": ({"accumulate": 4}, lambda dense: dense._accumulate, 4),
    "accumulate_avg": (
        {"accumulate": 4, "accumulate_avg": True},
        lambda dense: dense._takes_mean,
        True,
    ),
    "local_sgd_steps": (
        {"local_sgd_steps": 5},
        lambda dense: isinstance(dense, AveragedParameters),
        True,
    ),
    "check_every": ({"check_every": 3}, lambda dense: dense._check_every, 3),
}
"""Knobs that a dense part reads that is averaged over trainers."""

IN_RUN = {
    "promote_after",
    "prefetch",
    "deterministic",
    "dense",
    "allreduce_timeout",
    "on_restart",
}
"""Knobs that the run itself reads; a test each."""


def test_every_knob_is_walked() -> None:
    """No knob comes without a place where it arrives."""
    assert {*IN_MODE, *IN_CLIENT, *IN_DENSE} | IN_RUN == set(Strategy.model_fields)


def mode_of(client: pserver.Client, given: RunSettings) -> Mode:
    """Return the mode of a run."""
    return make_mode(client, given.strategy())


@pytest.mark.parametrize("name", IN_MODE)
def test_knob_arrives_in_the_mode(client: pserver.Client, name: str) -> None:
    """What is given is in the mode, and it is not what is there without it."""
    values, find, expected = IN_MODE[name]
    without = {key: value for key, value in values.items() if key != name}
    if name == "mode":
        without = {"mode": "async"}

    with pserver.embedded(1) as other:
        plain = mode_of(other, RunSettings.make(without, origins={}))
        assert find(plain) != expected
        plain.finish()
    mode = mode_of(client, RunSettings.make(values, origins={}))

    assert find(mode) == expected
    mode.finish()


def averaged(client: pserver.Client, values: dict[str, Any]) -> InBuckets:
    """Return the dense part of one trainer, averaged over itself."""
    strategy = Strategy.make({"dense": "allreduce", **values}, origins={})
    mode = make_mode(client, strategy)
    module = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Linear(1, 1))
    made = make_in_buckets(alone(), module, mode=mode, optimizer="sgd", strategy=strategy)
    mode.finish()
    return made


@pytest.mark.parametrize("name", IN_DENSE)
def test_knob_arrives_in_the_averaged_dense_part(client: pserver.Client, name: str) -> None:
    """What is given is in the dense part, and it is not what is there without it."""
    values, find, expected = IN_DENSE[name]
    without = {key: value for key, value in values.items() if key != name}
    if name == "accumulate":
        without = {}

    with pserver.embedded(1) as other:
        assert find(averaged(other, without)) != expected
    assert find(averaged(client, values)) == expected


@pytest.mark.parametrize("name", IN_CLIENT)
def test_knob_arrives_in_the_client(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What is given is among the settings that a run's client is made with."""
    made: list[pserver.ClientSettings] = []
    embedded = pserver.embedded

    def spy(shards: int, **options: Any) -> pserver.Client:
        made.append(options["settings"])
        return embedded(shards, **options)

    monkeypatch.setattr(pserver, "embedded", spy)
    field, value = IN_CLIENT[name]
    assert getattr(Strategy(), name) != value

    job.run(settings(**{name: value}))

    assert getattr(made[0], field) == value


def test_promote_after_arrives_in_the_client() -> None:
    """It is among the client's settings, and refused where no server has a standby."""
    run_settings = settings(promote_after=30.0)

    assert run_settings.client_settings().promote_after_s == 30.0
    with pytest.raises(pserver.ConfigError, match="promote_after needs servers with standbys"):
        job.run(run_settings)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_prefetch_arrives_in_the_loop(monkeypatch: pytest.MonkeyPatch, prefetch: int) -> None:
    """The loop fetches as many batches ahead as were asked for."""
    ahead: list[int] = []

    def spy(*parts: Any, **options: Any) -> int:
        ahead.append(options["prefetch"])
        return loop.train(*parts, **options)

    monkeypatch.setattr(job, "train", spy)

    job.run(settings(prefetch=prefetch))

    assert ahead == [prefetch]


@pytest.mark.parametrize("deterministic", [False, True])
def test_deterministic_arrives_in_torch(deterministic: bool) -> None:
    """torch refuses what it cannot do the same way twice, for as long as the run takes."""
    seen: set[bool] = set()
    given = settings(mode="sync", deterministic=deterministic)

    job.run(given, on_step=lambda _: seen.add(torch.are_deterministic_algorithms_enabled()))

    assert seen == {deterministic}
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("dense", "kind"),
    [("local", torch.optim.Adam), ("pserver", DenseOnServers), ("allreduce", AveragedGradients)],
)
def test_dense_part_is_where_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, dense: str, kind: type
) -> None:
    """The dense part is stepped by torch here, or by the servers."""
    stepped: list[object] = []

    def spy(*parts: Any, **options: Any) -> int:
        stepped.append(options["optimizer"])
        return loop.train(*parts, **options)

    monkeypatch.setattr(job, "train", spy)

    job.run(settings(dense=dense))

    assert isinstance(stepped[0], kind)
