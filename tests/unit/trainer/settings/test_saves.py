"""Which runs can be saved: a refusal says what to give instead."""

from typing import Any

import pytest

import pserver
from trainer.config import RunSettings

SEVERAL = {"ps": "a:1", "trainers": 2, "trainer_id": 0, "master": "here:1"}
AVERAGED = {**SEVERAL, "dense": "allreduce", "mode": "sync"}
STAGES = {**SEVERAL, "stages": 2}
EMBED = {"ps": "a:1", "role": "embed", "next": "here:1", "trainers": 2, "trainer_id": 0}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({**AVERAGED, "mode": "async"}, "of dense allreduce need mode sync: in async rows"),
        ({**STAGES, "trainers": 4}, "of several pipelines need mode sync: in async rows"),
        ({**STAGES, "checkpoint_every": "5s"}, "must be steps with stages, .* got '5s'"),
        (
            {**AVERAGED, "sharding_stage": 2, "checkpoint_every": "5s"},
            "must be steps with sharding_stage 2, .* got '5s'",
        ),
        ({**AVERAGED, "local_sgd_steps": 5}, "and local_sgd_steps deny each other"),
        ({**AVERAGED, "wire": "bfloat16"}, "wire bfloat16 deny each other.*; use wire float32"),
        ({**AVERAGED, "accumulate": 3}, "must be a multiple of accumulate, which is 3, .* got '5'"),
        (
            {**AVERAGED, "accumulate": 3, "checkpoint_every": "6s"},
            "must be a multiple of accumulate, which is 3, .* got '6s'",
        ),
        (
            {**EMBED, "mode": "half_async"},
            "of several embedding trainers need mode sync: in half_async rows",
        ),
    ],
)
def test_saves_that_cannot_be_are_refused(values: dict[str, Any], text: str) -> None:
    """Rows and dense part of one step must be of one moment, and all must save after the same step."""
    with pytest.raises(pserver.ConfigError, match=text):
        RunSettings.make({"checkpoint_every": "5", **values}, origins={})


@pytest.mark.parametrize(
    "values",
    [
        AVERAGED,
        {**AVERAGED, "checkpoint_every": "5s"},
        {**AVERAGED, "accumulate": 5},
        {**STAGES, "trainers": 4, "mode": "sync"},
        STAGES,
        {**EMBED, "mode": "sync"},
        {**EMBED, "trainers": 1, "mode": "async"},
        {**AVERAGED, "trainers": 1, "mode": "async"},
    ],
)
def test_saves_of_what_is_of_one_step_are_taken(values: dict[str, Any]) -> None:
    """Those that a version can have whole."""
    given = {"checkpoint_every": "5", **values}

    assert RunSettings.make(given, origins={}).checkpoint_every == given["checkpoint_every"]
