"""What ``trainer.strategy`` promises: names, defaults, and that an accepted knob has an effect."""

import pytest

import pserver
from trainer.strategy import Strategy

MODES = ("sync", "async", "half_async", "geo")

DEFAULTS = {
    "mode": "async",
    "sync_divisor": "contributors",
    "max_staleness": None,
    "staleness_lr": "none",
    "k_steps": 400,
    "geo_average": "trainers",
    "geo_cache_rows": 1 << 22,
    "max_merge_num": 20,
    "merge": "sum",
    "send_queue_size": 32,
    "send_queue_bytes": 64 << 20,
    "flush_interval_ms": 50,
    "prefetch": 1,
    "on_full": "wait",
    "barrier_timeout": 300.0,
    "lease_s": 10.0,
    "on_missing": "fail",
    "give_up_after": 1800.0,
    "retry": 3,
    "promote_after": None,
    "on_restart": "fail",
    "deterministic": False,
    "dense": "local",
    "allreduce": "auto",
    "inter_nranks": None,
    "fuse_grad_mb": 32.0,
    "last_group_mb": 1.0,
    "wire": "float32",
    "accumulate": 1,
    "accumulate_avg": False,
    "local_sgd_steps": None,
    "allreduce_timeout": 1800.0,
    "check_every": 1000,
    "clip_norm": None,
}

READ_IN = {
    "sync_divisor": ("sync", "samples"),
    "on_missing": ("sync", "drop"),
    "deterministic": ("sync", True),
    "staleness_lr": ("async half_async", "inverse"),
    "on_restart": ("async half_async", "go_on"),
    "on_full": ("async", "merge"),
    "flush_interval_ms": ("half_async", 20),
    "max_merge_num": ("half_async", 4),
    "merge": ("half_async", "mean"),
    "k_steps": ("geo", 10),
    "geo_average": ("geo", "none"),
    "geo_cache_rows": ("geo", 1000),
}

READ_IN_ALL = {
    "max_staleness": 3,
    "send_queue_size": 5,
    "send_queue_bytes": 6,
    "prefetch": 0,
    "barrier_timeout": 7.0,
    "lease_s": 2.0,
    "give_up_after": 8.0,
    "retry": 0,
    "promote_after": 9.0,
    "dense": "pserver",
    "clip_norm": 0.5,
}


READ_WITH_ALLREDUCE: dict[str, dict[str, object]] = {
    "allreduce": {"allreduce": "ring"},
    "inter_nranks": {"allreduce": "hierarchical", "inter_nranks": 2},
    "fuse_grad_mb": {"fuse_grad_mb": 0.5},
    "last_group_mb": {"last_group_mb": 0.1},
    "wire": {"wire": "bfloat16"},
    "accumulate": {"accumulate": 4},
    "accumulate_avg": {"accumulate": 4, "accumulate_avg": True},
    "local_sgd_steps": {"local_sgd_steps": 8},
    "allreduce_timeout": {"allreduce_timeout": 60.0},
    "check_every": {"check_every": 0},
}


def refused(**values: object) -> str:
    """Return the message with which a strategy is refused."""
    with pytest.raises(pserver.ConfigError) as caught:
        Strategy.make(values, origins={})
    return str(caught.value)


def test_defaults_are_the_documented_ones() -> None:
    """Nothing given: async, and each knob at the value that the documents name."""
    assert Strategy().model_dump() == DEFAULTS


def test_every_knob_is_covered_by_these_tests() -> None:
    """No knob comes without a word on which modes read it."""
    walked = {"mode", *READ_IN, *READ_IN_ALL, *READ_WITH_ALLREDUCE}
    assert walked == set(Strategy.model_fields)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", READ_IN)
def test_knob_is_taken_where_it_is_read_and_refused_elsewhere(name: str, mode: str) -> None:
    """A knob of other modes is refused with their names, even at its default; never ignored."""
    modes, value = READ_IN[name]

    if mode in modes.split():
        strategy = Strategy.make({"mode": mode, name: value}, origins={})
        assert strategy.in_force()[name] == value
    else:
        for given in (value, DEFAULTS[name]):
            assert f"{name} has no effect in mode {mode}" in refused(mode=mode, **{name: given})
        assert name not in Strategy.make({"mode": mode}, origins={}).in_force()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", READ_IN_ALL)
def test_other_knobs_are_taken_in_every_mode(name: str, mode: str) -> None:
    """What every mode reads is accepted in each and in force there."""
    values = {"mode": mode, name: READ_IN_ALL[name]}

    assert Strategy.make(values, origins={}).in_force()[name] == READ_IN_ALL[name]


@pytest.mark.parametrize(("name", "value"), [("max_merge_num", 4), ("merge", "mean")])
def test_merging_knobs_need_async_to_merge(name: str, value: object) -> None:
    """In async they are read only with on_full merge; the message says so."""
    assert f"{name} has no effect in mode async with on_full wait" in refused(**{name: value})

    strategy = Strategy.make({"on_full": "merge", name: value}, origins={})

    assert strategy.in_force()[name] == value


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", READ_WITH_ALLREDUCE)
def test_knobs_of_averages_need_dense_allreduce(name: str, mode: str) -> None:
    """In any mode they are taken with dense allreduce, and refused with another, even at the default."""
    values = {"mode": mode, **READ_WITH_ALLREDUCE[name]}

    strategy = Strategy.make({"dense": "allreduce", **values}, origins={})

    assert strategy.in_force()[name] == values[name]
    for dense in ("pserver", "local"):
        given = {"mode": mode, "dense": dense, name: DEFAULTS[name]}
        assert f"{name} has no effect with dense {dense}, only with allreduce" in refused(**given)
        assert name not in Strategy.make({"mode": mode, "dense": dense}, origins={}).in_force()


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"allreduce": "ring", "inter_nranks": 2},
            "inter_nranks has no effect with allreduce ring",
        ),
        ({"allreduce": "hierarchical"}, "allreduce hierarchical needs inter_nranks"),
        ({"allreduce": "torch", "wire": "bfloat16"}, "wire bfloat16 has no effect with allreduce"),
        ({"accumulate_avg": True}, "accumulate_avg has no effect with accumulate 1"),
        ({"local_sgd_steps": 2, "accumulate": 2}, "accumulate has no effect with local_sgd_steps"),
        (
            {"local_sgd_steps": 2, "last_group_mb": 1.0},
            "last_group_mb has no effect with local_sgd",
        ),
        ({"accumulate": 2, "clip_norm": 1.0}, "clip_norm and accumulate deny each other"),
        ({"max_staleness": 0}, "max_staleness and dense allreduce deny each other"),
        ({"mode": "sync", "on_missing": "drop"}, "on_missing drop and dense allreduce deny each"),
        ({"mode": "sync", "on_missing": "wait"}, "on_missing wait and dense allreduce deny each"),
    ],
)
def test_knobs_of_averages_that_deny_each_other(values: dict[str, object], text: str) -> None:
    """What would have no effect, or would make trainers wait for each other, is refused with why."""
    assert text in refused(dense="allreduce", **values)


def test_who_is_dropped_is_not_deterministic() -> None:
    """Two knobs of which one breaks what the other promises are refused together."""
    assert "deny each other" in refused(mode="sync", deterministic=True, on_missing="drop")


@pytest.mark.parametrize(
    ("name", "value", "fact"),
    [
        ("mode", "asinc", "did you mean 'async'? Valid: async, geo, half_async, sync"),
        ("k_steps", 0, "greater than or equal to 1"),
        ("max_staleness", -1, "greater than or equal to 0"),
        ("max_merge_num", 0, "greater than or equal to 1"),
        ("flush_interval_ms", 0, "greater than or equal to 1"),
        ("barrier_timeout", 0.0, "greater than 0"),
        ("give_up_after", float("inf"), "less than or equal to 86400"),
        ("retry", -1, "greater than or equal to 0"),
        ("clip_norm", float("inf"), "finite"),
        ("clip_norm", 0.0, "greater than 0"),
        ("on_missing", "leave", "valid: drop, fail, wait"),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: object, fact: str) -> None:
    """What cannot be is refused with the knob and what must hold."""
    message = refused(**{name: value})

    assert message.startswith(f"{name}: ")
    assert fact in message


def test_unknown_knob_names_the_nearest() -> None:
    """A knob that does not exist is refused with the nearest one that does."""
    assert "unknown setting 'k_step'; did you mean 'k_steps'?" in refused(k_step=3)
