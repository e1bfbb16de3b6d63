"""The dense part of a run: its module, device, precision and optimizer, by the same short text as a table's rule.

Rooms before and after: ``cli`` brings ``adam:lr=0.001``; ``loop`` steps what is made here.
"""

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn, optim

import pserver
from collective import GroupError
from collective.precision import Kind, LossScale, MixedPrecision, ScaleRule
from collective.recompute import recompute_layers
from pserver import parse_rule
from trainer.config import RunSettings
from trainer.data import Data
from trainer.errors import TrainerError
from trainer.model import default_dim, make_model
from trainer.settings.computing import layer_names
from trainer.settings.model_name import BUILT_IN

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

_KINDS: Mapping[str, Kind] = {"off": "float32", "bf16": "bfloat16", "fp16": "float16"}


def make_dense_optimizer(
    text: str, parameters: Iterable[Tensor], *, where: str = "--dense-optimizer"
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
        pserver.ConfigError: the dim does not suit the model, or a user's model is not what it must be.
    """
    try:
        dim = settings.dim or default_dim(settings.model)
        module = make_model(
            settings.model,
            num_slots=data.num_slots,
            num_dense=data.num_dense,
            dim=dim,
            seed=settings.seed,
        )
    except TrainerError as error:
        where = "--dim" if settings.model in BUILT_IN else "--model"
        raise pserver.ConfigError(f"{where}: {error}") from error
    recompute_named(settings, module)
    return module, dim


def recompute_named(settings: RunSettings, module: nn.Module) -> None:
    """Have the layers that the settings name computed again in backward.

    Raises:
        pserver.ConfigError: a name is no layer's; the nearest is named.
    """
    try:
        recompute_layers(module, layer_names(settings))
    except GroupError as error:
        raise pserver.ConfigError(f"--recompute: {error}") from error


def make_precision(settings: RunSettings) -> MixedPrecision:
    """Return in what the dense part computes.

    Raises:
        pserver.ConfigError: its device is not there.
    """
    rule = ScaleRule(
        first=settings.amp_scale,
        grow_every=settings.amp_grow_every,
        grow_by=settings.amp_grow_by,
        shrink_after=settings.amp_shrink_after,
        shrink_by=settings.amp_shrink_by,
    )
    device = choose_device(settings.device_here).type
    return MixedPrecision(_KINDS[settings.amp], device=device, rule=rule)


def scale_facts(scale: LossScale | None) -> dict[str, float]:
    """Return what the watch list has of a scale."""
    if scale is None:
        return {}
    return {"loss_scale": scale.value, "skipped_steps": float(scale.skipped)}


def held_bytes(
    parameters: Iterable[Tensor],
    optimizer: optim.Optimizer | None,
    *,
    part: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> dict[str, int]:
    """Return the bytes that are held here of parameters, their gradients and their optimizer's state.

    Args:
        parameters: of the dense part.
        optimizer: that steps them here; None: none does.
        part: returns what of a tensor is held here.
    """
    held = list(parameters)
    states = [] if optimizer is None else list(optimizer.state.values())
    kinds = {
        "parameters": held,
        "gradients": [p.grad for p in held if p.grad is not None],
        # Adam's counts of steps are no arrays.
        "state": [v for vs in states for v in vs.values() if isinstance(v, Tensor) and v.dim()],
    }
    parts = {kind: [part(tensor) for tensor in tensors] for kind, tensors in kinds.items()}
    return {kind: sum(t.numel() * t.element_size() for t in ts) for kind, ts in parts.items()}


def choose_device(name: str) -> torch.device:
    """Return the device for ``auto``, ``cpu`` or ``cuda``.

    Raises:
        pserver.ConfigError: CUDA was asked for and is not there.
    """
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise pserver.ConfigError("--device cuda: torch finds no CUDA device; use auto or cpu")
    return torch.device("cuda" if has_cuda and name != "cpu" else "cpu")
