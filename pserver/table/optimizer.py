"""The table of optimizers: for each rule its formula, options, state and kernel.

Rooms before and after: ``pserver optimizers`` prints it; ``sparse`` binds a spec's rule to a
table; ``kernel.optim`` does the work. A new optimizer is one kernel there and one entry here.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pserver.arrays import Doubles, Floats, RowIds
from pserver.errors import ConfigError, nearest
from pserver.kernel import optim
from pserver.spec import parse_rule

Kernel: TypeAlias = Callable[[Floats, int, int, RowIds, Floats, Doubles, Doubles], None]
Values: TypeAlias = Mapping[str, float | str]

ADAM_STEPS_MAX = 2**20
"""Entries of Adam's table at most: 16 MiB, enough for beta2 up to 0.99998."""


@dataclass(frozen=True, slots=True)
class Number:
    """An option that is a number in [low, high]."""

    default: float
    low: float
    high: float

    def read(self, text: str, *, where: str) -> float:
        """Return the number written in ``text``.

        Raises:
            ConfigError: it is no number, or out of range.
        """
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not self.low <= value <= self.high:
            raise ConfigError(
                f"{where} must be a number in [{self.low:g}, {self.high:g}], got {text!r}"
            )
        return value


@dataclass(frozen=True, slots=True)
class Choice:
    """An option that is one of a few words; the first is the default."""

    words: tuple[str, ...]

    @property
    def default(self) -> str:
        """Return the word in force when none is given."""
        return self.words[0]

    def read(self, text: str, *, where: str) -> str:
        """Return the word written in ``text``.

        Raises:
            ConfigError: it is none of the words.
        """
        if text not in self.words:
            raise ConfigError(f"{where}: unknown value {text!r}; {nearest(text, self.words)}")
        return text


_LR = Number(0.05, 0.0, 1e6)
_EPS = Number(1e-8, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class OptimizerRule:
    """One entry: everything about a rule but the kernel's inner loop.

    Attributes:
        formula: the rule in one line, g being the summed gradient of a key in one push.
        options: name to its kind, in the order of the kernel's ``options`` array (choices last).
        state: what the row keeps, in words.
        state_dim: floats of state a row, from dim and the options.
        kernel: the kernel, from the options.
        first_state: what each float of state begins with, from the options.
        kernel_table: numbers made once for the kernel, from the options.
        source: paper or code the formula is from.
    """

    formula: str
    options: Mapping[str, Number | Choice]
    state: str
    state_dim: Callable[[int, Values], int]
    kernel: Callable[[Values], Kernel]
    source: str
    first_state: Callable[[Values], float] = lambda _: 0.0
    kernel_table: Callable[[Values], Doubles] = lambda _: np.zeros(1)
    check: Callable[[Values], str] = lambda _: ""


_ADAGRAD_KERNELS: Mapping[tuple[str, str], Kernel] = {
    ("element", "before"): optim.adagrad_element_before,
    ("element", "after"): optim.adagrad_element_after,
    ("row", "before"): optim.adagrad_row_before,
    ("row", "after"): optim.adagrad_row_after,
}


def _adagrad_check(values: Values) -> str:
    eps, initial = np.float32(values["eps"]), np.float32(values["initial"])
    if values["accumulate"] == "before":
        if eps == 0.0 and initial == 0.0:
            return "a gradient of 0 would give 0 / 0, so eps or initial must be over 0"
    elif initial == 0.0:
        return "accumulate=after divides by initial + G, so initial must be over 0 (try 3.0)"
    elif values["eps"] != _EPS.default:
        return "accumulate=after has no eps; leave it out"
    return ""


def _adam_table(values: Values) -> Doubles:
    """Return 1 - beta1^t and sqrt(1 - beta2^t) for t = 0, 1, ... until both are 1 to float32."""
    betas = (float(values["beta1"]), float(values["beta2"]))
    slowest = max(betas)
    # beta^t < 2^-26 changes no float32 bit of 1 - beta^t.
    steps = 2 if slowest == 0.0 else math.ceil(26.0 * math.log(0.5) / math.log(slowest)) + 2
    if steps > ADAM_STEPS_MAX:
        steps = ADAM_STEPS_MAX
    powers = np.arange(steps, dtype=np.float64)
    table = np.empty(2 * steps)
    table[0::2] = 1.0 - betas[0] ** powers
    table[1::2] = np.sqrt(1.0 - betas[1] ** powers)
    return table


def _adam_check(values: Values) -> str:
    if np.float32(values["eps"]) == 0.0:
        return "a gradient of 0 would give 0 / 0, so eps must be over 0"
    limit = 0.5 ** (26.0 / ADAM_STEPS_MAX)
    for name in ("beta1", "beta2"):
        if float(values[name]) > limit:
            return f"{name} must be at most {limit:.6f}, got {values[name]}"
    return ""


RULES: Mapping[str, OptimizerRule] = {
    "sgd": OptimizerRule(
        formula="w -= lr * g",
        options={"lr": _LR},
        state="none",
        state_dim=lambda _dim, _values: 0,
        kernel=lambda _values: optim.sgd,
        source="Robbins and Monro, Ann. Math. Stat. 22 (1951)",
    ),
    "adagrad": OptimizerRule(
        formula=(
            "before: G += g*g; w -= lr * g / (sqrt(G) + eps). "
            "after: w -= lr * g * sqrt(initial / (initial + G)); G += g*g. "
            "state=row keeps one G a row, of mean(g*g)"
        ),
        options={
            "lr": _LR,
            "eps": _EPS,
            "initial": Number(0.0, 0.0, 1e6),
            "state": Choice(("element", "row")),
            "accumulate": Choice(("before", "after")),
        },
        state="G",
        state_dim=lambda dim, values: dim if values["state"] == "element" else 1,
        kernel=lambda values: _ADAGRAD_KERNELS[str(values["state"]), str(values["accumulate"])],
        first_state=lambda values: (
            float(values["initial"]) if values["accumulate"] == "before" else 0.0
        ),
        check=_adagrad_check,
        source="Duchi, Hazan and Singer, JMLR 12 (2011); after: PaddlePaddle's AdaGrad rules",
    ),
    "adam": OptimizerRule(
        formula=(
            "t += 1; m += (1-beta1)(g-m); v += (1-beta2)(g*g-v); "
            "w -= lr/(1-beta1^t) * m / (sqrt(v/(1-beta2^t)) + eps); "
            "lazy: only rows in the push move, t counts by row"
        ),
        options={
            "lr": Number(0.001, 0.0, 1e6),
            "beta1": Number(0.9, 0.0, 1.0),
            "beta2": Number(0.999, 0.0, 1.0),
            "eps": _EPS,
        },
        state="m, v, t",
        state_dim=lambda dim, _values: 2 * dim + 1,
        kernel=lambda _values: optim.adam,
        kernel_table=_adam_table,
        check=_adam_check,
        source="Kingma and Ba, ICLR 2015",
    ),
}
"""Every optimizer, by the name a spec uses."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A rule bound to a dim: what a table needs to apply a push. Immutable."""

    text: str
    kernel: Kernel
    options: Doubles
    kernel_table: Doubles
    state_dim: int
    first_state: float


def read_options(
    text: str,
    name: str,
    given: Mapping[str, str],
    kinds: Mapping[str, Number | Choice],
    *,
    where: str,
) -> tuple[str, Values]:
    """Return a rule's full text with every option spelled out, and the options' values.

    Raises:
        ConfigError: an option is unknown or its value is refused.
    """
    for option in given:
        if option not in kinds:
            raise ConfigError(
                f"{where}: {name} has no option {option!r} in {text!r}; {nearest(option, kinds)}"
            )
    values: dict[str, float | str] = {
        option: kind.read(given[option], where=f"{where}: {name}:{option}")
        if option in given
        else kind.default
        for option, kind in kinds.items()
    }
    spelled = ",".join(f"{option}={value}" for option, value in values.items())
    return (f"{name}:{spelled}" if spelled else name), values


def make_optimizer(text: str, *, dim: int, where: str = "optimizer") -> Optimizer:
    """Bind the rule written in ``text`` to rows of ``dim`` weights.

    Args:
        text: such as ``adam:lr=0.001``; options left out have the rule's defaults.
        dim: weights a row.
        where: what an error names.

    Raises:
        ConfigError: unknown rule or option, with the nearest valid name, or a value refused.

    >>> make_optimizer("sgd:lr=1", dim=4).text
    'sgd:lr=1.0'
    """
    parsed = parse_rule(text, where=where)
    rule = RULES.get(parsed.name)
    if rule is None:
        raise ConfigError(f"{where}: unknown rule {parsed.name!r}; {nearest(parsed.name, RULES)}")
    full, values = read_options(text, parsed.name, parsed.options, rule.options, where=where)
    refusal = rule.check(values)
    if refusal:
        raise ConfigError(f"{where}: {full}: {refusal}")
    numbers = [float(v) for v in values.values() if not isinstance(v, str)]
    return Optimizer(
        text=full,
        kernel=rule.kernel(values),
        options=np.array(numbers, np.float64),
        kernel_table=rule.kernel_table(values),
        state_dim=rule.state_dim(dim, values),
        first_state=rule.first_state(values),
    )
