"""What ``table.optimizer`` promises of a row's state: which floats are which part, by name."""

import dataclasses
from itertools import product

import pytest

from pserver.table.optimizer import RULES, make_optimizer
from pserver.table.optimizer_options import Choice

FORMS: list[tuple[str, str]] = [
    (name, ",".join(f"{option}={word}" for option, word in words))
    for name, rule in RULES.items()
    for words in product(
        *(
            [(option, word) for word in kind.words]
            for option, kind in rule.options.items()
            if isinstance(kind, Choice)
        )
    )
]
OTHERS = {"adagrad": ",initial=1", "rmsprop": ",momentum=0.5"}


@pytest.mark.parametrize(("name", "words"), FORMS)
@pytest.mark.parametrize("dim", [1, 5])
def test_parts_add_up_to_the_state_in_every_form(name: str, words: str, dim: int) -> None:
    """Each float of state belongs to one part, and each name stands in what the rule says of it."""
    for more in ("", OTHERS.get(name, "")):
        options = f"{words}{more}".strip(",")
        if "after" in options and "initial" not in options:
            continue  # which is refused
        rule = make_optimizer(f"{name}:{options}" if options else name, dim=dim)

        assert sum(rule.parts.values()) == rule.state_dim
        assert all(count in (1, dim) for count in rule.parts.values())
        assert all(part in RULES[name].state for part in rule.parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("sgd", {}),
        ("adagrad", {"G": 3}),
        ("adagrad:state=row", {"G": 1}),
        ("adagrad_decay", {"decays so far": 1, "G": 3}),
        ("adam", {"m": 3, "v": 3, "t": 1}),
        ("adam:step=table", {"m": 3, "v": 3}),
        ("amsgrad", {"m": 3, "v": 3, "x": 3, "t": 1}),
        ("rmsprop:momentum=0.5", {"n": 3, "b": 3}),
        ("shared_adam", {"m": 1, "v": 1, "beta1^t": 1, "beta2^t": 1}),
    ],
)
def test_parts_stand_in_the_row_in_this_order(text: str, parts: dict[str, int]) -> None:
    """The order and sizes of parts are what the kernels' docstrings say."""
    assert list(make_optimizer(text, dim=3).parts.items()) == list(parts.items())


def test_state_is_one_part_when_a_rule_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule without parts has one, named by its words; no state is no part."""
    for name in ("adam", "sgd"):
        monkeypatch.setitem(RULES, f"my_{name}", dataclasses.replace(RULES[name], parts=None))

    assert make_optimizer("my_adam", dim=3).parts == {"m, v, t": 7}
    assert make_optimizer("my_sgd", dim=3).parts == {}
