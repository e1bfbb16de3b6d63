"""A user's model by the place of its class: ``nets/mine.py:Net`` or ``nets.mine:Net``.

Rooms before and after: ``make_model`` asks when a name is no built-in one. The class is a ``torch.nn.Module``::

    class Net(nn.Module):
        default_dim = 8                       # floats of a row, if --dim says nothing; 16 if left out

        def __init__(self, *, num_slots: int, num_dense: int, dim: int) -> None: ...

        def forward(self, rows: Tensor, dense: Tensor) -> Tensor:   # (B, F, D), (B, num_dense)
            ...                                                     # logits (B,)

It is called with those of ``num_slots``, ``num_dense``, ``dim`` and ``seed`` that it takes. torch's generator is seeded
while it is made, so that all trainers make the same. The file is run, so it is trusted as this program is.

What always holds: a model that does not return (B,) logits is refused here, before anything trains.
"""

import importlib
import importlib.util
import inspect
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from trainer.errors import TrainerError
from trainer.settings.model_name import own_place

DEFAULT_DIM = 16
"""Floats of a row where neither the settings nor the class say any."""

_TRIED = 2  # samples of the forward pass that is tried

_SEEDED = threading.Lock()
"""Whose turn it is on torch's generator, which all threads of a process share."""


def own_class(text: str) -> type[nn.Module]:
    """Return the class that a text names.

    Args:
        text: ``FILE.py:CLASS`` or ``MODULE:CLASS``.

    Raises:
        TrainerError: no such file, module or class, it fails when it is run, or is no module of torch.
    """
    found = own_place(text)
    assert found is not None, "the settings were checked"
    place, name = found
    where = f"model {text!r}"
    try:
        module = _run_file(Path(place)) if place.endswith(".py") else _import(place)
    except Exception as error:  # the user's own code
        raise TrainerError(f"{where}: cannot load {place}: {_reason(error)}") from error
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        kinds = [n for n, v in vars(module).items() if isinstance(v, type)]
        raise TrainerError(
            f"{where}: {name} must be a class of {place} that is a torch.nn.Module; its classes are "
            f"{', '.join(kinds) or 'none'}"
        )
    return kind


def make_own_model(text: str, *, num_slots: int, num_dense: int, dim: int, seed: int) -> nn.Module:
    """Return a new model of a user's class; see ``make_model``.

    Raises:
        TrainerError: as of ``own_class``; or it cannot be made, or does not return (B,) logits.
    """
    kind = own_class(text)
    offered: dict[str, Any] = {"num_slots": num_slots, "num_dense": num_dense, "dim": dim}
    offered["seed"] = seed
    taken = inspect.signature(kind).parameters
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())
    arguments = {name: value for name, value in offered.items() if takes_all or name in taken}
    try:
        with _SEEDED, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = kind(**arguments)
    except Exception as error:  # the user's own code
        given = ", ".join(f"{name}={value}" for name, value in arguments.items())
        raise TrainerError(
            f"model {text!r}: cannot make it with {given}: {_reason(error)}"
        ) from error
    _try(text, module, torch.zeros(_TRIED, num_slots, dim), torch.zeros(_TRIED, num_dense))
    return module


def _try(text: str, module: nn.Module, rows: Tensor, dense: Tensor) -> None:
    """Compute two samples, and look at what comes back."""
    module.eval()
    try:
        with torch.no_grad():
            logits = module(rows, dense)
    except Exception as error:  # the user's own code
        raise TrainerError(
            f"model {text!r}: forward with rows {tuple(rows.shape)} and dense {tuple(dense.shape)} "
            f"failed: {_reason(error)}"
        ) from error
    module.train()
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if shape != (_TRIED,):
        raise TrainerError(
            f"model {text!r}: forward must return logits of shape (B,), which is ({_TRIED},) here, got "
            f"{shape}"
        )


def _run_file(path: Path) -> ModuleType:
    """Run a file as a module of its own."""
    name = f"_trainer_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "its name ends in .py"
    assert spec.loader is not None, "it is a file of Python"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # torch.fx and dataclasses look there
    spec.loader.exec_module(module)
    return module


def _import(name: str) -> ModuleType:
    """Import a module, of the current folder too."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    return importlib.import_module(name)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
