"""PaddlePaddle's sharding, recompute and amp: they do what our names do, or are refused."""

from pathlib import Path

import pytest

from tests.unit.trainer.settings.test_aliases import refused, resolved, toml

AVERAGED = 'dense = "allreduce"\ntrainers = 4\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            AVERAGED + "sharding = true\nsharding_configs = { stage = 2, sharding_degree = 2 }",
            {"sharding_stage": 2, "sharding_degree": 2},
        ),
        (AVERAGED + "sharding = true", {"sharding_stage": 1}),
        (AVERAGED + "sharding = false\nsharding_configs = { stage = 2 }", {"sharding_stage": None}),
        (AVERAGED + "sharding = true\nsharding_configs = { dp_degree = 1 }", {"sharding_stage": 1}),
        (
            'recompute = true\nrecompute_configs = { checkpoints = ["mlp", "linear"] }',
            {"recompute": "mlp,linear"},
        ),
        ('recompute = "mlp"', {"recompute": "mlp"}),
        ("amp = true", {"amp": "fp16", "amp_scale": 32768.0}),
        ('amp = "bf16"', {"amp": "bf16"}),
        ("amp = false\namp_configs = { init_loss_scaling = 8.0 }", {"amp": "off"}),
        ('amp = true\namp_configs = { dtype = "bfloat16" }', {"amp": "bf16"}),
        (
            "amp = true\namp_configs = { init_loss_scaling = 1024.0, incr_every_n_steps = 7, "
            "incr_ratio = 4.0, decr_every_n_nan_or_inf = 2, decr_ratio = 0.25, "
            "use_dynamic_loss_scaling = true }",
            {
                "amp_scale": 1024.0,
                "amp_grow_every": 7,
                "amp_grow_by": 4.0,
                "amp_shrink_after": 2,
                "amp_shrink_by": 0.25,
            },
        ),
        (
            "amp = true\namp_configs = { use_dynamic_loss_scaling = false }",
            {"amp": "fp16", "amp_grow_every": 0},
        ),
    ],
)
def test_their_names_do_what_ours_do(
    tmp_path: Path, text: str, expected: dict[str, object]
) -> None:
    """Values are those of the settings, and their origin is the alias."""
    settings, origins = resolved(toml=toml(tmp_path, text))

    assert {name: getattr(settings, name) for name in expected} == expected
    if "_configs" in text and "= false\n" not in text:
        assert any(origins[name].startswith("alias ") for name in expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sharding_configs = { stage = 2 }", "sharding must be true or false, with sharding_configs"),
        ("sharding = 2", "sharding must be true or false"),
        (AVERAGED + "sharding = true\nsharding_configs = { stag = 2 }", "did you mean 'stage'"),
        (AVERAGED + "sharding = true\nsharding_configs = { mp_degree = 2 }", "give stages"),
        (AVERAGED + "sharding = true\nsharding_configs = { segment_broadcast_MB = 32 }", "at once"),
        ("sharding_config = { stage = 2 }", "did you mean 'sharding_configs'"),
        ("recompute = true", "must have checkpoints, names of layers"),
        ('recompute = true\nrecompute_configs = { checkpoints = "mlp" }', "must be a list of names"),
        ('amp = true\namp_configs = { custom_white_list = ["mul"] }', "torch's autocast chooses"),
        ('amp = true\namp_configs = { dtype = "fp8" }', "must be float16 or bfloat16, got 'fp8'"),
        ("amp = true\namp_configs = { use_dynamic_loss_scaling = 1 }", "must be true or false, got 1"),
        (
            "amp = true\namp_configs = { use_dynamic_loss_scaling = false, incr_every_n_steps = 5 }",
            "says 5; give one",
        ),
        ("sharding = true", "sharding_stage has no effect with dense local"),
    ],
)  # fmt: skip
def test_what_is_nothing_here_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """The message says what to do instead."""
    assert message in refused(toml=toml(tmp_path, text))
