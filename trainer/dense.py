"""The dense part of a run: its module, device and optimizer, torch's own by the same short text as a table's rule.

Rooms before and after: ``cli`` brings ``adam:lr=0.001``; ``loop`` steps what is made here.
"""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import nn, optim

import pserver
from pserver import parse_rule
from trainer.config import RunSettings
from trainer.data import Data
from trainer.errors import TrainerError
from trainer.model import MODELS, make_model

_DEFAULTS: Mapping[str, tuple[type[optim.Optimizer], Mapping[str, float]]] = {
    "sgd": (optim.SGD, {"lr": 0.01, "momentum": 0.0, "weight_decay": 0.0}),
    "adagrad": (
        optim.Adagrad,
        {"lr": 0.01, "eps": 1e-10, "initial_accumulator_value": 0.0, "weight_decay": 0.0},
    ),
    "adam": (
        optim.Adam,
        {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
    ),
}


def make_dense_optimizer(
    text: str, parameters: Iterable[nn.Parameter], *, where: str = "--dense-optimizer"
) -> optim.Optimizer:
    """Return torch's optimizer for a rule such as ``adam:lr=0.001``.

    Args:
        text: sgd, adagrad or adam with their torch options; betas are beta1 and beta2.
        parameters: of the dense part, at least one.
        where: named in an error.

    Raises:
        pserver.ConfigError: unknown rule or option, with the nearest valid name, or a value that
            torch refuses.
    """
    rule = parse_rule(text, where=where)
    if rule.name not in _DEFAULTS:
        hint = pserver.nearest(rule.name, _DEFAULTS)
        raise pserver.ConfigError(f"{where}: unknown rule {rule.name!r}; {hint}")
    kind, defaults = _DEFAULTS[rule.name]
    values = dict(defaults)
    for option, value in rule.options.items():
        if option not in values:
            hint = pserver.nearest(option, values)
            raise pserver.ConfigError(f"{where}: {rule.name} has no option {option!r}; {hint}")
        try:
            values[option] = float(value)
        except ValueError:
            values[option] = math.nan
        if not math.isfinite(values[option]):
            raise pserver.ConfigError(
                f"{where}: {rule.name}:{option} must be a finite number, got {value!r}"
            )
    arguments: dict[str, object] = dict(values)
    if "beta1" in arguments:
        arguments["betas"] = (arguments.pop("beta1"), arguments.pop("beta2"))
    try:
        return kind(list(parameters), **arguments)  # type: ignore[arg-type]
    except ValueError as error:
        raise pserver.ConfigError(f"{where}: {text}: {error}") from None


def make_dense_module(settings: RunSettings, data: Data) -> tuple[nn.Module, int]:
    """Return the dense part of a run's model, and the dim of its rows.

    Raises:
        pserver.ConfigError: the dim does not suit the model.
    """
    dim = settings.dim or MODELS[settings.model].default_dim
    try:
        module = make_model(
            settings.model,
            num_slots=data.num_slots,
            num_dense=data.num_dense,
            dim=dim,
            seed=settings.seed,
        )
    except TrainerError as error:
        raise pserver.ConfigError(f"--dim: {error}") from error
    return module, dim


def choose_device(name: str) -> torch.device:
    """Return the device for ``auto``, ``cpu`` or ``cuda``.

    Raises:
        pserver.ConfigError: CUDA was asked for and is not there.
    """
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise pserver.ConfigError("--device cuda: torch finds no CUDA device; use auto or cpu")
    return torch.device("cuda" if has_cuda and name != "cpu" else "cpu")
