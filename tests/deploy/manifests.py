"""What the files of ``deploy/`` say, for the tests that hold them to the product.

What always holds: settings are read by the product's own parser and ``resolve``, so a flag, a key or a
variable that the product does not know is an error here as it would be on a cluster.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

import pserver.cli.main
import trainer.cli.main
from pserver.config import ServeSettings
from pserver.options import resolve
from trainer.config import RunSettings

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = ("dev", "production")
GOLDEN_METRICS = tuple(
    ROOT / "tests" / "golden" / name for name in ("metrics.txt", "metrics_trainer.txt")
)
PRODUCT_METRIC = re.compile(r"\b(?:pserver|trainer)_\w+")

Object: TypeAlias = dict[str, Any]


def load(name: str) -> Any:
    """Return what a YAML file of ``deploy/`` holds."""
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def metric_labels() -> dict[str, set[str]]:
    """Return the names that the pages of servers and trainers promise, with the labels of each."""
    lines = [line for file in GOLDEN_METRICS for line in file.read_text("utf-8").splitlines()]
    return {name: set(",".join(rest).split(",")) for name, _, *rest in map(str.split, lines)}


def metric_names() -> set[str]:
    """Return the names that the product's pages promise."""
    return set(metric_labels())


def serve_settings(
    words: Sequence[str], *, file: Path | None = None, environ: Mapping[str, str] | None = None
) -> ServeSettings:
    """Return the settings of ``pserver WORDS``."""
    given = vars(pserver.cli.main.make_parser().parse_args(words))
    assert given["command"] == "serve"
    settings, _ = resolve(
        ServeSettings,
        given,
        environ=environ or {},
        prefix="PSERVER_",
        file=None if file is None else str(file),
        section="serve",
    )
    return settings


def run_settings(
    words: Sequence[str], *, file: Path | None = None, environ: Mapping[str, str] | None = None
) -> RunSettings:
    """Return the settings of ``trainer WORDS``."""
    given = vars(trainer.cli.main.make_parser().parse_args(words))
    assert given["command"] == "run"
    for name in environ or {}:
        assert name.removeprefix("TRAINER_").lower() in RunSettings.model_fields, name
    settings, _ = resolve(
        RunSettings,
        given,
        environ=environ or {},
        prefix="TRAINER_",
        file=None if file is None else str(file),
        section="run",
    )
    return settings


def rendered(name: str, *, of: str = "overlays") -> list[Object]:
    """Return the objects of an overlay, or of an example, as ``kubectl`` sends them; skip where it cannot."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    command = ["kubectl", "kustomize"]
    able = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    if able.returncode or "kustomization" not in able.stdout:
        pytest.skip("needs a kubectl that knows kustomize")
    folder = DEPLOY / "kubernetes" / of / name
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def one(objects: list[Object], kind: str) -> Object:
    """Return the one object of a kind."""
    (found,) = [item for item in objects if item["kind"] == kind]
    return found


def pod_of(workload: Object) -> Object:
    """Return the pod's spec of a StatefulSet or a Job."""
    spec: Object = workload["spec"]["template"]["spec"]
    return spec


def port_of(address: str | None) -> int:
    """Return the port of HOST:PORT."""
    assert address is not None
    return int(address.rsplit(":", maxsplit=1)[1])


def docker_steps(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the stage, instruction and arguments of each step of a Dockerfile."""
    stage = ""
    for step in re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", text)).splitlines():
        if not step.strip():
            continue
        word, arguments = step.split(maxsplit=1)
        if word == "FROM":
            stage = arguments.split()[-1]
        yield stage, word, " ".join(arguments.split())
