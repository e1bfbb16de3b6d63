"""What ``trainer.config`` promises: each setting has one default, is used, and is refused if idle."""

import pytest

import pserver
from trainer.config import RunSettings
from trainer.strategy import Strategy


def refused(**values: object) -> str:
    """Return the message with which settings are refused."""
    with pytest.raises(pserver.ConfigError) as caught:
        RunSettings.make(values, origins={})
    return str(caught.value)


def test_every_field_has_a_description_and_every_number_a_range() -> None:
    """The help says what each setting is, and no number is taken as it comes."""
    for name, field in RunSettings.model_fields.items():
        assert field.description, name
        if field.annotation in (int, float, int | None, float | None):
            assert field.metadata, name


def test_defaults_are_a_run_on_generated_rows() -> None:
    """Nothing given: deepfm on generated rows and embedded shards, as the client's defaults have it."""
    settings = RunSettings()

    assert (settings.model, settings.data, settings.ps, settings.shards) == (
        "deepfm",
        None,
        None,
        2,
    )
    assert settings.client_settings() == pserver.ClientSettings(timeout_s=1800.0)


def test_client_settings_are_handed_on() -> None:
    """Each setting of the client that a run has reaches the client."""
    settings = RunSettings(
        give_up_after=3.0,
        retry=7,
        window=2,
        send_queue_size=5,
        send_queue_bytes=6,
        ps="a:1",
        on_restart="go_on",
    )

    assert settings.client_settings() == pserver.ClientSettings(
        timeout_s=3.0,
        retry=7,
        window=2,
        send_queue_size=5,
        send_queue_bytes=6,
        on_restart="go_on",
    )


@pytest.mark.parametrize(
    ("values", "fact"),
    [
        (
            {"data": "a", "eval_data": "b", "eval_last": 3},
            "eval_data and eval_last both name the held-out rows; give one",
        ),
        ({"on_restart": "go_on"}, "on_restart has no effect without ps"),
        (
            {"ps": "a:1", "on_restart": "go_on", "data_mode": "dynamic"},
            "on_restart go_on needs data_mode static",
        ),
        ({"eval_data": "b"}, "eval_data needs data: generated rows have their own"),
        ({"data": "a", "rows": 10}, "rows has no effect when data is given; leave one out"),
        ({"data": "a", "scale": 1.0}, "scale has no effect when data is given"),
        ({"data": "a", "alpha": 1.05}, "alpha has no effect when data is given"),
        ({"ps": "a:1", "storage_dir": "d"}, "storage_dir has no effect when ps is given"),
        ({"storage_dir": "d"}, "storage_dir has no effect unless storage is file"),
        ({"ps": "a:1", "shards": 2}, "shards has no effect when ps is given"),
        ({"k_steps": 3}, "k_steps has no effect in mode async, only in geo"),
        ({"trainers": 2, "trainer_id": 2}, "trainer_id must be below trainers, which is 2, got 2"),
        ({"trainer_id": 1}, "trainer_id must be below trainers, which is 1, got 1"),
        (
            {"trainers": 2, "trainer_id": 0},
            "trainer_id is of one trainer of several, which need servers in common: give ps",
        ),
        ({"log_dir": "d"}, "log_dir has no effect unless several trainers are all started here"),
        (
            {"trainers": 2, "trainer_id": 0, "ps": "a:1", "log_dir": "d"},
            "log_dir has no effect unless",
        ),
        ({"range_rows": 5}, "range_rows has no effect unless data_mode is dynamic"),
        (
            {"data_mode": "dynamic", "mode": "sync", "deterministic": True},
            "deterministic and data_mode dynamic deny each other",
        ),
        (
            {"data_mode": "dynamic", "max_staleness": 3},
            "max_staleness and data_mode dynamic deny each other",
        ),
        (
            {"trainers": 3, "dense": "allreduce", "inter_nranks": 2},
            "inter_nranks must divide trainers, which is 3, got 2",
        ),
        (
            {"trainers": 2, "trainer_id": 0, "ps": "h:1", "dense": "allreduce"},
            "dense allreduce with trainer_id needs master",
        ),
        ({"trainers": 2, "dense": "local"}, "would give each of several trainers a dense part"),
    ],
)
def test_contradictions_are_refused(values: dict[str, object], fact: str) -> None:
    """Two settings of which one would be ignored are refused by name, defaults spelled out too."""
    assert fact in refused(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"data": "a", "eval_last": 3},
        {"data": "a", "eval_data": "b", "shards": 3},
        {"rows": 10, "eval_last": 5, "ps": "a:1"},
    ],
)
def test_settings_that_go_together_are_taken(values: dict[str, object]) -> None:
    """A held-out part of either kind, and embedded shards or servers, are fine."""
    settings = RunSettings.make(values, origins={})

    assert {name: getattr(settings, name) for name in values} == values


@pytest.mark.parametrize(
    ("name", "value", "fact"),
    [
        ("shards", 0, "greater than or equal to 1"),
        ("shards", 65, "less than or equal to 64"),
        ("rows", 0, "greater than or equal to 1"),
        ("scale", 0.0, "greater than 0"),
        ("alpha", float("nan"), "less than or equal to 10"),
        ("dim", 4097, "less than or equal to 4096"),
        ("epochs", 0, "greater than or equal to 1"),
        ("steps", 0, "greater than or equal to 1"),
        ("batch_size", (1 << 20) + 1, "less than or equal to 1048576"),
        ("batch_size", 2.5, "valid integer"),
        ("seed", -1, "greater than or equal to 0"),
        ("seed", 1 << 63, "less than 9223372036854775808"),
        ("threads", 0, "greater than or equal to 1"),
        ("prefetch", -1, "greater than or equal to 0"),
        ("prefetch", 65, "less than or equal to 64"),
        ("window", 0, "greater than or equal to 1"),
        ("give_up_after", float("inf"), "less than or equal to 86400"),
        ("format", "avazo", "did you mean 'avazu'? Valid: avazu, criteo, libfm, libsvm"),
        ("bad_lines", "ignore", "valid: fail, skip"),
        ("device", "gpu", "auto, cpu, cuda"),
        ("model", "deepfn", "did you mean 'deepfm'? Valid: deepfm, fm, lr, wide_deep"),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: object, fact: str) -> None:
    """What cannot be is refused with the setting, what must hold, and what came."""
    message = refused(**{name: value})

    assert message.startswith(f"{name}: ")
    assert fact in message
    assert f"got {value!r}" in message or f"unknown value {value!r}" in message


def test_slots_are_refused_where_the_format_has_its_own() -> None:
    """Criteo and Avazu rows have a fixed number of slots; libsvm and libfm ask for one."""
    for form in ("criteo", "avazu"):
        message = refused(data="x", format=form, slots=3)
        assert f"slots has no effect with format {form}, which has its own" in message
    for form in ("libsvm", "libfm"):
        assert RunSettings.make({"data": "x", "format": form, "slots": 3}, origins={}).slots == 3


@pytest.mark.parametrize("name", ["format", "bad_lines"])
def test_settings_of_files_are_refused_when_there_is_no_file(name: str) -> None:
    """A setting that only a file has a use for is refused where rows are generated."""
    value = RunSettings.model_fields[name].default

    assert f"{name} has no effect without data" in refused(**{name: value})
    assert getattr(RunSettings.make({name: value, "data": "x"}, origins={}), name) == value


def test_unknown_settings_name_the_nearest() -> None:
    """A name that does not exist is refused with the nearest one that does."""
    assert "unknown setting 'batchsize'; did you mean 'batch_size'?" in refused(batchsize=3)


def test_strategy_is_the_part_that_trainers_share() -> None:
    """The knobs of a run arrive in its strategy, and those not given are still not given."""
    values = {"mode": "geo", "k_steps": 7, "prefetch": 2, "clip_norm": 1.5}

    strategy = RunSettings.make({**values, "seed": 3}, origins={}).strategy()

    assert strategy == Strategy.make(values, origins={})
    assert strategy.model_fields_set == set(values)


def test_several_trainers_keep_the_dense_part_on_the_servers() -> None:
    """Where the dense part lives follows from the number of trainers, unless it was given."""
    assert RunSettings(trainers=1).strategy().dense == "local"
    assert RunSettings(trainers=2).strategy().dense == "pserver"
    assert RunSettings(trainers=2, dense="allreduce").strategy().dense == "allreduce"
    assert RunSettings(trainers=1, dense="pserver").strategy().dense == "pserver"


def test_settings_that_deny_each_other_name_their_origins() -> None:
    """The error of two settings says where each came from."""
    with pytest.raises(pserver.ConfigError) as caught:
        RunSettings.make(
            {"trainers": 4, "trainer_id": 5},
            origins={"trainers": "flag --trainers", "trainer_id": "environment PADDLE_TRAINER_ID"},
        )

    assert str(caught.value) == (
        "trainer_id must be below trainers, which is 4, got 5 (trainers from flag --trainers, "
        "trainer_id from environment PADDLE_TRAINER_ID)"
    )
