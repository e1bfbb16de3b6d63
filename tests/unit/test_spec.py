"""What ``spec`` promises: a spec that cannot work is refused with field, range and value."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.errors import ConfigError
from pserver.spec import DIM_MAX, ROWS_MAX, Rule, TableSpec, parse_rule

SPEC = TableSpec(name="ads", dim=4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": 0}, r"table 'ads': dim must be an integer in \[1, 4096\], got 0"),
        ({"dim": DIM_MAX + 1}, r"dim must be an integer in \[1, 4096\], got 4097"),
        ({"dim": 4.0}, r"dim must be an integer in \[1, 4096\], got 4.0"),
        ({"dim": "4"}, r"dim must be an integer in \[1, 4096\], got '4'"),
        ({"seed": -1}, r"seed must be an integer in \[0, 18446744073709551615\], got -1"),
        ({"seed": 2**64}, r"seed must be an integer in .*, got 18446744073709551616"),
        ({"capacity_max": 0}, r"capacity_max must be an integer in \[1, 2147483647\], got 0"),
        ({"capacity_max": 2**31}, r"capacity_max must be an integer in .*, got 2147483648"),
        ({"on_nan": "zeros"}, "on_nan: unknown value 'zeros'; did you mean 'zero'"),
        ({"on_nan": ""}, "on_nan: unknown value ''; valid: fail, reject, zero"),
        ({"unknown_reads": "zero"}, "unknown_reads: unknown value 'zero'; did you mean 'zeros'"),
        ({"row_dtype": "float8"}, r"row_dtype: unknown value 'float8'; did you mean 'float32'\?"),
        ({"storage": "fil"}, r"table 'ads': storage: unknown value 'fil'; did you mean 'file'\?"),
    ],
)
def test_a_spec_is_refused_when_a_field_is_out_of_range(
    change: dict[str, object], message: str
) -> None:
    """The error names table, field, range and what came."""
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(SPEC, **change)  # type: ignore[arg-type] # of wrong types on purpose


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", ".a", "ä", "a/b", "a" * 65, "a\n", "a'b"])
def test_a_name_is_refused_when_it_has_other_characters(name: str) -> None:
    """The error says what a name may be and shows what came."""
    with pytest.raises(ConfigError, match="1 to 64 letters, digits or _") as caught:
        TableSpec(name=name, dim=1)

    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("name", ["a", "0", "A.b-c_9", "x" * 64])
def test_a_name_is_accepted_when_it_keeps_the_rule(name: str) -> None:
    """Letters, digits, and _ . - after the first, up to 64."""
    assert TableSpec(name=name, dim=1).name == name


def test_a_field_is_accepted_when_it_is_a_bound() -> None:
    """Both ends of each range are inside."""
    TableSpec(name="a", dim=1, seed=0, capacity_max=1)
    TableSpec(name="a", dim=DIM_MAX, seed=2**64 - 1, capacity_max=ROWS_MAX)


def test_every_field_is_in_the_difference_when_all_differ() -> None:
    """No field of a spec can differ unseen."""
    other = TableSpec(
        name="b",
        dim=5,
        optimizer="sgd",
        initializer="zeros",
        seed=1,
        capacity_max=7,
        accessor="ctr",
        embedx_optimizer="sgd",
        admission="count:n=2",
        on_nan="zero",
        unknown_reads="zeros",
        ttl_days=7,
        evict="lru:rows=5",
        row_dtype="float16",
        storage="file",
    )

    difference = SPEC.difference(other)

    named = [part.split(":")[0] for part in difference.split("; ")]
    assert named == [field.name for field in dataclasses.fields(TableSpec)]
    assert "dim: 4 against 5" in difference
    assert SPEC.difference(dataclasses.replace(SPEC)) == ""


def test_a_spec_cannot_be_changed_when_it_was_made() -> None:
    """It is frozen, and can be a key of a dict."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        SPEC.dim = 5  # type: ignore[misc] # that is the point

    assert {SPEC: 1}[TableSpec(name="ads", dim=4)] == 1


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("sgd", Rule("sgd", {})),
        ("sgd:lr=1", Rule("sgd", {"lr": "1"})),
        (" adam : lr = 1e-3 , eps = 0.1 ", Rule("adam", {"lr": "1e-3", "eps": "0.1"})),
        ("x:a=b=c", Rule("x", {"a": "b=c"})),
    ],
)
def test_a_rule_is_read_when_it_has_the_form(text: str, rule: Rule) -> None:
    """Blanks around names and values do not count."""
    assert parse_rule(text, where="x") == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"--optimizer: must begin with a rule's name, got ''"),
        (":lr=1", r"must begin with a rule's name, got ':lr=1'"),
        ("sgd:", r"must look like name:option=value,option=value, got 'sgd:'"),
        ("sgd:lr", r"must look like .* got 'sgd:lr'"),
        ("sgd:lr=", r"must look like .* got 'sgd:lr='"),
        ("sgd:=1", r"must look like .* got 'sgd:=1'"),
        ("sgd:lr=1,", r"must look like .* got 'sgd:lr=1,'"),
        ("sgd:lr=1,lr=2", r"--optimizer: option 'lr' is given twice in 'sgd:lr=1,lr=2'"),
    ],
)
def test_a_rule_is_refused_when_it_has_another_form(text: str, message: str) -> None:
    """The error says where it stood, what form it must have and what came."""
    with pytest.raises(ConfigError, match=message):
        parse_rule(text, where="--optimizer")


@given(st.text(max_size=40))
def test_only_config_errors_come_when_a_rule_is_any_text(text: str) -> None:
    """Any text is a rule or refused, never another exception."""
    try:
        rule = parse_rule(text, where="x")
    except ConfigError:
        return

    assert rule.name == rule.name.strip() != ""
