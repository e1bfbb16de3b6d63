"""What ``table.initializer`` promises about rules as text; the draws are tested in ``kernel``."""

import pytest

from pserver.errors import ConfigError
from pserver.kernel import initializer as kernel
from pserver.table.initializer import KINDS, make_initializer, table_seed


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("zeros", "zeros"),
        ("constant", "constant:value=0.0"),
        ("uniform", "uniform:low=-0.01,high=0.01"),
        ("uniform:high=.5", "uniform:low=-0.01,high=0.5"),
        ("normal:std=1e-4", "normal:mean=0.0,std=0.0001"),
        (" truncated_normal : std = 2 , mean = 1 ", "truncated_normal:mean=1.0,std=2.0"),
    ],
)
def test_every_option_is_spelled_out_when_a_rule_is_bound(text: str, full: str) -> None:
    """The full text has every option, in the rule's order, and means the same again."""
    rule = make_initializer(text, table="t", seed=0)

    assert rule.text == full
    assert make_initializer(full, table="t", seed=0).text == full


def test_options_reach_the_kernel_when_they_are_written() -> None:
    """Kind and numbers stand where the kernel looks for them."""
    rule = make_initializer("uniform:low=-2,high=3", table="t", seed=0)

    assert rule.kind == kernel.UNIFORM
    assert rule.options.tolist() == [-2.0, 3.0]
    assert make_initializer("constant:value=4", table="t", seed=0).options[0] == 4.0


def test_every_kind_is_bound_when_named_alone() -> None:
    """Each rule works with its defaults."""
    for name, (kind, _) in KINDS.items():
        assert make_initializer(name, table="t", seed=0).kind == kind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unifrom", r"x: unknown rule 'unifrom'; did you mean 'uniform'\?"),
        ("uniform:hihg=1", r"x: uniform has no option 'hihg' .*did you mean 'high'\?"),
        ("zeros:value=1", r"x: zeros has no option 'value'"),
        ("normal:std=-1", r"x: normal:std must be a number in \[0, 1e\+06\], got '-1'"),
        ("normal:std=nan", r"x: normal:std must be a number in \[0, 1e\+06\], got 'nan'"),
        ("uniform:low=1,high=0", r"x: uniform:low=1.0,high=0.0: low must not be over high"),
        ("uniform:low=1", r"low must not be over high"),
    ],
)
def test_a_rule_is_refused_when_it_cannot_work(text: str, message: str) -> None:
    """The error says where, what must hold, what came and the nearest valid name."""
    with pytest.raises(ConfigError, match=message):
        make_initializer(text, table="t", seed=0, where="x")


def test_the_seed_of_a_table_differs_when_name_or_seed_differs() -> None:
    """Name and seed are both part of it; the value itself is part of the format."""
    seeds = {int(table_seed(name, seed)) for name in ("a", "b") for seed in (0, 1, 2**64 - 1)}

    assert len(seeds) == 6
    assert int(table_seed("ads", 7)) == 0x1412F86AB5F24CBA
