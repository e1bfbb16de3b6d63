"""What ``trainer.dense.module`` promises: torch's optimizers by a short text, and nothing unknown taken."""

import re

import pytest
import torch
from torch import nn, optim

import pserver
from trainer.dense.module import choose_device, make_dense_optimizer

KINDS = {"sgd": optim.SGD, "adagrad": optim.Adagrad, "adam": optim.Adam}


def weight() -> nn.Parameter:
    """Return one parameter."""
    return nn.Parameter(torch.tensor([1.0, -2.0]))


@pytest.mark.parametrize("name", KINDS)
def test_a_name_alone_is_torchs_optimizer_with_its_defaults(name: str) -> None:
    """A rule without options is torch's class with torch's defaults; sgd's lr alone is ours."""
    ours = make_dense_optimizer(name, [weight()])
    theirs = KINDS[name]([weight()], lr=0.01) if name == "sgd" else KINDS[name]([weight()])

    assert type(ours) is KINDS[name]
    assert ours.defaults == theirs.defaults


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sgd:lr=0.5,momentum=0.9", {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.0}),
        ("sgd:weight_decay=1e-3", {"weight_decay": 0.001}),
        ("adagrad:eps=1e-4", {"eps": 1e-4, "lr": 0.01}),
        ("adagrad:initial_accumulator_value=2", {"initial_accumulator_value": 2.0}),
        ("adam:lr=0.25", {"lr": 0.25, "betas": (0.9, 0.999)}),
        ("adam:beta1=0.5", {"betas": (0.5, 0.999)}),
        ("adam:beta2=0.75,beta1=0.25,eps=1", {"betas": (0.25, 0.75), "eps": 1.0}),
    ],
)
def test_options_are_handed_on(text: str, expected: dict[str, object]) -> None:
    """Each option reaches torch under torch's name; the rest keep their defaults."""
    defaults = make_dense_optimizer(text, [weight()]).defaults

    assert {name: defaults[name] for name in expected} == expected


def test_every_option_changes_a_step() -> None:
    """No option is taken and dropped: each one, changed, moves the weight to another place."""

    def moved(text: str) -> list[float]:
        parameter = weight()
        optimizer = make_dense_optimizer(text, [parameter])
        for grad in ([0.5, 1.0], [0.25, -3.0], [1.0, 0.125]):
            parameter.grad = torch.tensor(grad)
            optimizer.step()
        return parameter.tolist()

    for name, options in {
        "sgd": ["lr=0.2", "momentum=0.5", "weight_decay=0.5"],
        "adagrad": ["lr=0.2", "eps=0.5", "initial_accumulator_value=2", "weight_decay=0.5"],
        "adam": ["lr=0.2", "beta1=0.5", "beta2=0.5", "eps=0.5", "weight_decay=0.5"],
    }.items():
        assert len({tuple(moved(f"{name}:{o}")) for o in options} | {tuple(moved(name))}) == (
            len(options) + 1
        )


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("adma", ["unknown rule 'adma'", "did you mean 'adam'?", "adagrad, adam, sgd"]),
        ("ftrl", ["unknown rule 'ftrl'", "adagrad, adam, sgd"]),
        ("adam:beta=0.9", ["adam has no option 'beta'", "did you mean 'beta"]),
        ("sgd:momentun=0.9", ["sgd has no option 'momentun'", "did you mean 'momentum'?"]),
        ("sgd:eps=1", ["sgd has no option 'eps'", "valid: lr, momentum, weight_decay"]),
        ("adam:lr=fast", ["adam:lr must be a finite number, got 'fast'"]),
        ("adam:lr=nan", ["adam:lr must be a finite number, got 'nan'"]),
        ("sgd:momentum=nan", ["sgd:momentum must be a finite number, got 'nan'"]),
        ("sgd:lr=inf", ["sgd:lr must be a finite number, got 'inf'"]),
        ("sgd:lr=-1", ["sgd:lr=-1: ", "-1.0"]),
        ("adam:beta1=1", ["adam:beta1=1: ", "1.0"]),
        ("adagrad:eps=-1", ["adagrad:eps=-1: ", "-1.0"]),
        ("adam:lr=1,lr=2", ["option 'lr' is given twice"]),
        ("adam:lr", ["adam:lr"]),
        ("", ["must begin with a rule's name, got ''"]),
    ],
)
def test_what_torch_cannot_use_is_refused(text: str, facts: list[str]) -> None:
    """An unknown rule or option names the nearest; a number out of range is told with its option."""
    with pytest.raises(pserver.ConfigError) as caught:
        make_dense_optimizer(text, [weight()])

    assert str(caught.value).startswith("--dense-optimizer: ")
    assert all(fact in str(caught.value) for fact in facts), str(caught.value)


def test_errors_name_the_setting_they_are_told() -> None:
    """A caller with another setting has it in the message."""
    with pytest.raises(pserver.ConfigError, match=re.escape("job.toml [run]: unknown rule 'x'")):
        make_dense_optimizer("x", [weight()], where="job.toml [run]")


def test_no_parameters_are_refused() -> None:
    """A model without a dense part has nothing to optimize; torch's reason is passed on."""
    with pytest.raises(pserver.ConfigError, match="empty parameter list"):
        make_dense_optimizer("adam", [])


def test_cpu_and_auto_find_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """``cpu`` is the CPU even where there is a GPU; ``auto`` takes what is there."""
    for has_cuda, auto in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_cuda=has_cuda: has_cuda)

        assert choose_device("cpu") == torch.device("cpu")
        assert choose_device("auto") == torch.device(auto)
    assert choose_device("cuda") == torch.device("cuda")


def test_cuda_is_refused_when_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for a device that is not there is an error, never a silent CPU run."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(pserver.ConfigError) as caught:
        choose_device("cuda")

    assert str(caught.value) == "--device cuda: torch finds no CUDA device; use auto or cpu"
