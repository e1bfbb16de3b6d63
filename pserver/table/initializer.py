"""The table of initializers: the rule of first weights that a spec names.

Rooms before and after: ``sparse`` binds a spec's rule to a table; ``kernel.initializer`` draws.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import xxhash

from pserver.arrays import Doubles
from pserver.errors import ConfigError, nearest
from pserver.kernel import initializer as kernel
from pserver.spec import parse_rule
from pserver.table.optimizer_options import Choice, Number, read_options

_ANY = 1e6

KINDS: Mapping[str, tuple[int, Mapping[str, Number | Choice]]] = {
    "zeros": (kernel.CONSTANT, {}),
    "constant": (kernel.CONSTANT, {"value": Number(0.0, -_ANY, _ANY)}),
    "uniform": (
        kernel.UNIFORM,
        {"low": Number(-0.01, -_ANY, _ANY), "high": Number(0.01, -_ANY, _ANY)},
    ),
    "normal": (
        kernel.NORMAL,
        {"mean": Number(0.0, -_ANY, _ANY), "std": Number(0.01, 0.0, _ANY)},
    ),
    "truncated_normal": (
        kernel.TRUNCATED,
        {"mean": Number(0.0, -_ANY, _ANY), "std": Number(0.01, 0.0, _ANY)},
    ),
}
"""Name to the kernel's kind and the options in the kernel's order. truncated_normal draws again
what falls outside two standard deviations."""


@dataclass(frozen=True, slots=True)
class Initializer:
    """A rule bound to a table's seed. Immutable."""

    text: str
    kind: int
    options: Doubles  # (2,)
    seed: np.uint64


def table_seed(name: str, seed: int) -> np.uint64:
    """Return the seed that first weights of one table depend on.

    The table's name is part of it, so two tables with one seed do not begin alike.
    """
    return np.uint64(xxhash.xxh3_64_intdigest(name.encode(), seed=seed))


def make_initializer(
    text: str, *, table: str, seed: int, where: str = "initializer"
) -> Initializer:
    """Bind the rule written in ``text`` to a table's name and seed.

    Raises:
        ConfigError: unknown rule or option, with the nearest valid name, or a value refused.

    >>> make_initializer("uniform", table="ads", seed=0).text
    'uniform:low=-0.01,high=0.01'
    """
    parsed = parse_rule(text, where=where)
    if parsed.name not in KINDS:
        raise ConfigError(f"{where}: unknown rule {parsed.name!r}; {nearest(parsed.name, KINDS)}")
    kind, kinds = KINDS[parsed.name]
    full, values = read_options(text, parsed.name, parsed.options, kinds, where=where)
    if parsed.name == "uniform" and float(values["low"]) > float(values["high"]):
        raise ConfigError(f"{where}: {full}: low must not be over high")
    options = np.zeros(2)
    options[: len(values)] = [float(value) for value in values.values()]
    return Initializer(full, kind, options, table_seed(table, seed))
