"""The table of optimizers: for each rule its formula, options, state and kernel.

Rooms before and after: ``pserver optimizers`` prints it; ``optimizer`` binds a spec's rule to a
table; ``kernel.optim*`` does the work. A new optimizer is one kernel there and one entry here, or a
file of the user's (``optimizer_file``).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pserver.arrays import Doubles, Floats, RowIds
from pserver.kernel import optim, optim_adam, optim_ftrl, optim_rms
from pserver.table.optimizer_options import Choice, Kinds, Number, Values

Kernel: TypeAlias = Callable[[Floats, int, int, RowIds, Floats, Doubles, Doubles], None]

ADAM_STEPS_MAX = 2**20
"""Entries of Adam's table at most: 16 MiB, enough for beta2 up to 0.99998."""


def _zeros(dim: int, values: Values) -> Sequence[float]:
    return (0.0,)


@dataclass(frozen=True, slots=True)
class OptimizerRule:
    """One entry: everything about a rule but the kernel's inner loop.

    Attributes:
        formula: the rule in one line, g being the summed gradient of a key in one push.
        options: name to its kind; ``lr`` is the first. See ``kernel.optim`` for how the kernel
            gets them.
        state: what the row keeps, in words.
        state_dim: floats of state a row, from dim and the options.
        kernel: the kernel, from the options.
        source: paper or code the formula is from.
        first_state: what the floats of state begin with, from dim and the options; the last one
            stands for all that follow.
        kernel_table: numbers made once for the kernel, from the options.
        check: why values cannot go together, or an empty text.
        decays_itself: the kernel sees to ``weight_decay``.
        couples: why the step of a weight depends on others of its row, or an empty text; a dense
            table refuses such a rule.
        parts: the state's parts by name with the floats of each, in the row's order, from dim and
            the options; without it the state is one part.
    """

    formula: str
    options: Kinds
    state: str
    state_dim: Callable[[int, Values], int]
    kernel: Callable[[Values], Kernel]
    source: str
    first_state: Callable[[int, Values], Sequence[float]] = _zeros
    kernel_table: Callable[[Values], Doubles] = lambda _: np.zeros(1)
    check: Callable[[Values], str] = lambda _: ""
    decays_itself: bool = False
    couples: Callable[[Values], str] = lambda _: ""
    parts: Callable[[int, Values], Mapping[str, int]] | None = None


_LR = Number(0.05, 0.0, 1e6)
_ONE = Number(1.0, 0.0, 1e6)
_EPS = Number(1e-8, 0.0, 1.0)
_SHARE = Number(0.9, 0.0, 1.0)
_INITIAL = Number(0.0, 0.0, 1e6)
_ONE_A_ROW = "its state is a mean over the row"
_NORM = "its step depends on a norm of the row"

_ADAGRAD_KERNELS: Mapping[tuple[str, str], Kernel] = {
    ("element", "before"): optim.adagrad_element_before,
    ("element", "after"): optim.adagrad_element_after,
    ("row", "before"): optim.adagrad_row_before,
    ("row", "after"): optim.adagrad_row_after,
}


def _is_zero(value: float | str) -> bool:
    """Return whether the kernel, which computes in float32, takes the number as 0."""
    return bool(np.float32(value) == 0.0)


def _eps_check(values: Values) -> str:
    return (
        "a gradient of 0 would give 0 / 0, so eps must be over 0" if _is_zero(values["eps"]) else ""
    )


def _adagrad_check(values: Values) -> str:
    if values["accumulate"] == "before":
        if _is_zero(values["eps"]) and _is_zero(values["initial"]):
            return "a gradient of 0 would give 0 / 0, so eps or initial must be over 0"
    elif _is_zero(values["initial"]):
        return "accumulate=after divides by initial + G, so initial must be over 0 (try 3.0)"
    elif values["eps"] != _EPS.default:
        return "accumulate=after has no eps; leave it out"
    return ""


def _beta_check(values: Values) -> str:
    if _is_zero(values["beta"]) and _is_zero(values["initial"]):
        return "a gradient of 0 would give 0 / 0, so beta or initial must be over 0"
    return ""


def _adam_table(values: Values) -> Doubles:
    """Return 1 / (1 - beta1^t) and 1 / sqrt(1 - beta2^t) for t = 0, 1, ...

    It ends where both are 1 to float32. The entries of t = 0, which no row uses, are 0.
    """
    betas = (float(values["beta1"]), float(values["beta2"]))
    slowest = max(betas)
    # beta^t < 2^-26 changes no float32 bit of 1 - beta^t.
    steps = 2 if slowest == 0.0 else math.ceil(26.0 * math.log(0.5) / math.log(slowest)) + 2
    if steps > ADAM_STEPS_MAX:
        steps = ADAM_STEPS_MAX
    powers = np.arange(1, steps, dtype=np.float64)
    table = np.zeros(2 * steps)
    table[2::2] = 1.0 / (1.0 - betas[0] ** powers)
    table[3::2] = 1.0 / np.sqrt(1.0 - betas[1] ** powers)
    return table


def _adam_check(values: Values) -> str:
    limit = 0.5 ** (26.0 / ADAM_STEPS_MAX)
    for name in ("beta1", "beta2"):
        if float(values[name]) > limit:
            return f"{name} must be at most {limit:.6f}, got {values[name]}"
    return _eps_check(values)


_ADAM: Kinds = {
    "lr": Number(0.001, 0.0, 1e6),
    "beta1": Number(0.9, 0.0, 1.0),
    "beta2": Number(0.999, 0.0, 1.0),
    "eps": _EPS,
}
_STEP = Choice(("row", "table"))
_DECAY = Number(0.01, 0.0, 1e6)
_MOMENTS = "t += 1; m += (1-beta1)(g-m); v += (1-beta2)(g*g-v); "
_LAZY = "; lazy: only rows in the push move; t counts by row, or with step=table the table's pushes"


def _adam_state(per_weight: int) -> Callable[[int, Values], int]:
    """Return the floats of so many moments, and of t unless the table keeps it."""
    return lambda dim, values: per_weight * dim + (values["step"] == "row")


def _adam_parts(*moments: str) -> Callable[[int, Values], Mapping[str, int]]:
    """Return the parts that ``_adam_state`` counts."""
    return lambda dim, values: (
        dict.fromkeys(moments, dim) | ({"t": 1} if values["step"] == "row" else {})
    )


RULES: dict[str, OptimizerRule] = {
    "sgd": OptimizerRule(
        formula="w -= lr * g",
        options={"lr": _LR},
        state="none",
        state_dim=lambda _dim, _values: 0,
        kernel=lambda _values: optim.sgd,
        source="Robbins and Monro, Ann. Math. Stat. 22 (1951)",
    ),
    "momentum": OptimizerRule(
        formula="m = momentum*m + g; w -= lr * m",
        options={"lr": _LR, "momentum": _SHARE},
        state="m",
        state_dim=lambda dim, _values: dim,
        parts=lambda dim, _values: {"m": dim},
        kernel=lambda _values: optim.momentum,
        source="Polyak, USSR Comp. Math. 4 (1964); torch.optim.SGD",
    ),
    "nesterov": OptimizerRule(
        formula="m = momentum*m + g; w -= lr * (g + momentum*m)",
        options={"lr": _LR, "momentum": _SHARE},
        state="m",
        state_dim=lambda dim, _values: dim,
        parts=lambda dim, _values: {"m": dim},
        kernel=lambda _values: optim.nesterov,
        source="Sutskever et al., ICML 2013; torch.optim.SGD",
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
            "initial": _INITIAL,
            "state": Choice(("element", "row")),
            "accumulate": Choice(("before", "after")),
        },
        state="G",
        state_dim=lambda dim, values: dim if values["state"] == "element" else 1,
        parts=lambda dim, values: {"G": dim if values["state"] == "element" else 1},
        kernel=lambda values: _ADAGRAD_KERNELS[str(values["state"]), str(values["accumulate"])],
        first_state=lambda _dim, values: (
            (float(values["initial"]),) if values["accumulate"] == "before" else (0.0,)
        ),
        check=_adagrad_check,
        couples=lambda values: _ONE_A_ROW if values["state"] == "row" else "",
        source="Duchi, Hazan and Singer, JMLR 12 (2011); after: PaddlePaddle's AdaGrad rules",
    ),
    "adagrad_decay": OptimizerRule(
        formula=(
            "each decay_step-th push of the table: G = max(initial, decay_rate*G), made up for when "
            "a row is next touched; G += g*g; w -= lr * g / sqrt(G)"
        ),
        options={
            "lr": _LR,
            "initial": Number(0.1, 1e-30, 1e6),
            "decay_rate": _SHARE,
            "decay_step": Number(100_000, 1, 1e12, is_whole=True),
        },
        state="decays so far, G",
        state_dim=lambda dim, _values: dim + 1,
        parts=lambda dim, _values: {"decays so far": 1, "G": dim},
        kernel=lambda _values: optim.adagrad_decay,
        first_state=lambda _dim, values: (0.0, float(values["initial"])),
        source="AdagradDecayOptimizer of DeepRec",
    ),
    "adam": OptimizerRule(
        formula=f"{_MOMENTS}w -= lr/(1-beta1^t) * m / (sqrt(v/(1-beta2^t)) + eps){_LAZY}",
        options={**_ADAM, "step": _STEP},
        state="m, v, t",
        state_dim=_adam_state(2),
        parts=_adam_parts("m", "v"),
        kernel=lambda _values: optim_adam.adam,
        kernel_table=_adam_table,
        check=_adam_check,
        source="Kingma and Ba, ICLR 2015",
    ),
    "amsgrad": OptimizerRule(
        formula=(
            f"{_MOMENTS}x = max(x, v); w -= lr/(1-beta1^t) * m / (sqrt(x/(1-beta2^t)) + eps); "
            "lazy as adam"
        ),
        options={**_ADAM, "step": _STEP},
        state="m, v, x, t",
        state_dim=_adam_state(3),
        parts=_adam_parts("m", "v", "x"),
        kernel=lambda _values: optim_adam.amsgrad,
        kernel_table=_adam_table,
        check=_adam_check,
        source="Reddi, Kale and Kumar, ICLR 2018; torch.optim.Adam",
    ),
    "adamw": OptimizerRule(
        formula="w -= lr * weight_decay * w, rows in the push only; then adam",
        options={**_ADAM, "step": _STEP, "weight_decay": _DECAY},
        state="m, v, t",
        state_dim=_adam_state(2),
        parts=_adam_parts("m", "v"),
        kernel=lambda _values: optim_adam.adam,
        kernel_table=_adam_table,
        check=_adam_check,
        source="Loshchilov and Hutter, ICLR 2019; torch.optim.AdamW",
    ),
    "lamb": OptimizerRule(
        formula=(
            f"{_MOMENTS}r = m/(1-beta1^t) / (sqrt(v/(1-beta2^t)) + eps) + weight_decay*w; "
            "w -= lr * |w|/|r| * r, norms by row; lazy as adam"
        ),
        options={**_ADAM, "weight_decay": Number(0.0, 0.0, 1e6), "step": _STEP},
        state="m, v, t",
        state_dim=_adam_state(2),
        parts=_adam_parts("m", "v"),
        kernel=lambda _values: optim_adam.lamb,
        kernel_table=_adam_table,
        check=_adam_check,
        decays_itself=True,
        couples=lambda _values: _NORM,
        source="You et al., ICLR 2020",
    ),
    "shared_adam": OptimizerRule(
        formula=(
            "m' = beta1*m + (1-beta1)*g; v' = beta2*v + (1-beta2)*g*g; w -= lr * "
            "sqrt(1-beta2^t)/(1-beta1^t) * m' / (sqrt(v') + eps); then m = mean(m'), v = mean(v')"
        ),
        options=_ADAM,
        state="m, v, beta1^t, beta2^t",
        state_dim=lambda _dim, _values: 4,
        parts=lambda _dim, _values: dict.fromkeys(("m", "v", "beta1^t", "beta2^t"), 1),
        kernel=lambda _values: optim_adam.shared_adam,
        first_state=lambda _dim, values: (
            0.0,
            0.0,
            float(values["beta1"]),
            float(values["beta2"]),
        ),
        check=_adam_check,
        couples=lambda _values: _ONE_A_ROW,
        source="PaddlePaddle's SharedAdam rule",
    ),
    "rmsprop": OptimizerRule(
        formula=(
            "v1: n = rho*n + (1-rho)*g*g. v2: n = rho*n + g*g. Then u = g / (sqrt(n) + eps), or "
            "g / sqrt(n + eps) for eps_at=inside; w -= lr * u. "
            "momentum over 0: b = momentum*b + u; w -= lr * b"
        ),
        options={
            "lr": Number(0.01, 0.0, 1e6),
            "rho": Number(0.99, 0.0, 1.0),
            "eps": _EPS,
            "momentum": Number(0.0, 0.0, 1.0),
            "variant": Choice(("v1", "v2")),
            "eps_at": Choice(("outside", "inside")),
        },
        state="n, and b with momentum",
        state_dim=lambda dim, values: 2 * dim if values["momentum"] else dim,
        parts=lambda dim, values: {"n": dim, "b": dim} if values["momentum"] else {"n": dim},
        kernel=lambda values: (
            optim_rms.rmsprop_momentum if values["momentum"] else optim_rms.rmsprop
        ),
        check=_eps_check,
        source="Tieleman and Hinton, lecture 6e (2012); torch.optim.RMSprop; v2: Monolith",
    ),
    "adadelta": OptimizerRule(
        formula=(
            "n = rho*n + (1-rho)*g*g; u = sqrt(x + eps) / sqrt(n + eps) * g; "
            "x = rho*x + (1-rho)*u*u; w -= lr * u"
        ),
        options={"lr": Number(1.0, 0.0, 1e6), "rho": _SHARE, "eps": Number(1e-6, 0.0, 1.0)},
        state="n, x",
        state_dim=lambda dim, _values: 2 * dim,
        parts=lambda dim, _values: {"n": dim, "x": dim},
        kernel=lambda _values: optim_rms.adadelta,
        check=_eps_check,
        source="Zeiler, arXiv 1212.5701 (2012); torch.optim.Adadelta",
    ),
    "ftrl": OptimizerRule(
        formula=(
            "p = n^-lr_power; n += g*g; z += g - (n^-lr_power - p)/lr * w; w = 0 if |z| <= l1, else "
            "-(z - sign(z)*l1) / ((beta + n^-lr_power)/lr + l2); a row's first weights last until its "
            "first push"
        ),
        options={
            "lr": _LR,
            "l1": Number(0.0, 0.0, 1e6),
            "l2": Number(0.0, 0.0, 1e6),
            "beta": Number(1.0, 0.0, 1e6),
            "initial": _INITIAL,
            "lr_power": Number(-0.5, -1.0, 0.0),
        },
        state="n, lr*z",
        state_dim=lambda dim, _values: 2 * dim,
        parts=lambda dim, _values: {"n": dim, "lr*z": dim},
        kernel=lambda values: (
            optim_ftrl.ftrl if values["lr_power"] == -0.5 else optim_ftrl.ftrl_power
        ),
        first_state=lambda dim, values: (*[float(values["initial"])] * dim, 0.0),
        check=_beta_check,
        source="McMahan et al., KDD 2013; lr_power: TensorFlow",
    ),
    "group_adagrad": OptimizerRule(
        formula=(
            "n += max(g*g); a = lr / (sqrt(n) + beta); u = w - a*g; "
            "w = 0 if |u| <= a*l2, else u * (1 - a*l2/|u|), |u| the norm of the row"
        ),
        options={
            "lr": _LR,
            "l2": Number(0.0, 0.0, 1e6),
            "beta": Number(1.0, 0.0, 1e6),
            "initial": _INITIAL,
        },
        state="n",
        state_dim=lambda _dim, _values: 1,
        parts=lambda _dim, _values: {"n": 1},
        kernel=lambda _values: optim_ftrl.group_adagrad,
        first_state=lambda _dim, values: (float(values["initial"]),),
        check=_beta_check,
        couples=lambda _values: _NORM,
        source="GroupAdaGrad of Monolith",
    ),
    "sum": OptimizerRule(
        formula="w += lr * g",
        options={"lr": _ONE},
        state="none",
        state_dim=lambda _dim, _values: 0,
        kernel=lambda _values: optim.sum_up,
        source="SumOptimizer of PaddlePaddle's dense tables",
    ),
    "summary": OptimizerRule(
        formula="w = decay*w + lr * g, rows in the push only; it has no weight_decay",
        options={"lr": _ONE, "decay": Number(0.999999, 0.0, 1.0)},
        state="none",
        state_dim=lambda _dim, _values: 0,
        kernel=lambda _values: optim.summary,
        source="SummaryOptimizer of PaddlePaddle's dense tables",
    ),
}
"""Every optimizer, by the name a spec uses; ``optimizer_file.load_rule`` adds to it."""
