"""A spec's optimizer bound to a table: text to kernel, schedule and what stands around a step.

Rooms before and after: ``registry`` spells a spec out with it; ``sparse`` applies every push
through it; ``optimizer_rules`` says which rules there are, ``schedule`` what the learning rate is.

What always holds: a rule's spelled-out text reads as the same rule, and two rules are the same if
and only if their spelled-out texts are. What is off by default (a schedule, decay, clip, bounds)
stands in the text only when it is on, and costs nothing when it is off.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from pserver.arrays import Doubles, Floats, RowIds
from pserver.errors import ConfigError, nearest
from pserver.kernel import optim_shared
from pserver.occurrences import NO_FLOATS
from pserver.spec import parse_rule
from pserver.table.optimizer_options import Choice, Kinds, Number, Values, read_options
from pserver.table.optimizer_rules import RULES, Kernel, OptimizerRule
from pserver.table.schedule import QUIET, Schedule, make_schedule, schedule_kinds

__all__ = ["COMMON", "RULES", "Optimizer", "make_optimizer"]

COMMON: Kinds = {
    "show_scale": Choice(("off", "on")),
    "weight_decay": Number(0.0, 0.0, 1e6),
    "decay": Choice(("decoupled", "gradient")),
    "clip": Number(math.inf, 1e-30, 1e15),
    "weight_low": Number(-math.inf, -1e15, 1e15),
    "weight_high": Number(math.inf, -1e15, 1e15),
}
"""Options of every rule, all off by default. In the order in which they work on the rows of a push,
and on no others: ``show_scale=on`` divides g by the shows of its key in this push, which are its
occurrences unless the push says otherwise; g is clipped to [-clip, clip]; ``decay=gradient`` adds weight_decay * w to g, or
w -= lr * weight_decay * w (decoupled); then the rule; then w is held in [weight_low, weight_high].
"""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A rule bound to a dim: what a table needs to apply a push.

    Owner: one table, as ``apply`` writes the first two of ``options``.

    Attributes:
        text: the rule, spelled out.
        dim: weights a row.
        state_dim: floats of state a row.
        first_state: what they begin with; the last one stands for all that follow.
        kernel: the step.
        options: what the kernel gets: lr, pushes applied, then the rule's options in their order.
        kernel_table: numbers made once for the kernel.
        schedule: the learning rate.
        common: the values of ``COMMON``.
        parts: the floats of each part of the state, by name, in the row's order.
        couples: why the step of a weight depends on others of its row, or an empty text.
    """

    text: str
    dim: int
    state_dim: int
    first_state: Doubles
    kernel: Kernel
    options: Doubles
    kernel_table: Doubles
    schedule: Schedule
    common: Values
    parts: Mapping[str, int]
    couples: str

    @property
    def scales(self) -> bool:
        """Return whether a gradient is divided by the shows of its key."""
        return self.common["show_scale"] == "on"

    def apply(
        self,
        rows: Floats,
        row_ids: RowIds,
        grads: Floats,
        *,
        version: int,
        shows: Floats = NO_FLOATS,
    ) -> None:
        """Apply one step to the named rows, in place.

        Args:
            rows: the slab; a row is ``dim + state_dim`` floats.
            row_ids: (U,) distinct.
            grads: (U * dim,) finite, read-only.
            version: pushes applied before this one.
            shows: (U,) over 0, read-only; needed if the rule ``scales``, else not looked at.
        """
        dim, stride, common = self.dim, self.dim + self.state_dim, self.common
        rate = self.schedule.at(version)
        self.options[0], self.options[1] = rate, version + 1
        if self.scales:
            grads = self._per_show(grads, shows)
        limit, decay = float(common["clip"]), float(common["weight_decay"])
        added = decay if common["decay"] == "gradient" else 0.0
        if limit < math.inf or added:
            seen = np.empty_like(grads)
            optim_shared.ready(
                rows, stride, dim, row_ids, grads, np.float32(limit), np.float32(added), seen
            )
            seen.flags.writeable = False
            grads = seen
        if decay and not added:
            optim_shared.shrink(rows, stride, dim, row_ids, np.float32(rate * decay))
        self.kernel(rows, stride, dim, row_ids, grads, self.options, self.kernel_table)
        low, high = float(common["weight_low"]), float(common["weight_high"])
        if low > -math.inf or high < math.inf:
            optim_shared.bound(rows, stride, dim, row_ids, np.float32(low), np.float32(high))

    def _per_show(self, grads: Floats, shows: Floats) -> Floats:
        """Return gradients divided by the shows of their keys, read-only."""
        divided = np.empty_like(grads)
        optim_shared.divide(grads, self.dim, shows, divided)
        divided.flags.writeable = False
        return divided


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
    >>> make_optimizer("sgd:clip=2,schedule=cosine,steps=1e3", dim=4).text
    'sgd:lr=0.05,schedule=cosine,steps=1000,end=0.0,clip=2.0'
    """
    parsed = parse_rule(text, where=where)
    rule = RULES.get(parsed.name)
    if rule is None:
        raise ConfigError(f"{where}: unknown rule {parsed.name!r}; {nearest(parsed.name, RULES)}")
    kinds = _kinds(rule, parsed.options, where=f"{where}: {parsed.name}")
    quiet = {*QUIET, *COMMON} - set(rule.options)
    full, values = read_options(text, parsed.name, parsed.options, kinds, where=where, quiet=quiet)
    schedule = make_schedule(values)
    common = {option: values.get(option, kind.default or 0.0) for option, kind in COMMON.items()}
    if "decay" in rule.options:
        common["decay"] = "decoupled"  # the word of that name is not an option of this rule
    if rule.decays_itself:
        common["weight_decay"] = 0.0
    refusal = rule.check(values) or _refusal(common, schedule, {*parsed.options} - {*rule.options})
    if refusal:
        raise ConfigError(f"{where}: {full}: {refusal}")
    state_dim = int(rule.state_dim(dim, values))
    parts = rule.parts(dim, values) if rule.parts else {rule.state: state_dim}
    return Optimizer(
        text=full,
        dim=dim,
        state_dim=state_dim,
        first_state=np.array(rule.first_state(dim, values), np.float64),
        kernel=rule.kernel(values),
        options=_kernel_options(rule.options, values, schedule),
        kernel_table=rule.kernel_table(values),
        schedule=schedule,
        common=common,
        parts={part: count for part, count in parts.items() if count},
        couples=rule.couples(values),
    )


def _kinds(rule: OptimizerRule, given: Mapping[str, str], *, where: str) -> Kinds:
    """Return the options that may be given: the rule's, the named schedule's, the common ones."""
    common = dict(COMMON)
    if not {"weight_decay", "decay"}.isdisjoint(rule.options):
        # Weights decay as the rule says; where else that could go is no question.
        del common["weight_decay"], common["decay"]
    return {**rule.options, **schedule_kinds(given, where=where), **common}


def _refusal(common: Values, schedule: Schedule, given: Collection[str]) -> str:
    """Return why the common options cannot work, or an empty text."""
    decay = float(common["weight_decay"])
    if "decay" in given and not decay:
        return "decay says where weight_decay goes; give weight_decay too"
    if schedule.peak * decay > 1.0:
        return (
            f"lr * weight_decay must be at most 1, or weights grow without end; got "
            f"{schedule.peak:g} * {decay:g}"
        )
    if float(common["weight_low"]) > float(common["weight_high"]):
        return "weight_low must not be over weight_high"
    return ""


def _kernel_options(kinds: Kinds, values: Values, schedule: Schedule) -> Doubles:
    """Return what a kernel gets: lr, t, then the other options of the rule, words by position."""
    numbers = [schedule.at(0), 1.0]
    for option, kind in kinds.items():
        if option == "lr":
            continue
        value = values[option]
        numbers.append(kind.words.index(str(value)) if isinstance(kind, Choice) else float(value))
    return np.array(numbers, np.float64)
