"""Options of rules: numbers and words, how they are read, and how a rule's text is spelled out.

Rooms before and after: a spec's rule is text; ``optimizer_rules``, ``schedule`` and ``initializer``
say which options there are; ``optimizer`` and ``initializer`` bind the values.
"""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pserver.errors import ConfigError, nearest

Values: TypeAlias = Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class Number:
    """An option that is a number in [low, high].

    Attributes:
        default: in force when nothing is written; may lie outside the range, as infinity for "off"
            does. None: it must be written.
        low: the least that may be written.
        high: the most that may be written.
        is_whole: no fraction is taken.
    """

    default: float | None
    low: float
    high: float
    is_whole: bool = False

    def read(self, text: str, *, where: str) -> float:
        """Return the number written in ``text``.

        Raises:
            ConfigError: it is no number, or out of range.
        """
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not self.low <= value <= self.high or (self.is_whole and value % 1.0):
            kind = "a whole number" if self.is_whole else "a number"
            raise ConfigError(
                f"{where} must be {kind} in [{self.low:g}, {self.high:g}], got {text!r}"
            )
        return value

    def spell(self, value: float | str) -> str:
        """Return the text that reads as ``value``, to the last bit."""
        return str(int(value)) if self.is_whole else str(value)


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

    def spell(self, value: float | str) -> str:
        """Return the word."""
        return str(value)


Kinds: TypeAlias = Mapping[str, Number | Choice]


def read_options(
    text: str,
    name: str,
    given: Mapping[str, str],
    kinds: Kinds,
    *,
    where: str,
    quiet: Container[str] = (),
) -> tuple[str, Values]:
    """Return a rule's full text with its options spelled out, and the options' values.

    Args:
        text: the rule as written, for errors.
        name: the rule's name.
        given: the options that were written.
        kinds: the options that there are, in order.
        where: what an error names.
        quiet: options left out of the full text when they have their default. One value has one
            text either way, so two texts are equal if and only if the rules are.

    Raises:
        ConfigError: an option is unknown, its value is refused, or one without default is missing.
    """
    for option in given:
        if option not in kinds:
            raise ConfigError(
                f"{where}: {name} has no option {option!r} in {text!r}; {nearest(option, kinds)}"
            )
    values: dict[str, float | str] = {}
    for option, kind in kinds.items():
        default = kind.default
        if option in given:
            values[option] = kind.read(given[option], where=f"{where}: {name}:{option}")
        elif default is None:
            raise ConfigError(f"{where}: {name} needs {option}=NUMBER in {text!r}")
        else:
            values[option] = default
    spelled = ",".join(
        f"{option}={kind.spell(values[option])}"
        for option, kind in kinds.items()
        if option not in quiet or values[option] != kind.default
    )
    return (f"{name}:{spelled}" if spelled else name), values
