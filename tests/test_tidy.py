"""The style rules that a linter does not know, each a function from text to problems.

A problem says file:line, what must hold and what to do. The first half states and applies the
rules; the second half shows each rule a small text that breaks it, so that it can fail.
"""

import ast
import contextlib
import importlib
import io
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pserver", "trainer", "collective")
PRODUCT = (*PACKAGES, "bench")
FOLDERS = (*PRODUCT, "tests", "proto", "deploy", ".ci")
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60

# A ratchet: "path" or "path::function" that is too long, with its length; it may only shrink.
TOO_LONG: dict[str, int] = {}

# Who may read the process's environment or arguments beside the packages cli, and why.
PROCESS_READERS: dict[str, str] = {
    "bench/__main__.py": "it is a command line",
    "bench/load.py": "it starts its clients with its own arguments",
    "bench/ranks.py": "its ranks are processes that it starts with arguments of their own",
    "bench/start.py": "its servers get a compile cache of their own",
    "trainer/launch/ray_host.py": "it runs on a machine that has no command line of ours",
    "trainer/launch/leash.py": "it is a command line, for those who start processes",
    "bench/torch_rpc.py": "it is a process of its own; torch.distributed reads the environment",
}

BANNED_NAMES = {"fid": "key", "feasign": "key", "worker_id": "rank, or trainer"}
CHANGELOG_KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
BAD_LINES = [
    (re.compile(r"#.*\bTODO\b(?!\(#\d+\))"), "a note names its issue; write TODO(#12)"),
    (re.compile(r"\bFIXM[E]\b"), "left over; mend it, or open an issue and write TODO(#12)"),
    (re.compile(r"(?<![\w.])/(?:work|root|Users)/"), "one machine's path; write a relative one"),
]
RELEASE = re.compile(r"## \[(?:Unreleased\]|\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d)")
NAMED_FILE = re.compile(rf"(?<![\w/])(?:{'|'.join(PRODUCT)})/[\w/]+\.py\b")

Rule = Callable[[str, str], Iterator[str]]


def too_long(path: str, text: str) -> Iterator[str]:
    """Yield the file and the functions that are longer than the rule or their ratchet says."""
    yield from _over(path, 1, path, len(text.splitlines()), FILE_LINES_MAX)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            name = f"{path}::{node.name}"
            yield from _over(path, node.lineno, name, lines, FUNCTION_LINES_MAX)


def _over(path: str, line: int, name: str, lines: int, limit: int) -> Iterator[str]:
    allowed = TOO_LONG.get(name, limit)
    if lines > allowed:
        yield f"{path}:{line}: {name} has {lines} lines, at most {allowed}; split it by noun"
    elif name in TOO_LONG and lines < allowed:
        yield f"{path}:{line}: {name} shrank to {lines} lines; lower its ratchet, or drop it"


def no_docstring(path: str, text: str) -> Iterator[str]:
    """Yield the file if it does not open with a docstring."""
    if not ast.get_docstring(ast.parse(text)):
        yield f"{path}:1: no module docstring; say what the room is for and what always holds"


def bad_lines(path: str, text: str) -> Iterator[str]:
    """Yield lines with notes that nobody can follow up, or paths of one machine."""
    for line, content in enumerate(text.splitlines(), 1):
        yield from (f"{path}:{line}: {advice}" for bad, advice in BAD_LINES if bad.search(content))


def process_reads(path: str, text: str) -> Iterator[str]:
    """Yield reads of the environment and of the arguments outside the command line."""
    if Path(path).parent.name == "cli" or path in PROCESS_READERS:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = [f"{node.value.id}.{node.attr}"]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in {"os.environ", "os.getenv", "sys.argv"}.intersection(names):
            yield f"{path}:{node.lineno}: {name} belongs in a package cli; take the value as an argument"


def loose_kernels(path: str, text: str) -> Iterator[str]:
    """Yield uses of njit that keep the GIL or start numba's own threads."""
    tree = ast.parse(text)
    calls = {id(n.func): n for n in ast.walk(tree) if isinstance(n, ast.Call)}
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
        if name != "njit" or not isinstance(node, ast.Name | ast.Attribute):
            continue
        keywords = calls[id(node)].keywords if id(node) in calls else []
        given = {k.arg: k.value.value for k in keywords if isinstance(k.value, ast.Constant)}
        if given.get("nogil") is not True:
            yield f"{path}:{node.lineno}: njit must say nogil=True; the event loop waits otherwise"
        if any(k.arg == "parallel" for k in keywords):
            yield f"{path}:{node.lineno}: no parallel= here; parallelism is one process a shard"


def banned_names(path: str, text: str) -> Iterator[str]:
    """Yield identifiers for which the glossary has another word."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and token.string in BANNED_NAMES:
            better = BANNED_NAMES[token.string]
            yield f"{path}:{token.start[0]}: the word for {token.string} is {better}"


def changelog_form(path: str, text: str) -> Iterator[str]:
    """Yield headings that Keep a Changelog does not know."""
    if "## [Unreleased]" not in text.splitlines():
        yield f"{path}:1: no '## [Unreleased]' heading; add it on top"
    for line, content in enumerate(text.splitlines(), 1):
        if content.startswith("## ") and not RELEASE.fullmatch(content):
            yield f"{path}:{line}: write '## [1.2.3] - 2026-01-31', got {content!r}"
        if content.startswith("### ") and content[4:] not in CHANGELOG_KINDS:
            yield f"{path}:{line}: one of {sorted(CHANGELOG_KINDS)}, got {content[4:]!r}"


def file_map(path: str, text: str) -> Iterator[str]:
    """Yield files of the product that the text does not name, names without a file, and doubled rows."""
    named = set(NAMED_FILE.findall(text))
    for missing in sorted(set(PRODUCT_PYTHON) - named):
        yield f"{path}:1: does not name {missing}; add it, with one phrase"
    for gone in sorted(named - set(PRODUCT_PYTHON)):
        yield f"{path}:1: names {gone}, which does not exist; drop it"
    heads = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    for file, times in Counter(NAMED_FILE.findall("".join(heads))).items():
        if times > 1:
            yield f"{path}:1: has {times} rows of the map for {file}; keep one"


def _texts() -> dict[str, str]:
    """Return what stands in each text file, by its path; generated and binary ones left out."""
    texts: dict[str, str] = {}
    files = [file for file in ROOT.iterdir() if file.name != ".git"]
    for file in [*files, *(f for folder in FOLDERS for f in (ROOT / folder).rglob("*"))]:
        path = file.relative_to(ROOT).as_posix()
        if file.is_file() and "__pycache__" not in path and not path.startswith("pserver/v1/"):
            with contextlib.suppress(UnicodeDecodeError):
                texts[path] = file.read_text(encoding="utf-8")
    return texts


TEXTS = _texts()
PYTHON = {path: text for path, text in TEXTS.items() if path.endswith(".py")}
PRODUCT_PYTHON = {p: text for p, text in PYTHON.items() if p.split("/")[0] in PRODUCT}
CHANGELOG = {"CHANGELOG.md": TEXTS["CHANGELOG.md"]}
MAP = {"ARCHITECTURE.md": TEXTS.get("ARCHITECTURE.md", "")}
CASES: list[tuple[Rule, dict[str, str], str, str]] = [  # rule, where, a bad text, a good one
    (too_long, PYTHON, "x = 1\n" * 401, "x = 1\n" * 400),
    (too_long, PYTHON, "def f():\n" + "    x = 1\n" * 60, "def f():\n" + "    x = 1\n" * 59),
    (no_docstring, PYTHON, "x = 1", '"""Doc."""'),
    (bad_lines, TEXTS, "# TO" + "DO: later", "# TODO(#7): later"),
    (bad_lines, TEXTS, "# FIX" + "ME", "# fixed"),
    (bad_lines, TEXTS, "open('/root" + "/x')", "open('shared/root/x')"),
    (process_reads, PRODUCT_PYTHON, "os.environ['X']", "environ['X']"),
    (process_reads, PRODUCT_PYTHON, "from sys import argv", "from sys import stdout"),
    (loose_kernels, PYTHON, "@njit\ndef f(): pass", "@njit(nogil=True)\ndef f(): pass"),
    (loose_kernels, PYTHON, "numba.njit(cache=True)(f)", "numba.njit(nogil=True)(f)"),
    (loose_kernels, PYTHON, "njit(f, nogil=True, parallel=True)", "prange(3)"),
    (banned_names, PYTHON, "fid = 1", "fidelity = 'fid'  # fid"),
    (changelog_form, CHANGELOG, "# Changelog", "## [Unreleased]\n## [1.0.0] - 2026-01-31"),
    (changelog_form, CHANGELOG, "## [Unreleased]\n### New", "## [Unreleased]\n### Added"),
    (changelog_form, CHANGELOG, "## [Unreleased]\n## 1.0", "## [Unreleased]\n### Fixed"),
    (file_map, MAP, "nothing", " ".join(PRODUCT_PYTHON)),
    (file_map, MAP, " ".join([*PRODUCT_PYTHON, "pserver/gone.py"]), " ".join(PRODUCT_PYTHON)),
    (
        file_map,
        MAP,
        " ".join(PRODUCT_PYTHON) + 2 * "\n| `pserver/cli/main.py` | x |",
        "| `pserver/cli/main.py` |" + " ".join(PRODUCT_PYTHON),
    ),
]


@pytest.mark.parametrize(("rule", "bad", "good"), [(r, bad, good) for r, _, bad, good in CASES])
def test_a_rule_finds_what_breaks_it_and_nothing_else(rule: Rule, bad: str, good: str) -> None:
    """Each rule refuses a text that breaks it, and accepts one that just keeps it."""
    assert all(problem.startswith("x.py:") for problem in rule("x.py", bad))
    assert list(rule("x.py", bad))
    assert not list(rule("x.py", good))


@pytest.mark.parametrize(("rule", "texts"), {r: texts for r, texts, _, _ in CASES}.items())
def test_the_code_base_keeps_the_rule(rule: Rule, texts: dict[str, str]) -> None:
    """No file of the code base breaks a rule."""
    problems = [problem for path, text in texts.items() for problem in rule(path, text)]

    assert not problems, "\n" + "\n".join(problems)


def test_every_exception_names_a_file_that_exists() -> None:
    """No exception to a rule outlives its file."""
    assert {name.split("::")[0] for name in [*TOO_LONG, *PROCESS_READERS]} <= set(PYTHON)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_resolves(package: str) -> None:
    """Each name in a package's ``__all__`` is there, once."""
    module = importlib.import_module(package)

    assert len(set(module.__all__)) == len(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
