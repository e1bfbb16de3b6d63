"""Admission: which new keys get a row, and when.

Rooms before and after: a spec names a rule; ``registry`` spells it out; ``sparse`` asks the filter made
here for every pushed key without a row; ``admission_filters`` has the filters.

With ``always`` a pull and a push create rows. With any other rule only a push does, once the key is
admitted; that push's gradient is applied, and those before were dropped. Until then the key reads
as the spec's ``unknown_reads`` says.

What always holds: the spelled-out text has every option that the rule reads; two texts are equal if and
only if the rules are.
"""

from dataclasses import dataclass

from pserver.errors import ConfigError, nearest
from pserver.kernel import admit
from pserver.spec import TableSpec, parse_rule
from pserver.table.accessor import Accessor
from pserver.table.admission_filters import (
    AdmissionFilter,
    Draw,
    ExactCount,
    ScoreFilter,
    SketchCount,
)
from pserver.table.candidates import Candidates
from pserver.table.initializer import table_seed
from pserver.table.optimizer_options import Choice, Kinds, Number, Values, read_options
from pserver.table.sketch import Sketch

SKETCH_COUNTERS = 2**28
"""Counters of a sketch over all shards, unless said: 256 MiB. With 16 counters a key one key in 600 is
counted too high, with 4 one in 18 (measured)."""

_COUNT: Kinds = {
    "n": Number(None, 1, 2**32 - 1, is_whole=True),
    "per": Choice(("occurrence", "batch")),
    "filter": Choice(("exact", "sketch")),
}
_SKETCH: Kinds = {"counters": Number(SKETCH_COUNTERS, 2**16, 2**40, is_whole=True)}
_PROBABILITY: Kinds = {"p": Number(None, 0.0, 1.0), "trial": Choice(("key", "push"))}
_SCORE: Kinds = {"score": Number(None, -1e12, 1e12)}
_COEFFS: Kinds = {"nonclk_coeff": Number(0.1, -1e12, 1e12), "click_coeff": Number(1.0, -1e12, 1e12)}
_RULES = ("always", "count", "probability", "show_click")


@dataclass(frozen=True, slots=True)
class AdmissionRule:
    """A rule bound to its options. Immutable.

    Attributes:
        text: the rule, spelled out.
        name: always, count, probability or show_click.
        values: the options by name.
    """

    text: str
    name: str
    values: Values


def make_admission_rule(
    text: str, accessor: Accessor, *, where: str = "admission"
) -> AdmissionRule:
    """Bind the rule written in ``text``.

    Args:
        text: such as ``count:n=10``.
        accessor: of the table; the coefficients of ``ctr`` are those of its score too.
        where: what an error names.

    Raises:
        ConfigError: unknown rule or option, with the nearest valid name, or a value refused.

    >>> from pserver.table.accessor import make_accessor
    >>> make_admission_rule("count:n=3", make_accessor("plain")).text
    'count:n=3,per=occurrence,filter=exact'
    """
    parsed = parse_rule(text, where=where)
    if parsed.name not in _RULES:
        raise ConfigError(f"{where}: unknown rule {parsed.name!r}; {nearest(parsed.name, _RULES)}")
    kinds: Kinds = {}
    if parsed.name == "count":
        kinds = {**_COUNT, **(_SKETCH if parsed.options.get("filter") == "sketch" else {})}
    elif parsed.name == "probability":
        kinds = _PROBABILITY
    elif parsed.name == "show_click":
        kinds = {**_SCORE, **({} if accessor.is_ctr else _COEFFS)}
    full, values = read_options(text, parsed.name, parsed.options, kinds, where=where)
    if values.get("filter") == "sketch" and float(values["n"]) > admit.COUNT_MAX:
        raise ConfigError(
            f"{where}: {full}: a counter of a sketch stops at {admit.COUNT_MAX}, so n must be at "
            "most that; take a smaller n, or filter=exact"
        )
    return AdmissionRule(full, parsed.name, values)


def make_admission(
    rule: AdmissionRule, accessor: Accessor, spec: TableSpec
) -> AdmissionFilter | None:
    """Return the filter of a table, or None for ``always``.

    Args:
        rule: of the spec.
        accessor: of the spec.
        spec: of the table.

    Raises:
        ConfigError: the system refused the address space.
    """
    values, capacity, table = rule.values, spec.capacity_max, spec.name
    if rule.name == "count":
        threshold, is_per_batch = int(values["n"]), values["per"] == "batch"
        if values["filter"] == "sketch":
            sketch = Sketch(int(values["counters"]), table=table)
            return SketchCount(threshold, sketch, is_per_batch=is_per_batch)
        counted = Candidates(capacity, ExactCount.FIELDS, table=table)
        return ExactCount(threshold, counted, is_per_batch=is_per_batch)
    if rule.name == "probability":
        # A name of its own: first weights draw from the table's.
        seed = table_seed(f"{table}/admission", spec.seed)
        return Draw(float(values["p"]), seed, is_per_push=values["trial"] == "push")
    if rule.name == "show_click":
        source = accessor.values if accessor.is_ctr else values
        coeffs = float(source["nonclk_coeff"]), float(source["click_coeff"])
        counted = Candidates(capacity, ScoreFilter.FIELDS, table=table)
        return ScoreFilter(float(values["score"]), coeffs, counted)
    return None
