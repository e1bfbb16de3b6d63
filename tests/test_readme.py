"""The README's code runs as it stands."""

import re
from pathlib import Path

import pserver

_README = Path(__file__).resolve().parent.parent / "README.md"


def _block(name: str) -> str:
    """Return the code block that follows a mark in the README."""
    found = re.search(
        rf"<!-- test: {name} -->\n```python\n(.*?)```", _README.read_text(encoding="utf-8"), re.S
    )
    assert found, f"README.md: no code block marked <!-- test: {name} -->"
    return found.group(1)


def test_the_torch_example_learns_when_run_on_embedded_shards() -> None:
    """The example with EmbeddingBag runs, in under 25 lines, and its loss falls."""
    code = _block("api")
    assert len([line for line in code.splitlines() if line.strip()]) < 25
    local = re.sub(r"pserver\.connect\([^)]*\)", "pserver.embedded(2)", code)
    assert local != code
    names: dict[str, object] = {}

    exec(compile(local, "README.md", "exec"), names)

    loss = names["loss"]
    assert float(loss.detach()) < 0.5, "the loss begins at about 0.69"  # type: ignore[attr-defined]


def test_the_example_with_a_mode_learns_when_run_on_embedded_shards() -> None:
    """The trainer of a group, its dense part on the servers: its loss falls, and it leaves."""
    local = re.sub(r"pserver\.connect\([^)]*\)", "pserver.embedded(2)", _block("modes"))
    names: dict[str, object] = {}

    exec(compile(local, "README.md", "exec"), names)

    loss = names["loss"]
    assert float(loss.detach()) < 0.5, "the loss begins at about 0.69"  # type: ignore[attr-defined]


def test_the_numpy_example_gives_what_it_says() -> None:
    """The example without torch runs, and the shapes are those of its comments."""
    names: dict[str, object] = {}

    exec(compile(_block("numpy"), "README.md", "exec"), names)

    assert names["weights"].shape == (3, 4)  # type: ignore[attr-defined]
    assert names["same"].shape == (2, 4)  # type: ignore[attr-defined]
    assert isinstance(names["client"], pserver.Client)
