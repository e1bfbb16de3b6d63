"""What ``pserver.options`` promises: one definition a setting, and who wins over whom."""

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from pserver.cli.main import make_parser
from pserver.config import ClientSettings, ServeSettings
from pserver.errors import ConfigError
from pserver.options import (
    CommandParser,
    add_flags,
    flag_of,
    key_number,
    resolve,
    whole_number,
)
from pserver.settings import Settings

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "options.txt"
REGENERATE = "PSERVER_WRITE_GOLDEN"
"""Set this variable to 1 to rewrite the golden file; the difference is reviewed."""


class Sample(Settings):
    """Settings with one field of each kind."""

    size: Annotated[int, Field(ge=1, le=9, description="how many")] = 3
    rate_s: Annotated[float, Field(gt=0.0, description="seconds, 5% more or less")] = 0.5
    name: Annotated[str | None, Field(description="what it is called")] = None
    is_loud: Annotated[bool, Field(description="whether to shout")] = False
    mode: Annotated[Literal["sync", "async"], Field(description="how")] = "sync"


def parse(*words: str) -> dict[str, Any]:
    """Return what a command line with the flags of ``Sample`` gives."""
    parser = CommandParser(prog="sample")
    add_flags(parser, Sample)
    return vars(parser.parse_args(words))


def resolved(
    words: Sequence[str] = (), environ: dict[str, str] | None = None, file: str | None = None
) -> tuple[Sample, dict[str, str]]:
    """Return settings and origins."""
    return resolve(
        Sample, parse(*words), environ=environ or {}, prefix="X_", file=file, section="sample"
    )


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    """Return a file that sets two fields."""
    path = tmp_path / "job.toml"
    path.write_text('[sample]\nsize = 4\nmode = "async"\n[other]\nsize = 99\n', encoding="utf-8")
    return path


def test_defaults_hold_when_nothing_is_given() -> None:
    """Without flag, variable and file each setting has its default, and says so."""
    settings, origins = resolved()

    assert settings == Sample()
    assert set(origins.values()) == {"default"}


def test_file_wins_over_default(toml: Path) -> None:
    """What the file's section says is taken; other sections are for others."""
    settings, origins = resolved(file=str(toml))

    assert (settings.size, settings.mode, settings.rate_s) == (4, "async", 0.5)
    assert origins["size"] == f"{toml}:sample.size"


def test_environment_wins_over_file(toml: Path) -> None:
    """A variable of the prefix is taken before the file; others are not looked at."""
    environ = {"X_SIZE": "5", "SIZE": "6", "X_OTHER": "7", "X_IS_LOUD": "true"}

    settings, origins = resolved(environ=environ, file=str(toml))

    assert (settings.size, settings.mode, settings.is_loud) == (5, "async", True)
    assert origins["size"] == "environment X_SIZE"


def test_misspelt_variable_is_refused_when_a_setting_is_near() -> None:
    """X_SIZZE is taken for X_SIZE and refused; what an orchestrator sets for a service passes."""
    with pytest.raises(ConfigError, match=r"environment X_SIZZE: .* did you mean X_SIZE\?"):
        resolved(environ={"X_SIZZE": "5"})

    with pytest.raises(ConfigError, match=r"environment X_MOED: .* did you mean X_MODE\?"):
        resolved(environ={"X_MOED": "sync"})

    assert resolved(environ={"X_SERVICE_HOST": "10.0.0.1", "X_PORT": "tcp://a"})[0] == Sample()


def test_flag_wins_over_all(toml: Path) -> None:
    """A flag is taken before everything else, even when it gives the default."""
    words = ["--size", "3", "--no-is-loud", "--name=a b", "--rate-s", "1e-3"]

    settings, origins = resolved(words, {"X_SIZE": "5", "X_IS_LOUD": "1"}, str(toml))

    assert settings == Sample(size=3, mode="async", name="a b", rate_s=0.001)
    assert (origins["size"], origins["mode"]) == ("flag --size", f"{toml}:sample.mode")


@pytest.mark.parametrize(
    ("words", "environ", "facts"),
    [
        (["--size", "0"], {}, ["flag --size: ", "greater than or equal to 1", "got '0'"]),
        (["--size", "two"], {}, ["flag --size: ", "valid integer", "got 'two'"]),
        (["--mode", "geo"], {}, ["flag --mode: ", "unknown value 'geo'", "valid: async, sync"]),
        ([], {"X_RATE_S": "0"}, ["environment X_RATE_S: ", "greater than 0", "got '0'"]),
        ([], {"X_SIZE": ""}, ["environment X_SIZE: ", "got ''"]),
        (["--size", "10"], {"X_MODE": "no"}, ["flag --size: ", "; environment X_MODE: "]),
    ],
)
def test_refused_values_name_their_origin(
    words: list[str], environ: dict[str, str], facts: list[str]
) -> None:
    """A value that cannot be is refused with where it came from, what must hold and what came."""
    with pytest.raises(ConfigError) as caught:
        resolved(words, environ)

    assert all(fact in str(caught.value) for fact in facts)


def test_refused_values_name_the_file(tmp_path: Path) -> None:
    """A value of the file is refused with the file and its section."""
    path = tmp_path / "bad.toml"
    path.write_text("[sample]\nsize = 1.5\n", encoding="utf-8")

    with pytest.raises(ConfigError) as caught:
        resolved(file=str(path))

    assert str(caught.value).startswith(f"{path}:sample.size: ")
    assert str(caught.value).endswith("got 1.5")


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        ("[sample]\nsice = 1\n", "[sample] has no setting 'sice'; did you mean 'size'? Valid: "),
        ("sample = 1\n", "[sample] must be a table, got 1"),
        ("[sample\n", "Expected ']'"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, content: str, fact: str) -> None:
    """An unknown key names the nearest; what is no TOML or no table is told."""
    path = tmp_path / "bad.toml"
    path.write_text(content, encoding="utf-8")

    with pytest.raises(ConfigError) as caught:
        resolved(file=str(path))

    assert str(path) in str(caught.value)
    assert fact in str(caught.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    """A file that is not there is an error that names it, not an empty one."""
    with pytest.raises(ConfigError, match=r"--config .*none.toml: .*No such file"):
        resolved(file=str(tmp_path / "none.toml"))


def test_file_without_the_section_is_fine(tmp_path: Path) -> None:
    """A file may be there for other commands only."""
    path = tmp_path / "other.toml"
    path.write_text("[other]\nx = 1\n", encoding="utf-8")

    assert resolved(file=str(path))[0] == Sample()


@pytest.mark.parametrize("word", ["--sise", "--sise=3", "--siz", "-size"])
def test_unknown_flag_names_the_nearest(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that does not exist, or is cut short, exits 2 with the nearest one."""
    with pytest.raises(SystemExit) as caught:
        parse(word)

    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert f"sample: unknown option {word}; did you mean '--size'? Valid: " in message
    assert "see `sample --help`" in message


def test_flag_without_its_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that needs a value and has none exits 2."""
    with pytest.raises(SystemExit, match="2"):
        parse("--size")

    assert "argument --size: expected one argument" in capsys.readouterr().err


def test_help_shows_default_and_description(capsys: pytest.CaptureFixture[str]) -> None:
    """The help says each setting's default, what it is, and what may be given."""
    with pytest.raises(SystemExit, match="0"):
        parse("--help")

    text = " ".join(capsys.readouterr().out.split())
    assert "--size SIZE how many (default: 3)" in text
    assert "--rate-s S seconds, 5% more or less (default: 0.5)" in text
    assert "--name NAME what it is called (default: none)" in text
    assert "--mode sync|async how (default: sync)" in text
    assert "--is-loud, --no-is-loud" in text


def test_settings_refuse_unknown_names() -> None:
    """Settings made from code name the nearest too, and cannot be changed."""
    with pytest.raises(ConfigError, match=r"unknown setting 'sise'; did you mean 'size'"):
        Sample.make({"sise": 1}, origins={})
    with pytest.raises(Exception, match="frozen"):
        Sample().size = 4


@pytest.mark.parametrize("kind", [ServeSettings, ClientSettings])
def test_every_setting_has_a_flag_and_a_range(kind: type[Settings]) -> None:
    """Every field of the product's settings has a description, and each number a range."""
    for name, field in kind.model_fields.items():
        assert field.description, name
        if field.annotation in (int, float):
            assert len(field.metadata) >= 1, name


def all_commands(
    name: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield a command and, by their words, those below it."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, command in sorted(dict(action.choices).items()):
                yield from all_commands(word if name == "pserver" else f"{name} {word}", command)


def all_options() -> Iterator[str]:
    """Yield each command's flags with their choices and whether they are needed."""
    for name, command in all_commands("pserver", make_parser()):
        for action in command._actions:
            if action.option_strings:
                value = f" {action.metavar or action.dest.upper()}" if action.nargs != 0 else ""
                needed = " (required)" if action.required else ""
                yield f"{name} {' '.join(action.option_strings)}{value}{needed}"


def test_no_option_comes_or_goes_unseen() -> None:
    """Every flag of every command stands in the golden file, and nothing else does."""
    text = "\n".join(all_options()) + "\n"
    if os.environ.get(REGENERATE) == "1":
        GOLDEN.write_text(text, encoding="utf-8")

    assert text == GOLDEN.read_text(encoding="utf-8"), f"set {REGENERATE}=1 to rewrite it"


def test_flags_are_named_like_their_fields() -> None:
    """A field's flag is its name with dashes."""
    assert flag_of("metrics_bind") == "--metrics-bind"


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("2e9", 2 * 10**9), ("2_000_000", 2_000_000), ("1.5e3", 1500), ("0", 0), ("-1", -1)],
)
def test_whole_numbers_are_read_in_every_form(text: str, number: int) -> None:
    """Digits, underscores and powers of ten give the same exact number."""
    assert whole_number(text) == number


@pytest.mark.parametrize(
    "text", ["", "x", "1.5", "1e-1", "nan", "inf", "1e19", "1e999999999", "0x10"]
)
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    """Fractions, words and what nobody could mean are refused with what came."""
    with pytest.raises(argparse.ArgumentTypeError, match="must be a whole number such as 2e9"):
        whole_number(text)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("0", 0),
        ("007", 7),
        ("18446744073709551615", 2**64 - 1),
        ("0xFFFFFFFFFFFFFFFF", 2**64 - 1),
        ("-1", 2**64 - 1),
        ("-0x1", 2**64 - 1),
        ("-9223372036854775808", 2**63),
    ],
)
def test_keys_are_read_in_decimal_and_hex(text: str, key: int) -> None:
    """A key is any 64 bits; a negative one is taken bit for bit, also where it stands alone."""
    parser = CommandParser(prog="sample")
    parser.add_argument("--key", type=key_number)

    assert key_number(text) == key
    assert parser.parse_args(["--key", text]).key == key


@pytest.mark.parametrize(
    "text", ["", "x", "0x", "1.0", "1e3", "18446744073709551616", "-9223372036854775809"]
)
def test_what_is_no_key_is_refused(text: str) -> None:
    """Words, fractions and numbers of more than 64 bits are refused with the range."""
    with pytest.raises(argparse.ArgumentTypeError, match=r"in \[-2\^63, 2\^64 - 1\], got"):
        key_number(text)
