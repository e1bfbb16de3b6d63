"""Rules from a user's file: read, compiled, tried once, and added to the table of optimizers.

Rooms before and after: a command line or a test names the file; ``optimizer_rules`` holds the rule
from then on, so a spec can name it like any other. Every server that has such a table must load the
file, and so must a client that makes it.

The file has a class (or anything else with these attributes)::

    class SignSgd:
        formula = "w -= lr * sign(g)"
        options = {"lr": 0.01}      # names and defaults, lr first; or Number and Choice
        state_floats = 0            # floats of state a row, or a function of dim

        @staticmethod
        def kernel(slab, stride, dim, row_ids, grads, options, table):
            for i in range(row_ids.size):
                w = row_ids[i] * stride
                for k in range(dim):
                    slab[w + k] -= options[0] * np.sign(grads[i * dim + k])

and may have ``state`` and ``source`` (words for ``pserver optimizers``) and ``first_state`` (a number
that every float of state begins with, 0 if left out). ``couples = ""`` says that the step of each
weight depends on no other weight of its row, as dense tables need. It may also be an ``OptimizerRule``. What a
kernel gets stands at the head of ``kernel.optim``; its row is ``slab[w : w + stride]``, weights first.
It is compiled by numba without bounds checks: a wrong index damages the server's memory.
"""

import dataclasses
import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numba.core.dispatcher import Dispatcher

from pserver.errors import ConfigError, nearest
from pserver.table.optimizer import COMMON, make_optimizer
from pserver.table.optimizer_options import Choice, Kinds, Number, Values
from pserver.table.optimizer_rules import RULES, Kernel, OptimizerRule
from pserver.table.schedule import SHAPES

_NEEDED = ("formula", "options", "state_floats", "kernel")
_ANY = 1e6
_COUPLES = 'its file does not say couples = ""'
_LOADED: dict[str, tuple[str, str]] = {}
"""Names that came from files: the path, and the digest of what was in it."""


def load_rules(texts: str | None) -> list[str]:
    """Add every rule of a comma-separated list, and return their names.

    Args:
        texts: ``my_rule.py:Name,other.py:Other``; None: nothing is added.

    Raises:
        ConfigError: as ``load_rule``; the rules before the refused one stay.
    """
    return [load_rule(text.strip()) for text in texts.split(",")] if texts else []


def load_rule(text: str) -> str:
    """Add a rule from a Python file and return its name, which is the object's.

    The file is run, so it is trusted as this program is. Loading the same file again does nothing.

    Args:
        text: ``path/my_rule.py:Name``.

    Raises:
        ConfigError: no such file or object, something that a rule needs is missing, its kernel does
            not compile, writes where it must not or leaves NaN, or the name is taken. No rule was
            added.
    """
    path_text, _, name = text.rpartition(":")
    where = f"rule {text!r}"
    if not path_text or not name.isidentifier():
        raise ConfigError(f"{where}: must look like path/my_rule.py:Name")
    path = Path(path_text).resolve()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{where}: cannot read {path_text}: {error.strerror}") from error
    identity = (str(path), hashlib.sha256(content).hexdigest())
    if _LOADED.get(name) == identity:
        return name
    if name in RULES:
        raise ConfigError(f"{where}: there is a rule {name!r} already; give yours another name")
    rule = _rule_of(_object_of(path, name, where=where), where=where)
    RULES[name] = rule
    try:
        _try(name, where=where)
    except ConfigError:
        del RULES[name]
        raise
    _LOADED[name] = identity
    return name


def _object_of(path: Path, name: str, *, where: str) -> Any:
    """Run the file and return what it calls ``name``."""
    spec = importlib.util.spec_from_file_location(f"_pserver_rule_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(
            f"{where}: {path.name} must be a Python file, with a name that ends in .py"
        )
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{where}: the file raised {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        names = [found for found in vars(module) if not found.startswith("_")]
        raise ConfigError(f"{where}: the file has no {name!r}; {nearest(name, names)}")
    return getattr(module, name)


def _rule_of(found: Any, *, where: str) -> OptimizerRule:
    """Return the object as a rule whose kernels are compiled when they are first asked for."""
    if isinstance(found, OptimizerRule):
        _check_options(found.options, where=where)
        kernel_of, of_user = cache(_compiled), found.kernel
        return dataclasses.replace(found, kernel=lambda values: kernel_of(of_user(values)))
    for attribute in _NEEDED:
        if not hasattr(found, attribute):
            raise ConfigError(f"{where}: has no {attribute}; a rule needs {', '.join(_NEEDED)}")
    if not callable(found.kernel):
        raise ConfigError(f"{where}: kernel must be a function, got {found.kernel!r}")
    options = _kinds(found.options, where=where)
    first_state = getattr(found, "first_state", 0.0)
    kernel = _compiled(found.kernel)
    return OptimizerRule(
        formula=str(found.formula),
        options=options,
        state=str(getattr(found, "state", "its own")),
        state_dim=_state_dim(found.state_floats),
        kernel=lambda _values: kernel,
        source=str(getattr(found, "source", "a file of the user's")),
        first_state=lambda _dim, _values: (float(first_state),),
        couples=lambda _values: str(getattr(found, "couples", _COUPLES)),
    )


def _kinds(options: Any, *, where: str) -> Kinds:
    """Return the options with a range each; a bare default may become any number to 1e6."""
    if not isinstance(options, Mapping):
        raise ConfigError(f"{where}: options must map names to defaults, got {options!r}")
    kinds: dict[str, Number | Choice] = {}
    for option, kind in options.items():
        if isinstance(kind, Number | Choice):
            kinds[option] = kind
        elif isinstance(kind, int | float) and abs(kind) <= _ANY:
            kinds[option] = Number(float(kind), 0.0 if option == "lr" else -_ANY, _ANY)
        else:
            raise ConfigError(
                f"{where}: option {option!r} must be a number of at most {_ANY:g} in magnitude, a "
                f"Number or a Choice, got {kind!r}"
            )
    _check_options(kinds, where=where)
    return kinds


def _check_options(options: Kinds, *, where: str) -> None:
    """Refuse options without lr, and names that mean something in every rule."""
    if next(iter(options), "") != "lr":
        raise ConfigError(
            f"{where}: the first option must be lr, got {', '.join(options) or 'none'}"
        )
    taken = {"schedule", "warmup", *COMMON}.union(*(shape.options for shape in SHAPES.values()))
    for option in options:
        if option in taken or not option.isidentifier():
            raise ConfigError(
                f"{where}: option {option!r} must have another name; these are taken: "
                f"{', '.join(sorted(taken))}"
            )


def _state_dim(state_floats: Any) -> Callable[[int, Values], int]:
    """Return the floats of state as a function of dim and values."""
    if callable(state_floats):
        return lambda dim, _values: state_floats(dim)
    return lambda _dim, _values: state_floats


def _compiled(kernel: Kernel) -> Kernel:
    """Return the kernel compiled as ours are; one that is compiled already is left as it is."""
    if isinstance(kernel, Dispatcher):
        return kernel
    compiled: Kernel = njit(nogil=True, error_model="numpy")(kernel)
    return compiled


def _try(name: str, *, where: str) -> None:
    """Run the rule on a few small rows, and refuse one that does not leave them sound."""
    for dim in (1, 5):
        try:
            rule = make_optimizer(name, dim=dim, where=where)
            if rule.state_dim < 0:
                raise ConfigError(
                    f"{where}: state_floats must be a whole number from 0, got {rule.state_dim}"
                )
            stride = dim + rule.state_dim
            first = rule.first_state[
                np.minimum(np.arange(rule.state_dim), rule.first_state.size - 1)
            ]
            slab = np.tile(np.concatenate([np.full(dim, 0.5), first]).astype(np.float32), 3)
            before = slab.copy()
            row_ids = np.array([2, 0])
            for scale in (0.0, 1.0, -0.5):
                grads = np.full(2 * dim, scale, np.float32)
                grads.flags.writeable = False
                rule.apply(slab, row_ids, grads, version=0)
        except ConfigError:
            raise
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            raise ConfigError(
                f"{where}: its kernel cannot run: {type(error).__name__}: {lines[0]} ... {lines[-1]}"
            ) from error
        if not np.isfinite(slab).all():
            raise ConfigError(f"{where}: left NaN or infinity in a row for gradients 0, 1 and -0.5")
        if not np.array_equal(slab[stride : 2 * stride], before[stride : 2 * stride]):
            raise ConfigError(f"{where}: changed row 1 when the push named rows 2 and 0")
