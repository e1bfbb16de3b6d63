"""What ``trainer.settings.aliases`` promises: other systems' names do what ours do, or are refused."""

from pathlib import Path
from typing import Any

import pytest

import pserver
from trainer.config import RunSettings
from trainer.settings.aliases import CONFIGS, NO_SUCH, TORCHRUN, VARIABLES, RunAliases

Names = dict[str, str]


def resolved(
    environ: Names | None = None, toml: Path | None = None, **flags: object
) -> tuple[RunSettings, Names]:
    """Return the settings of a run and where each came from."""
    return pserver.resolve(
        RunSettings,
        flags,
        environ=environ or {},
        prefix="TRAINER_",
        file=None if toml is None else str(toml),
        section="run",
        aliases=RunAliases(),
    )


def refused(environ: Names | None = None, toml: Path | None = None, **flags: object) -> str:
    """Return the message with which names or values are refused."""
    with pytest.raises(pserver.ConfigError) as caught:
        resolved(environ, toml, **flags)
    return str(caught.value)


def toml(folder: Path, text: str) -> Path:
    """Return a file with a section [run]."""
    path = folder / "job.toml"
    path.write_text(f"[run]\n{text}\n", encoding="utf-8")
    return path


# --- the environment ----------------------------------------------------------------------------

SERVERS = "10.0.0.1:6170,10.0.0.2:6170"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"PADDLE_PSERVER_ENDPOINTS": SERVERS}, {"ps": SERVERS}),
        ({"PADDLE_PSERVERS_IP_PORT_LIST": SERVERS}, {"ps": SERVERS}),
        (
            {"PADDLE_PSERVER_ENDPOINTS": SERVERS, "PADDLE_PSERVERS_IP_PORT_LIST": SERVERS},
            {"ps": SERVERS},
        ),
        (
            {
                "PADDLE_TRAINERS_NUM": "4",
                "PADDLE_TRAINER_ID": "3",
                "PADDLE_PSERVER_ENDPOINTS": SERVERS,
            },
            {"trainers": 4, "trainer_id": 3, "ps": SERVERS},
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "PADDLE_PSERVER_ENDPOINTS": SERVERS},
            {"trainers": 2, "trainer_id": 0, "ps": SERVERS},
        ),
        (
            {"TRAINING_ROLE": "TRAINER", "POD_IP": "10.0.0.9", "PADDLE_PORT": "6001"},
            {},
        ),
        ({"PADDLE_TRAINER_ENDPOINTS": "10.0.0.9:6001", "PADDLE_VERSION": "3"}, {}),
        ({"PADDLE_TRAINERS_NUM": "", "RANK": ""}, {}),
    ],
)
def test_launchers_variables_are_understood(environ: Names, expected: dict[str, object]) -> None:
    """PaddlePaddle's and torchrun's variables set servers and numbers; an empty one says nothing."""
    settings, origins = resolved(environ)

    assert {name: getattr(settings, name) for name in settings.model_fields_set} == expected
    for name in expected:
        variable = origins[name].removeprefix("environment ")
        assert {**VARIABLES, **TORCHRUN}[variable] == name
        assert variable in environ


def test_torchruns_meeting_place_is_understood() -> None:
    """Its address and port are ours, and it listens there itself if it says so."""
    place = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}

    settings, origins = resolved(place)
    agents, _ = resolved({**place, "TORCHELASTIC_USE_AGENT_STORE": "True"})

    assert (settings.master, settings.master_store) == ("10.0.0.1:29500", "trainer0")
    assert origins["master"] == "environment MASTER_ADDR and MASTER_PORT"
    assert (agents.master, agents.master_store) == ("10.0.0.1:29500", "launcher")


@pytest.mark.parametrize(
    ("environ", "fact"),
    [
        ({"MASTER_PORT": "1"}, "MASTER_PORT is set and MASTER_ADDR is not; set both or neither"),
        (
            {"TRAINING_ROLE": "PSERVER"},
            "TRAINING_ROLE=PSERVER is for `pserver serve`, and this is `trainer run`",
        ),
        ({"TRAINING_ROLE": "TRAINR"}, "unknown role 'TRAINR'; did you mean 'TRAINER'?"),
        ({"PADDLE_TRAINER_NUM": "4"}, "did you mean PADDLE_TRAINERS_NUM?"),
        ({"PADDLE_PSERVER_ENDPOINT": "a:1"}, "did you mean PADDLE_PSERVER_ENDPOINTS?"),
        (
            {"PADDLE_PSERVER_ENDPOINTS": "a:1", "PADDLE_PSERVERS_IP_PORT_LIST": "b:1"},
            "must be the same list; give one of them",
        ),
        ({"RANK": "1"}, "RANK is set and WORLD_SIZE is not; set both or neither"),
        ({"WORLD_SIZE": "1"}, "WORLD_SIZE is set and RANK is not"),
        (
            {"PADDLE_TRAINER_ID": "1", "RANK": "0", "WORLD_SIZE": "2"},
            "environment PADDLE_TRAINER_ID says 1 and environment RANK says 0; give one of them",
        ),
        (
            {"PADDLE_TRAINERS_NUM": "4", "TRAINER_TRAINERS": "3"},
            "environment TRAINER_TRAINERS says 3 and environment PADDLE_TRAINERS_NUM says 4",
        ),
        (
            {"PADDLE_TRAINERS_NUM": "x"},
            "environment PADDLE_TRAINERS_NUM: input should be a valid integer",
        ),
        (
            {"PADDLE_TRAINERS_NUM": "2", "PADDLE_TRAINER_ID": "2"},
            "trainer_id from environment PADDLE_TRAINER_ID",
        ),
    ],
)
def test_variables_that_cannot_be_honoured_are_refused(environ: Names, fact: str) -> None:
    """Another role, a misspelt name and contradictions are errors that name the variable."""
    assert fact in refused(environ)


def test_flag_wins_over_a_launchers_variable() -> None:
    """A launcher's variable ranks with ours of the environment: below a flag."""
    settings, origins = resolved({"PADDLE_TRAINERS_NUM": "4"}, trainers="2")

    assert (settings.trainers, origins["trainers"]) == (2, "flag --trainers")


def test_launchers_variable_wins_over_the_file(tmp_path: Path) -> None:
    """And above a file's key."""
    settings, origins = resolved({"PADDLE_TRAINERS_NUM": "4"}, toml(tmp_path, "trainers = 3"))

    assert settings.trainers == 4
    assert origins["trainers"] == "environment PADDLE_TRAINERS_NUM"


# --- PaddlePaddle's strategy in a file ------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_sync = false", {"mode": "sync"}),
        ("a_sync = true", {"mode": "async"}),
        ("a_sync = true\na_sync_configs = { k_steps = 0 }", {"mode": "async"}),
        ("a_sync = true\na_sync_configs = { k_step = 1024 }", {"mode": "geo", "k_steps": 1024}),
        ("a_sync = true\na_sync_configs = { k_steps = 9 }", {"mode": "geo", "k_steps": 9}),
        (
            "a_sync = true\na_sync_configs = { k_steps = 9, k_step = 9 }",
            {"mode": "geo", "k_steps": 9},
        ),
        (
            "a_sync = false\na_sync_configs = { send_queue_size = 16 }",
            {"mode": "sync", "send_queue_size": 16},
        ),
        (
            "a_sync = true\na_sync_configs = { max_merge_var_num = 4, send_queue_size = 8 }",
            {"mode": "async", "on_full": "merge", "max_merge_num": 4, "send_queue_size": 8},
        ),
    ],
)
def test_a_sync_and_its_configs_are_understood(
    tmp_path: Path, text: str, expected: dict[str, Any]
) -> None:
    """The mode follows from ``a_sync`` and ``k_steps`` alone, and each knob is the same one here."""
    settings, origins = resolved(toml=toml(tmp_path, text))

    assert {name: getattr(settings, name) for name in settings.model_fields_set} == expected
    assert {origins[name].split(" ")[0] for name in expected} == {"alias"}
    assert origins["mode"] == f"alias {tmp_path / 'job.toml'}:run.a_sync"


@pytest.mark.parametrize("name", NO_SUCH)
def test_knobs_without_a_counterpart_are_refused(tmp_path: Path, name: str) -> None:
    """A knob of theirs that would be ignored is refused, with what to do instead."""
    message = refused(toml=toml(tmp_path, f"a_sync = true\na_sync_configs = {{ {name} = 1 }}"))

    assert f"a_sync_configs.{name}: has no effect here: {NO_SUCH[name]}" in message


def test_every_knob_of_theirs_is_one_of_ours() -> None:
    """What an alias stands for is a setting of a run."""
    assert {*CONFIGS.values(), *VARIABLES.values(), *TORCHRUN.values()} <= set(
        RunSettings.model_fields
    )


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("a_sync_configs = { k_steps = 1 }", "a_sync_configs needs a_sync, true or false"),
        ("a_sync = 1", "a_sync must be true or false"),
        ("a_sync = true\na_sync_configs = 3", "a_sync_configs a table, got True and 3"),
        (
            "a_sync = true\na_sync_configs = { k_steps = -1 }",
            "a_sync_configs.k_steps: must be 0 for async or the batches between two exchanges for "
            "geo, got -1; no mode is chosen for you",
        ),
        ("a_sync = true\na_sync_configs = { k_steps = true }", "got True; no mode is chosen"),
        (
            "a_sync = true\na_sync_configs = { k_stepz = 1 }",
            "a_sync_configs.k_stepz: unknown name; did you mean 'k_step'?",
        ),
        ("a_sync = true\na_sync_configs = { k_steps = 1, k_step = 2 }", "says 2; give one"),
        (
            "a_sync = false\na_sync_configs = { k_steps = 4 }",
            "k_steps has no effect in mode sync, only in geo",
        ),
        (
            "a_sync = true\na_sync_configs = { k_steps = 4, max_merge_var_num = 2 }",
            "max_merge_num has no effect in mode geo",
        ),
        ('a_sync = true\nmode = "sync"', "run.mode says sync and alias "),
        ("a_snyc = true", "run.a_snyc: no such setting; did you mean 'a_sync'?"),
        ("a_sink = true", "has no setting 'a_sink'"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, text: str, fact: str) -> None:
    """Unknown names name the nearest, contradictions both sides; no mode is chosen in silence."""
    assert fact in refused(toml=toml(tmp_path, text))


def test_flag_wins_over_a_sync(tmp_path: Path) -> None:
    """A mode given as a flag is the mode, whatever the file's alias says."""
    settings, origins = resolved(toml=toml(tmp_path, "a_sync = true"), mode="half_async")

    assert (settings.mode, origins["mode"]) == ("half_async", "flag --mode")
