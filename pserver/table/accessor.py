"""Accessors: what a table keeps of a key beside its weights, and when a row gets them all.

Rooms before and after: a spec names one, ``plain`` or ``ctr:...``; ``sparse`` composes its rows by it,
``ctr`` holds those of ``ctr``; shrink and checkpoints ask for the numbers by name.

What always holds: the spelled-out text has every option; two texts are equal if and only if the
accessors are.

Source:
    CtrCommonAccessor and the_one_ps.proto of PaddlePaddle, whose names and defaults these are.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pserver.arrays import Doubles
from pserver.errors import ConfigError, nearest
from pserver.kernel import ctr
from pserver.spec import parse_rule
from pserver.table.fields import Field
from pserver.table.optimizer_options import Choice, Kinds, Number, Values, read_options

_ANY = 1e12
_DAYS = 10_000

_CTR: Kinds = {
    "embedx_threshold": Number(10.0, -_ANY, _ANY),
    "nonclk_coeff": Number(0.1, -_ANY, _ANY),
    "click_coeff": Number(1.0, -_ANY, _ANY),
    "wide_first": Choice(("initializer", "zeros")),
    "base_threshold": Number(1.5, -_ANY, _ANY),
    "delta_threshold": Number(0.25, -_ANY, _ANY),
    "delta_keep_days": Number(16, 0, _DAYS, is_whole=True),
    "show_click_decay_rate": Number(0.98, 0.0, 1.0),
    "delete_threshold": Number(0.8, -_ANY, _ANY),
    "delete_after_unseen_days": Number(30, 0, _DAYS, is_whole=True),
}

KINDS: Mapping[str, Kinds] = {"plain": {}, "ctr": _CTR}
"""Every accessor with its options."""

CTR_FIELDS = (
    Field("show", "float32"),
    Field("click", "float32"),
    Field("delta_score", "float32"),
    Field("unseen_days", "uint32"),
    Field("slot", "uint32"),
    Field("embedx", "uint32"),
)
"""The words of a row of ctr, where ``kernel.ctr`` expects them. show and click count to 2^24 = 16.8
million by ones, as a float32 does; larger pushes and the decay of shrink still move them."""

assert [field.name for field in CTR_FIELDS].index("embedx") == ctr.EMBEDX


@dataclass(frozen=True, slots=True)
class Accessor:
    """A rule bound to its options. Immutable.

    Attributes:
        text: the rule, spelled out.
        name: ``plain`` or ``ctr``.
        values: the options by name; none of ``plain``.
        fields: the words of a row.
    """

    text: str
    name: str
    values: Values
    fields: tuple[Field, ...]

    @property
    def is_ctr(self) -> bool:
        """Return whether rows have statistics and two parts."""
        return self.name == "ctr"

    def number(self, option: str) -> float:
        """Return the value of a numeric option."""
        return float(self.values[option])

    def scores(self, shows: Doubles, clicks: Doubles) -> Doubles:
        """Return the (U,) scores of rows."""
        coeffs = self.number("nonclk_coeff"), self.number("click_coeff")
        scores: Doubles = ctr.score(shows, clicks, *coeffs)
        return scores

    def score(self, show: float, click: float) -> float:
        """Return (show - click) * nonclk_coeff + click * click_coeff.

        >>> make_accessor("ctr").score(20.0, 2.0)
        3.8
        """
        coeffs = self.number("nonclk_coeff"), self.number("click_coeff")
        return float(ctr.score(show, click, *coeffs))


def make_accessor(text: str, *, where: str = "accessor") -> Accessor:
    """Bind the accessor written in ``text``.

    Raises:
        ConfigError: unknown accessor or option, with the nearest valid name, or a value refused.

    >>> make_accessor("plain").text
    'plain'
    >>> make_accessor("ctr:embedx_threshold=5").text.split(",")[0]
    'ctr:embedx_threshold=5.0'
    """
    parsed = parse_rule(text, where=where)
    if parsed.name not in KINDS:
        known = nearest(parsed.name, KINDS)
        raise ConfigError(f"{where}: unknown accessor {parsed.name!r}; {known}")
    kinds = KINDS[parsed.name]
    full, values = read_options(text, parsed.name, parsed.options, kinds, where=where)
    fields = CTR_FIELDS if parsed.name == "ctr" else ()
    return Accessor(full, parsed.name, values, fields)
