"""The README's code runs as it stands, and what it says first is so."""

import re
import tomllib
from pathlib import Path

import pserver
from pserver.checkpoint.fit import ON_MISMATCH
from pserver.checkpoint.manifest import MANIFEST
from pserver.checkpoint.snapshot import CHUNK_BYTES
from pserver.table.eviction import make_eviction_rule

_README = Path(__file__).resolve().parent.parent / "README.md"


def _block(name: str) -> str:
    """Return the code block that follows a mark in the README."""
    found = re.search(
        rf"<!-- test: {name} -->\n```python\n(.*?)```", _README.read_text(encoding="utf-8"), re.S
    )
    assert found, f"README.md: no code block marked <!-- test: {name} -->"
    return found.group(1)


def test_k2_the_torch_example_learns_when_run_on_embedded_shards() -> None:
    """The example with EmbeddingBag runs, in under 25 lines, and its loss falls."""
    code = _block("api")
    assert len([line for line in code.splitlines() if line.strip()]) < 25
    local = re.sub(r"pserver\.connect\([^)]*\)", "pserver.embedded(2)", code)
    assert local != code
    names: dict[str, object] = {}

    exec(compile(local, "README.md", "exec"), names)

    loss = names["loss"]
    assert float(loss.detach()) < 0.5, "the loss begins at about 0.69"  # type: ignore[attr-defined]


def test_k2_the_example_with_a_mode_learns_when_run_on_embedded_shards() -> None:
    """The trainer of a group, its dense part on the servers: its loss falls, and it leaves."""
    local = re.sub(r"pserver\.connect\([^)]*\)", "pserver.embedded(2)", _block("modes"))
    names: dict[str, object] = {}

    exec(compile(local, "README.md", "exec"), names)

    loss = names["loss"]
    assert float(loss.detach()) < 0.5, "the loss begins at about 0.69"  # type: ignore[attr-defined]


def test_k2_the_numpy_example_gives_what_it_says() -> None:
    """The example without torch runs, and the shapes are those of its comments."""
    names: dict[str, object] = {}

    exec(compile(_block("numpy"), "README.md", "exec"), names)

    assert names["weights"].shape == (3, 4)  # type: ignore[attr-defined]
    assert names["same"].shape == (2, 4)  # type: ignore[attr-defined]
    assert isinstance(names["client"], pserver.Client)


def test_k4_the_first_questions_are_answered_as_the_product_does() -> None:
    """Platforms, number of files, another size, a full table: each answer names what there is."""
    project = tomllib.loads((_README.parent / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    _, _, behind = _README.read_text(encoding="utf-8").partition("Asked first:")
    answers = behind.partition("\n## ")[0].split("\n- ")[1:]

    assert [answer.partition("?*")[0].strip("*") for answer in answers] == [
        "Which platforms",
        "How many files does a checkpoint have",
        "What if I start another number of servers, or another dim",
        "What when a table is full",
    ]
    platforms, files, sizes, full = answers
    assert "3.11 to 3.13" in platforms
    assert project["requires-python"] == ">=3.11,<3.14"
    assert f"{CHUNK_BYTES >> 20} MiB" in files
    assert MANIFEST in files
    for word in ("pad", "reset-state"):
        assert word in sizes
        assert word in ON_MISMATCH
    assert pserver.TableFullError.__name__ in full
    assert make_eviction_rule("lru:rows=8", is_ctr=False).rows_max == 8
    assert pserver.ServeSettings(table_rows_max=8, on_full="evict").on_full == "evict"
