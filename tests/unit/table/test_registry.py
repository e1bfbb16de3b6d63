"""What ``table.registry`` promises: a name stands for one spec."""

import dataclasses

import pytest

from pserver.errors import ConfigError, SpecMismatchError, UnknownTableError
from pserver.spec import DENSE_LENGTH_MAX, TABLES_MAX, DenseSpec, TableSpec
from pserver.table.dense import spelled_out_dense
from pserver.table.optimizer_rules import RULES
from pserver.table.registry import Registry, spelled_out

SPEC = TableSpec(name="ads", dim=4, optimizer="adagrad:lr=0.05", capacity_max=16)


def test_the_table_is_the_same_when_the_spec_is_equal() -> None:
    """Creating again returns the table that is there."""
    registry = Registry()

    table = registry.create(SPEC)

    assert registry.create(SPEC) is table
    assert registry.get("ads") is table
    assert list(registry) == [table]


@pytest.mark.parametrize("rule", RULES)
def test_b3_the_rule_that_was_asked_for_is_in_force_on_tables_of_both_kinds(rule: str) -> None:
    """Sparse and dense, and with room for more than 2^32 bytes: it is taken, or refused with the reason."""
    sparse = TableSpec(name="ads", dim=64, optimizer=rule)
    dense = DenseSpec(name="top", length=DENSE_LENGTH_MAX, optimizer=rule)

    assert sparse.capacity_max * sparse.dim * 4 > 1 << 32
    assert spelled_out(sparse).optimizer.partition(":")[0] == rule
    if rule in ("lamb", "shared_adam", "group_adagrad"):
        with pytest.raises(ConfigError, match=f"{rule}:.* cannot step a dense table"):
            spelled_out_dense(dense)
    else:
        assert spelled_out_dense(dense).optimizer.partition(":")[0] == rule


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "adagrad"},
        {"optimizer": "adagrad:eps=1e-8,lr=.05"},
        {"optimizer": " adagrad: lr = 0.050, state = element"},
        {"initializer": "uniform"},
        {"initializer": "uniform:high=1e-2"},
    ],
)
def test_the_table_is_the_same_when_options_are_left_out(change: dict[str, str]) -> None:
    """Options in another order, spelling or left out for their default are the same spec."""
    registry = Registry()
    table = registry.create(SPEC)

    assert registry.create(dataclasses.replace(SPEC, **change)) is table  # type: ignore[arg-type] # all are text
    assert table.spec == spelled_out(SPEC)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"dim": 8}, "dim: 4 against 8"),
        ({"seed": 1}, "seed: 0 against 1"),
        ({"capacity_max": 32}, "capacity_max: 16 against 32"),
        ({"optimizer": "sgd"}, r"optimizer: adagrad:lr=0.05,eps=1e-08,.* against sgd:lr=0.05$"),
        ({"optimizer": "adagrad:lr=0.1"}, r"adagrad:lr=0.05,.* against adagrad:lr=0.1,"),
        ({"initializer": "zeros"}, r"initializer: uniform:low=-0.01,high=0.01 against zeros$"),
        ({"dim": 8, "seed": 1}, "dim: 4 against 8; seed: 0 against 1"),
    ],
)
def test_the_difference_is_shown_when_the_spec_is_another(
    change: dict[str, object], difference: str
) -> None:
    """Each field that differs is named, what exists before what was wanted; nothing changes."""
    registry = Registry()
    table = registry.create(SPEC)

    with pytest.raises(SpecMismatchError, match=rf"table 'ads' exists .*: .*{difference}"):
        registry.create(dataclasses.replace(SPEC, **change))  # type: ignore[arg-type] # of many types

    assert registry.get("ads") is table
    assert len(list(registry)) == 1


def test_the_nearest_name_is_shown_when_a_table_is_unknown() -> None:
    """The error names the table that was meant, and all that are there."""
    registry = Registry()
    with pytest.raises(UnknownTableError, match="no table 'ad'; this shard has no tables yet"):
        registry.get("ad")
    registry.create(SPEC)
    registry.create(dataclasses.replace(SPEC, name="users"))

    with pytest.raises(
        UnknownTableError, match=r"no table 'adz'; did you mean 'ads'\? Valid: ads, users"
    ):
        registry.get("adz")


def test_a_table_is_refused_when_there_are_too_many() -> None:
    """The limit is named; a table that exists can still be asked for."""
    registry = Registry()
    for i in range(TABLES_MAX):
        registry.create(dataclasses.replace(SPEC, name=f"t{i}", capacity_max=1))

    with pytest.raises(ConfigError, match=f"at most {TABLES_MAX} tables"):
        registry.create(SPEC)

    assert registry.create(dataclasses.replace(SPEC, name="t7", capacity_max=1)).num_rows == 0
    assert len(list(registry)) == TABLES_MAX


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": "adagard"}, r"table 'ads': optimizer: unknown rule 'adagard'; did you mean"),
        ({"initializer": "zero"}, r"table 'ads': initializer: unknown rule 'zero'; did you mean"),
    ],
)
def test_no_table_is_made_when_a_rule_is_refused(change: dict[str, str], message: str) -> None:
    """The error names the table and the field, and the registry stays empty."""
    registry = Registry()

    with pytest.raises(ConfigError, match=message):
        registry.create(dataclasses.replace(SPEC, **change))  # type: ignore[arg-type] # all are text

    assert list(registry) == []
