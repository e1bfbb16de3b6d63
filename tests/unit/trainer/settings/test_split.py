"""Settings of runs with roles: what a role does not read is refused, with what to give instead."""

import pytest

import pserver
from tests.unit.trainer.models import settings
from trainer.cli import main as cli
from trainer.config import RunSettings
from trainer.settings.split import micro_batches, reads

EMBED = {"role": "embed", "next": "there:1"}
DENSE = {"role": "dense", "listen": "here:0"}


def dense(**values: object) -> RunSettings:
    """Return the settings of a dense trainer."""
    return RunSettings.make({**DENSE, **values}, origins={})


def embed(**values: object) -> RunSettings:
    """Return the settings of an embedding trainer."""
    return RunSettings.make({**EMBED, **values}, origins={})


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"next": "there:1"}, "no effect with role all and one stage, only with role embed"),
        ({"listen": "here:1"}, "no effect with role all and one stage, only with role dense"),
        ({"accumulate_steps": 2}, "only with role embed, or stages above 1"),
        ({"schedule": "gpipe"}, "schedule has no effect with role all and one stage"),
        ({"schedule": "zerobubble"}, "did you mean 'zero_bubble'"),
        ({"stages": 2}, "stages 2 with 1 a trainer need trainers 2, or a multiple of it"),
        ({"stages": 2, "trainers": 3}, "pipelines side by side, got 3"),
        ({"stages": 3, "virtual": 2, "trainers": 2}, "virtual has no effect with schedule 1f1b"),
        (
            {"stages": 3, "virtual": 2, "schedule": "interleaved", "trainers": 2},
            "stages must be a multiple of virtual, got 3 and 2",
        ),
        ({"stages": 2, "trainers": 2, "cut": "a,b"}, "cut must name 1 modules for 2 stages"),
        ({"stages": 2, "trainers": 2, "dense": "pserver"}, "the dense part is in the stages"),
        ({"stages": 2, "trainers": 2, "data_mode": "dynamic"}, "data_mode dynamic deny each other"),
        ({"stages": 2, "trainers": 2, "trainer_id": 0, "ps": "a:1"}, "trainer_id need master"),
        ({**EMBED, "stages": 2}, "stages has no effect with role embed: the dense part is in"),
        ({"role": "embed"}, "role embed needs next, the HOST:PORT"),
        ({**EMBED, "listen": "here:1"}, "listen has no effect with role embed: it connects, so"),
        ({**EMBED, "dense": "pserver"}, "the dense part is in the trainers with role dense"),
        ({**EMBED, "dense_optimizer": "sgd"}, "with role dense; the table's is optimizer"),
        ({**EMBED, "device": "cuda"}, "device has no effect with role embed: give it to"),
        ({**EMBED, "clip_norm": 1.0}, "clip_norm has no effect with role embed"),
        ({**EMBED, "data_mode": "dynamic"}, "role embed and data_mode dynamic deny each other"),
        (
            {**EMBED, "batch_size": 64, "micro_batch_size": 10, "accumulate_steps": 6},
            "must be batch_size, which is 64, got 10 times 6",
        ),
        ({"role": "dense"}, "role dense needs listen"),
        ({**DENSE, "next": "there:1"}, "next has no effect with role dense; did you mean 'listen'"),
        ({**DENSE, "ps": "there:1"}, "ps has no effect with role dense; did you mean 'listen'"),
        ({**DENSE, "optimizer": "sgd"}, "did you mean 'dense_optimizer'"),
        ({**DENSE, "trainer_ids": 1}, "unknown setting 'trainer_ids'; did you mean 'trainer_id'"),
        ({**DENSE, "data": "rows.txt"}, "data has no effect with role dense; "),
        ({**DENSE, "trainers": 2}, "each needs trainer_id, a listen of its own, and master"),
        ({"role": "dens", "listen": "here:1"}, "did you mean 'dense'"),
    ],
)
def test_what_makes_no_sense_is_refused(values, text):
    """The message names the setting and the role, and what to do."""
    with pytest.raises(pserver.ConfigError) as caught:
        RunSettings.make(values, origins={})

    assert text in str(caught.value)


def test_micro_batches_follow_from_either_setting():
    """By their number, by their size (the last one may be short), by both, or four."""
    assert micro_batches(embed()) == 4
    assert micro_batches(embed(accumulate_steps=3)) == 3
    assert micro_batches(embed(batch_size=10, micro_batch_size=4)) == 3
    assert micro_batches(embed(batch_size=12, micro_batch_size=4, accumulate_steps=3)) == 3


def test_a_role_reads_its_own_settings():
    """What is in force is told by role; without one there is nothing to hand on."""
    assert reads(embed(), "next")
    assert not reads(embed(), "dense_optimizer")
    assert reads(dense(), "dense_optimizer")
    assert not reads(dense(), "mode")
    assert not reads(settings(), "next")
    assert reads(settings(stages=2, trainers=2), "cut")
    assert not reads(settings(stages=2, trainers=2), "next")
    assert embed().device_here == "cpu"


@pytest.mark.usefixtures("command_line")
def test_explain_says_what_a_role_does_not_read(capsys):
    """``trainer config explain`` shows it with the role."""
    assert cli.main(["config", "explain", "--role", "dense", "--listen", "here:0"]) == 0

    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("next ")]
    assert "(not read in role dense)" in line
    (line,) = [line for line in lines if line.startswith("listen ")]
    assert "flag --listen" in line
    assert "not read" not in line


@pytest.mark.usefixtures("command_line")
def test_explain_says_what_a_pipeline_does_not_read(capsys):
    """With several stages the knobs of a pipeline are read, and those of another dense part are not."""
    assert cli.main(["config", "explain", "--stages", "2", "--trainers", "2"]) == 0

    lines = capsys.readouterr().out.splitlines()
    for name, is_read in (("dense ", False), ("check_every ", True), ("schedule ", True)):
        (line,) = [line for line in lines if line.startswith(name)]
        assert ("(not read in a pipeline)" not in line) is is_read
