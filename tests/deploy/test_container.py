"""What ``deploy/Dockerfile`` and ``deploy/compose.yaml`` say is what the product does.

No image is built here: files are read, and their commands go through the product's own parsers.
"""

import json
import re
import subprocess
import sys
import tomllib
from typing import Any

import pytest

from pserver.server.secure import check_binds
from tests.deploy.manifests import (
    DEPLOY,
    ROOT,
    docker_steps,
    load,
    port_of,
    run_settings,
    serve_settings,
)

STEPS = list(docker_steps((DEPLOY / "Dockerfile").read_text(encoding="utf-8")))
ROLES = ("pserver", "trainer")
SERVICES: dict[str, dict[str, Any]] = load("compose.yaml")["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}


def of(stage: str, word: str) -> list[str]:
    """Return the arguments of one instruction in one stage."""
    return [arguments for where, what, arguments in STEPS if (where, what) == (stage, word)]


def listed(text: str) -> list[str]:
    """Return the requirements of a file."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_the_list_of_the_pserver_role_is_that_of_the_project_without_torch() -> None:
    """The requirements of the role are pyproject's dependencies, less torch, word for word."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    whole = config["project"]["dependencies"]

    role = listed((DEPLOY / "requirements-pserver.txt").read_text(encoding="utf-8"))

    assert role == [name for name in whole if not name.startswith("torch")]
    assert len(role) == len(whole) - 1


def test_the_pserver_role_works_without_torch() -> None:
    """Where torch cannot be imported, the command and the server can, and plan does its work."""
    script = (
        "import sys; sys.modules['torch'] = None; import pserver.server.app; from pserver.cli.main import main;"
        "sys.exit(main(['plan', '--rows', '1e6', '--json']))"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


@pytest.mark.parametrize("role", ROLES)
def test_process_1_is_the_product_itself(role: str) -> None:
    """Entry point and command are in exec form, so no shell stands between a signal and the product."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (entry,), (command,) = of(role, "ENTRYPOINT"), of(role, "CMD")

    assert json.loads(entry) == [role]
    assert role in config["project"]["scripts"]
    assert isinstance(json.loads(command), list)


def test_the_image_listens_where_it_says() -> None:
    """The default command of a server is accepted, and its ports are those that are exposed."""
    settings = serve_settings(json.loads(of("pserver", "CMD")[0]))
    check_binds(settings)

    ports = [str(port_of(settings.bind)), str(port_of(settings.metrics_bind))]

    assert of("pserver", "EXPOSE") == [" ".join(ports)]


@pytest.mark.parametrize("role", ROLES)
def test_nobody_is_root_and_the_compile_cache_is_made_by_who_reads_it(role: str) -> None:
    """The user is a number other than 0 (runAsNonRoot needs one), set before the cache is made."""
    here = [(word, arguments) for stage, word, arguments in STEPS if stage == role]
    users = [arguments for word, arguments in here if word == "USER"]
    folder = next(
        match[1]
        for text in of("base", "ENV")
        if (match := re.search(r"NUMBA_CACHE_DIR=(\S+)", text))
    )

    assert users == ["10001:10001"]
    after = here[here.index(("USER", users[0])) :]
    assert [word for word, _ in after][:3] == ["USER", "RUN", "VOLUME"]
    assert after[2][1] == folder
    assert any(f"-o 10001 -g 10001 {folder}" in arguments for arguments in of(role, "RUN"))


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    """Each path that COPY names is in the repository, and the ignore file lets it in."""
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    let_in = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        path for stage, word, text in STEPS if word == "COPY" for path in text.split()[:-1] if stage
    }

    assert lines[0] == "*"
    assert copied == let_in
    assert [path for path in sorted(copied) if not (ROOT / path).exists()] == []


def test_packages_of_the_project_are_all_in_the_image() -> None:
    """Every top package that pyproject lists is copied."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    top = {name.split(".")[0] for name in config["tool"]["setuptools"]["packages"]}

    assert top <= {path for text in of("base", "COPY") for path in text.split()[:-1]}


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_composed_process_is_locked_in(name: str) -> None:
    """Each of ours is one of the image's targets, without root, capabilities or a writable root."""
    service = OURS[name]

    assert service["build"] == {"context": "..", "dockerfile": "deploy/Dockerfile"} | {
        "target": name.split("-")[0]
    }
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["user"] == "10001:10001"
    assert service["tmpfs"] == ["/tmp"]


def test_the_composed_cluster_fits_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards, their names and ports, the trainers and what Prometheus asks agree."""
    shards, targets = [], []
    for name, service in OURS.items():
        if not name.startswith("pserver"):
            continue
        monkeypatch.setattr("socket.gethostname", lambda host=service["hostname"]: host)
        settings = serve_settings(service["command"])
        check_binds(settings)
        assert int(service["stop_grace_period"].rstrip("s")) > settings.drain_s
        assert name == service["hostname"] == f"pserver-{settings.shard}"
        assert (settings.journal or "").startswith(service["volumes"][0].split(":")[1])
        shards.append((settings, f"{name}:{port_of(settings.bind)}"))
        targets.append(f"{name}:{port_of(settings.metrics_bind)}")
    trainers = [
        run_settings(service["command"])
        for name, service in OURS.items()
        if name.startswith("trainer")
    ]

    assert {settings.shards for settings, _ in shards} == {len(shards)}
    assert {run.ps for run in trainers} == {",".join(endpoint for _, endpoint in shards)}
    assert [run.trainer_id for run in trainers] == list(range(len(trainers)))
    assert {run.trainers for run in trainers} == {len(trainers)}
    pages = [f"trainer-{run.trainer_id}:{port_of(run.metrics_bind)}" for run in trainers]
    of_servers, of_trainers = load("prometheus/prometheus.yaml")["scrape_configs"]
    assert of_servers["static_configs"] == [{"targets": targets}]
    assert of_trainers["static_configs"] == [{"targets": pages}]
    assert set(pages) <= {f"{name}:9180" for name in OURS}


def test_files_that_are_mounted_exist_and_ports_are_of_loopback() -> None:
    """Each file that a container is given is there, and nothing is open beyond this machine."""
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).exists(), volume
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), port
