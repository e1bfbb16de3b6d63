"""What a release is made of installs and runs where nothing else is: one environment a role, both fresh.

Packages come from the index that pip is set up for, so this is a step of ``.ci/run`` and no default test: about
75 s on two free cores, most of it torch and compiling.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from pserver._version import __version__
from tests.deploy.manifests import DEPLOY, ROOT

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(importlib.util.find_spec("build") is None, reason="needs the extra dev"),
]
LIMIT_S = 900.0
PACKAGES = ("pserver", "trainer", "collective")
SESSION = Path(__file__).with_name("role_session.py")


def run(*words: str | Path, folder: Path) -> str:
    """Run a command as a stranger would, without this checkout on the path; return what it prints."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "NUMBA"))}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a wheel, built from the source distribution beside it as ``python -m build`` does."""
    out, source = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("source")
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in (*PACKAGES, "deploy", "proto", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=left_out)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, source)
    run(sys.executable, "-m", "build", "--outdir", out, source, folder=out)
    return out


class Fresh:
    """A new virtual environment."""

    def __init__(self, folder: Path) -> None:
        """Make it; the pip of this environment installs into it."""
        self.folder = folder
        venv.create(folder / "venv", with_pip=False)
        self._bin = folder / "venv" / "bin"

    def install(self, *what: str | Path) -> None:
        """Install the versions that are tested together; bytecode is made when it is needed."""
        pip = (sys.executable, "-m", "pip", "--quiet", "--python", self._bin / "python", "install")
        run(*pip, "--no-compile", "-c", ROOT / "constraints.txt", *what, folder=self.folder)

    def run(self, name: str, *words: str | Path) -> str:
        """Run a program of the environment."""
        return run(self._bin / name, *words, folder=self.folder)


def only(folder: Path, pattern: str) -> Path:
    """Return the one file of that form."""
    (found,) = folder.glob(pattern)
    return found


def test_a_wheel_has_what_the_packages_need(built: Path) -> None:
    """Types are declared for all three packages, the page is there, and nothing but the packages."""
    with zipfile.ZipFile(only(built, "*.whl")) as wheel:
        names = wheel.namelist()

    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert "pserver/cli/web.html" in names
    assert {name.split("/")[0] for name in names} == {*PACKAGES, f"pserver-{__version__}.dist-info"}
    assert not [name for name in names if "__pycache__" in name]


def test_a_source_distribution_can_be_deployed(built: Path) -> None:
    """It has the schema, what is deployed and the tested versions, and no half of the tests."""
    with tarfile.open(only(built, "*.tar.gz")) as source:
        names = {name.partition("/")[2] for name in source.getnames()}

    assert {"constraints.txt", "CHANGELOG.md", "LICENSE", "deploy/Dockerfile"} <= names
    assert "proto/pserver/v1/pserver.proto" in names
    assert not [name for name in names if name.startswith("tests")]


def test_the_pserver_role_runs_where_torch_is_not(built: Path, tmp_path: Path) -> None:
    """The role's list and the wheel, as in the image: serve, status, pull, push, save, restore."""
    fresh = Fresh(tmp_path)
    fresh.install("-r", DEPLOY / "requirements-pserver.txt")
    fresh.install("--no-deps", only(built, "*.whl"))

    told = json.loads(fresh.run("python", SESSION, tmp_path))

    assert told.pop("from").startswith(str(tmp_path))
    assert told == {
        "version": __version__,
        "has_torch": False,
        "states": ["ready"],
        "pushed": [[-0.5, -0.5]] * 3,
        "restored": [[-0.5, -0.5]] * 3,
    }


def test_everything_runs_from_the_source_distribution(built: Path, tmp_path: Path) -> None:
    """As the README says, but from the release: a trainer trains through embedded shards and scores."""
    fresh = Fresh(tmp_path)
    fresh.install(only(built, "*.tar.gz"))

    lines = fresh.run(
        *("trainer", "run", "--rows=4096", "--batch-size=512", "--eval-last=1024", "--json")
    ).splitlines()

    told = json.loads(lines[-1])
    assert (told["samples"], told["eval_samples"]) == (4096, 1024)
    assert 0 < told["auc"] <= 1
    where = fresh.run("python", "-c", "import trainer, collective; print(trainer.__file__)")
    assert where.startswith(str(tmp_path))
