"""What ``errors`` promises: the tree that its docstring draws, and hints for unknown names."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pserver
from pserver import errors
from pserver.errors import PserverError, nearest

RETRIED = {
    "NotYetError",
    "TransientError",
    "UnavailableError",
    "StandbyError",
    "SupersededError",
    "OverloadedError",
    "StorageError",
}


def tree(kind: type[PserverError] = PserverError, depth: int = 0) -> list[tuple[int, str]]:
    """Return (depth, name) of a class and all below it, in order of definition."""
    found = [(depth, kind.__name__)]
    for below in kind.__subclasses__():
        found += tree(below, depth + 1)
    return found


def test_the_tree_is_the_drawn_one_when_walked() -> None:
    """Every class stands in the module's drawing, in its place, and nothing else does."""
    drawn = [
        (re.search(r"\w", line).start() // 4 - 1, re.findall(r"\w+Error", line)[0])  # type: ignore[union-attr] # each has a word
        for line in (errors.__doc__ or "").splitlines()
        if re.match(r"[\s│├└─]*\w+Error\b", line)
    ]

    own = [(depth, name) for depth, name in tree() if hasattr(errors, name)]

    assert sorted(drawn) == sorted(own)
    assert len(drawn) == len({name for _, name in drawn})


def test_every_error_is_public_when_a_caller_may_see_it() -> None:
    """The package exports each class, and each says who is at fault."""
    for _, name in tree():
        kind = getattr(errors, name)

        assert getattr(pserver, name) is kind
        assert kind.__doc__.endswith(".")


def test_only_transient_errors_are_tried_again_when_a_call_fails() -> None:
    """The caller's mistakes are no transient errors, and the other way round."""
    names = {
        name for _, name in tree() if issubclass(getattr(errors, name), pserver.TransientError)
    }

    assert names == RETRIED
    assert not issubclass(pserver.TransientError, pserver.RequestError)


@pytest.mark.parametrize(
    ("name", "valid", "hint"),
    [
        ("sdg", ["sgd", "adam"], "did you mean 'sgd'? Valid: adam, sgd"),
        ("momentum", ["sgd", "adam"], "valid: adam, sgd"),
        ("", ["b", "a"], "valid: a, b"),
        ("x", [], "valid: "),
    ],
)
def test_the_hint_lists_what_is_valid_when_a_name_is_unknown(
    name: str, valid: list[str], hint: str
) -> None:
    """The nearest name comes first if one is near, then all of them in order."""
    assert nearest(name, valid) == hint


@given(valid=st.lists(st.text("abcde", min_size=3, max_size=8), min_size=1), data=st.data())
def test_a_known_name_is_its_own_nearest_when_asked_for(
    valid: list[str], data: st.DataObject
) -> None:
    """A name that is valid is never corrected to another one."""
    name = data.draw(st.sampled_from(valid))

    assert nearest(name, valid).startswith(f"did you mean {name!r}?")
