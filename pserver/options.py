"""From a settings class to flags, environment and TOML, and back to settings.

Rooms before and after: the command lines of ``pserver`` and ``trainer`` call ``add_flags`` and
``resolve``; ``config`` says what the settings are. Each option is defined once, as a field: its
flag is ``--field-name``, its variable ``PREFIX_FIELD_NAME``, its TOML key ``field_name``.

What always holds: a flag wins over the environment, that over the file, that over the default;
an unknown flag or key is an error that names the nearest valid one; each value's origin is known.
Other systems' names (``Aliases``) rank with our own of the same source; two names that say
different things are an error.
"""

import argparse
import decimal
import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol, TypeAlias, TypeVar, get_args, get_origin

from pydantic.fields import FieldInfo
from typing_extensions import override

from pserver.errors import ConfigError, nearest
from pserver.settings import Settings

S = TypeVar("S", bound=Settings)

Given: TypeAlias = dict[str, tuple[Any, str]]
"""What one source says: by field name, the value and where it stands."""

_TYPO = 0.8  # how alike two names are when one is taken for a misspelling of the other

USAGE_EXIT = 2
"""Exit status for settings that cannot work: trying again would not help."""


_DIGITS_MAX = 18
"""A whole number on a command line is below 10^19, so that 1e999999999 is not computed."""


_NEGATIVE = re.compile(r"^-(?:\d[\d_]*|\d*\.\d+|0[xX][\da-fA-F_]+)$")
"""A word that is a value though it begins with a dash. argparse has one without hex."""


class Aliases(Protocol):
    """Names of another system for settings of ours."""

    def from_environment(self, environ: Mapping[str, str]) -> Given:
        """Return what its variables say.

        Raises:
            ConfigError: a variable of its cannot be honoured.
        """
        ...

    def from_file(self, values: dict[str, Any], *, where: str) -> tuple[dict[str, Any], Given]:
        """Return the keys of a section that are not its, and what its keys say.

        Args:
            values: the section.
            where: what errors and origins call it, such as ``job.toml:run``.

        Raises:
            ConfigError: a key of its cannot be honoured.
        """
        ...


class CommandParser(argparse.ArgumentParser):
    """An argument parser whose errors name the nearest valid flag or command."""

    def __init__(self, **kwargs: Any) -> None:
        """Refuse abbreviations: a later flag could make them ambiguous."""
        super().__init__(allow_abbrev=False, **kwargs)
        self._negative_number_matcher = _NEGATIVE

    @override
    def parse_known_args(  # type: ignore[override]  # one form is enough: nobody passes another
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; an unknown flag is an error here already, where this command's flags are known."""
        given = argparse.Namespace() if namespace is None else namespace
        parsed, rest = super().parse_known_args(args, given)
        unknown = [word for word in rest if word.startswith("-")]
        if unknown:
            flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
            self.error(f"unknown option {unknown[0]}; {nearest(unknown[0].split('=')[0], flags)}")
        return parsed, rest

    @override
    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line and exit 2."""
        self.exit(USAGE_EXIT, f"{self.prog}: {message}\nsee `{self.prog} --help`\n")


def whole_number(text: str) -> int:
    """Return the whole number that is written in full or as a power of ten.

    Raises:
        ArgumentTypeError: the text is no such number.

    >>> whole_number("2e9") == whole_number("2_000_000_000") == 2 * 10**9
    True
    """
    try:
        value = decimal.Decimal(text)
    except decimal.InvalidOperation:
        value = decimal.Decimal("nan")
    if not value.is_finite() or abs(value.adjusted()) > _DIGITS_MAX or value % 1:
        raise argparse.ArgumentTypeError(
            f"must be a whole number such as 2e9 or 2_000_000_000, got {text!r}"
        )
    return int(value)


def key_number(text: str) -> int:
    """Return the key in [0, 2^64) that is written in decimal or hex; a negative one bit for bit.

    Raises:
        ArgumentTypeError: the text is no integer of 64 bits.

    >>> key_number("0x10"), key_number("-1") == 2**64 - 1
    (16, True)
    """
    try:
        key = int(text, 16 if "x" in text.lower() else 10)
    except ValueError:
        key = 2**64
    if not -(2**63) <= key < 2**64:
        raise argparse.ArgumentTypeError(
            f"must be a decimal or 0x integer in [-2^63, 2^64 - 1], got {text!r}"
        )
    return key % 2**64


def flag_of(name: str) -> str:
    """Return the flag of a field.

    >>> flag_of("send_queue_size")
    '--send-queue-size'
    """
    return "--" + name.replace("_", "-")


def add_flags(
    parser: argparse.ArgumentParser, kind: type[Settings], *, skip: Sequence[str] = ()
) -> None:
    """Give a parser one flag for each field of a settings class, with default and description."""
    for name, field in kind.model_fields.items():
        if name in skip:
            continue
        default = "none" if field.default is None else field.default
        text = f"{field.description} (default: {default})".replace("%", "%%")
        arguments: dict[str, Any] = {"help": text, "default": argparse.SUPPRESS, "dest": name}
        if field.annotation is bool:
            arguments["action"] = argparse.BooleanOptionalAction
        else:
            arguments["metavar"] = _metavar(name, field)
        parser.add_argument(flag_of(name), **arguments)


def _metavar(name: str, field: FieldInfo) -> str:
    """Return what a flag's value is called in the help."""
    if get_origin(field.annotation) is Literal:
        return "|".join(get_args(field.annotation))
    return name.rsplit("_", maxsplit=1)[-1].upper()


def _read_file(path: str, section: str) -> dict[str, Any]:
    """Return a section of a TOML file.

    Raises:
        ConfigError: the file cannot be read or is no TOML, or the section is no table.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"--config {path}: {error}") from error
    values = content.get(section, {})
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: [{section}] must be a table, got {values!r}")
    return values


def refuse_misspelt(known: Set[str], environ: Mapping[str, str], *, prefix: str) -> None:
    """Refuse a variable that looks like a misspelt one of those known.

    Others that begin with the prefix pass: an orchestrator sets some for a service of that name.

    Args:
        known: names without the prefix.
        environ: the environment.
        prefix: of the variables that are looked at.

    Raises:
        ConfigError: naming the variable and the nearest known one.
    """
    for variable in environ:
        if not variable.startswith(prefix) or variable.removeprefix(prefix) in known:
            continue
        name = variable.removeprefix(prefix)
        close = difflib.get_close_matches(name, sorted(known), 1, _TYPO)
        close += [one for one in sorted(known) if sorted(one) == sorted(name)]  # MOED for MODE
        if close:
            raise ConfigError(
                f"environment {variable}: no such setting; did you mean {prefix}{close[0]}?"
            )


def _joined(ours: Given, theirs: Given) -> Given:
    """Return one source's settings under both systems' names.

    Raises:
        ConfigError: both name a setting and do not agree.
    """
    for name, (value, origin) in theirs.items():
        if name in ours and str(ours[name][0]) != str(value):
            raise ConfigError(
                f"{ours[name][1]} says {ours[name][0]} and {origin} says {value}; give one of them"
            )
    return {**theirs, **ours}


def resolve(  # noqa: PLR0913 - the sources of settings, given by name
    kind: type[S],
    flags: Mapping[str, Any],
    *,
    environ: Mapping[str, str],
    prefix: str,
    file: str | None = None,
    section: str = "",
    aliases: Aliases | None = None,
) -> tuple[S, dict[str, str]]:
    """Return the settings, and where each value came from.

    Args:
        kind: the settings class.
        flags: what the command line gave, by field name; other names are ignored.
        environ: the environment.
        prefix: of its variables, such as ``PSERVER_``.
        file: a TOML file, or None.
        section: the table of it that holds these settings.
        aliases: another system's names that are understood too.

    Raises:
        ConfigError: a key of the file is unknown, a variable looks misspelt, two names for one
            setting disagree, or a value is refused.
    """
    where = f"{file}:{section}"
    in_file = _read_file(file, section) if file else {}
    from_aliases: Given = {}
    if aliases is not None:
        in_file, from_aliases = aliases.from_file(in_file, where=where)
    for key in in_file:
        if key not in kind.model_fields:
            raise ConfigError(
                f"{file}: [{section}] has no setting {key!r}; {nearest(key, kind.model_fields)}"
            )
    refuse_misspelt({name.upper() for name in kind.model_fields}, environ, prefix=prefix)
    by_file = _joined({k: (v, f"{where}.{k}") for k, v in in_file.items()}, from_aliases)
    variables = {name: prefix + name.upper() for name in kind.model_fields}
    by_environment = _joined(
        {n: (environ[v], f"environment {v}") for n, v in variables.items() if v in environ},
        aliases.from_environment(environ) if aliases is not None else {},
    )
    by_flag = {n: (flags[n], f"flag {flag_of(n)}") for n in kind.model_fields if n in flags}
    given = {**by_file, **by_environment, **by_flag}
    origins = {n: given[n][1] if n in given else "default" for n in kind.model_fields}
    return kind.make({n: value for n, (value, _) in given.items()}, origins=origins), origins
