"""Every overlay of ``deploy/kubernetes`` renders, is valid, and says what the product does."""

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

import pserver
from pserver.cli.main import make_parser
from pserver.config import ServeSettings
from pserver.server.secure import check_binds
from tests.deploy.manifests import (
    DEPLOY,
    OVERLAYS,
    Object,
    one,
    pod_of,
    port_of,
    rendered,
    run_settings,
    serve_settings,
)
from trainer.cli.main import FAILURE_EXIT, SIGTERM_EXIT
from trainer.config import RunSettings

KUBERNETES = "1.31"
OF_OPERATORS = {"ServiceMonitor", "PrometheusRule"}  # kinds that Kubernetes itself has no schema of
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


@pytest.fixture(scope="module", params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    """Return what an overlay renders to."""
    return rendered(str(request.param))


@pytest.fixture
def job_file(objects: list[Object], tmp_path: Path) -> Path:
    """Return the file that all processes are given."""
    file = tmp_path / "job.toml"
    file.write_text(one(objects, "ConfigMap")["data"]["job.toml"], encoding="utf-8")
    return file


def main_container(workload: Object, *, name: str = "") -> Object:
    """Return the container that does the work; it has a name, or its workload's."""
    (container,) = pod_of(workload)["containers"]
    assert container["name"] == (name or workload["metadata"]["name"])
    return dict(container)


def served(
    objects: list[Object], job_file: Path, monkeypatch: pytest.MonkeyPatch, *, pod: int
) -> ServeSettings:
    """Return the settings that a pod's server takes."""
    workload = one(objects, "StatefulSet")
    container = main_container(workload)
    assert "env" not in container
    monkeypatch.setattr("socket.gethostname", lambda: f"{workload['metadata']['name']}-{pod}")
    words = [word.replace("/etc/pserver/job.toml", str(job_file)) for word in container["args"]]
    assert f"--config={job_file}" in words
    return serve_settings(words, file=job_file)


def trained(objects: list[Object], job_file: Path, *, index: int) -> RunSettings:
    """Return the settings that a pod's trainer takes."""
    container = main_container(one(objects, "Job"))
    environ = {}
    for variable in container["env"]:
        assert variable["valueFrom"] == {"fieldRef": {"fieldPath": INDEX}}
        environ[variable["name"]] = str(index)
    words = [word.replace("/etc/pserver/job.toml", str(job_file)) for word in container["args"]]
    assert f"--config={job_file}" in words
    return run_settings(words, file=job_file, environ=environ)


def test_every_object_is_valid(objects: list[Object]) -> None:
    """Kubernetes' own schemas accept each object, without a field that they do not know."""
    checked = [item for item in objects if item["kind"] not in OF_OPERATORS]

    for item in checked:
        kubernetes_validate.validate(item, KUBERNETES, strict=True)

    assert {item["kind"] for item in objects} >= {
        *OF_OPERATORS,
        *(
            "StatefulSet",
            "Service",
            "Job",
            "CronJob",
            "PersistentVolumeClaim",
            "PodDisruptionBudget",
        ),
        *("NetworkPolicy", "ConfigMap", "Namespace"),
    }


def test_a_field_that_does_not_exist_is_found(objects: list[Object]) -> None:
    """The check above can fail: a misspelt field of a pod is refused."""
    workload = json.loads(json.dumps(one(objects, "StatefulSet")))
    pod_of(workload)["containers"][0]["readynessProbe"] = {}

    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(workload, KUBERNETES, strict=True)


def test_each_pod_is_the_shard_of_its_number(
    objects: list[Object], job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are as many pods as shards, and the trainers' list has each by its stable name."""
    workload, service = one(objects, "StatefulSet"), one(objects, "Service")
    replicas = workload["spec"]["replicas"]
    settings = [served(objects, job_file, monkeypatch, pod=pod) for pod in range(replicas)]

    assert [each.shard for each in settings] == list(range(replicas))
    assert {each.shards for each in settings} == {replicas}
    assert workload["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    name, domain = workload["metadata"]["name"], service["metadata"]["name"]
    assert trained(objects, job_file, index=0).ps == ",".join(
        f"{name}-{pod}.{domain}:{port_of(each.bind)}" for pod, each in enumerate(settings)
    )


def test_ports_are_those_that_a_server_listens_on(
    objects: list[Object], job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Container, Service, probes and what the monitor asks name the product's two ports."""
    settings = served(objects, job_file, monkeypatch, pod=0)
    container, service = main_container(one(objects, "StatefulSet")), one(objects, "Service")
    ports = {"grpc": port_of(settings.bind), "metrics": port_of(settings.metrics_bind)}

    assert {port["name"]: port["containerPort"] for port in container["ports"]} == ports
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports
    assert all(port["targetPort"] == port["name"] for port in service["spec"]["ports"])
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container[name]
        if settings.tls_cert:  # which the kubelet's gRPC probes do not know
            assert probe["tcpSocket"] == {"port": "grpc"}
            assert "grpc" not in probe
        else:
            assert probe["grpc"]["port"] == ports["grpc"]
    (endpoint,) = one(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("metrics", "/metrics")
    policy = one(objects, "NetworkPolicy")["spec"]
    assert [rule["ports"][0]["port"] for rule in policy["ingress"]] == ["grpc", "metrics"]


def test_folders_that_a_server_writes_to_are_volumes(
    objects: list[Object], job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Journal and checkpoints outlive the pod: a claim for each pod, and one for all."""
    settings = served(objects, job_file, monkeypatch, pod=0)
    workload = one(objects, "StatefulSet")
    mounts = {m["mountPath"]: m["name"] for m in main_container(workload)["volumeMounts"]}
    (claim,) = workload["spec"]["volumeClaimTemplates"]
    volumes = {volume["name"]: volume for volume in pod_of(workload)["volumes"]}

    assert mounts[settings.journal or ""] == claim["metadata"]["name"]
    shared = volumes[mounts[settings.checkpoint_dir or ""]]["persistentVolumeClaim"]["claimName"]
    assert shared == one(objects, "PersistentVolumeClaim")["metadata"]["name"]
    assert settings.restore == "latest"
    assert pod_of(workload)["terminationGracePeriodSeconds"] > settings.drain_s


def test_each_pod_of_the_job_is_the_trainer_of_its_index(
    objects: list[Object], job_file: Path
) -> None:
    """All trainers run at once, each with its number, and never two with one."""
    spec = one(objects, "Job")["spec"]
    settings = [trained(objects, job_file, index=index) for index in range(spec["completions"])]

    assert spec["completionMode"] == "Indexed"
    assert spec["parallelism"] == spec["completions"]
    assert spec["podReplacementPolicy"] == "Failed"
    assert [each.trainer_id for each in settings] == list(range(spec["completions"]))
    assert {each.trainers for each in settings} == {spec["completions"]}


def test_i7_the_job_gives_up_where_trying_again_cannot_help(objects: list[Object]) -> None:
    """Only the product's status for settings that cannot work fails the job at once."""
    job = one(objects, "Job")
    rules = job["spec"]["podFailurePolicy"]["rules"]
    (codes,) = [rule["onExitCodes"] for rule in rules if rule["action"] == "FailJob"]

    assert codes == {"containerName": "trainer", "operator": "In", "values": [pserver.USAGE_EXIT]}
    assert pserver.USAGE_EXIT not in (FAILURE_EXIT, SIGTERM_EXIT)
    assert rules[0]["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert job["spec"]["backoffLimitPerIndex"] > 0
    assert pod_of(job)["restartPolicy"] == "Never"  # a pod failure policy needs it


def files_of(settings: object) -> set[str]:
    """Return the files of TLS and tokens that settings, or the flags of a command, name."""
    names = ("tls_cert", "tls_key", "tls_ca", "token_file")
    return {str(file) for name in names if (file := getattr(settings, name, None)) is not None}


def test_ports_are_guarded_by_secrets_that_the_runbook_makes(
    objects: list[Object], job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The product accepts to listen so, and each file that it is given is of a Secret with it."""
    settings = served(objects, job_file, monkeypatch, pod=0)
    save = one(objects, "CronJob")["spec"]["jobTemplate"]
    given = make_parser().parse_args(main_container(save, name="save")["args"])
    runbook = (DEPLOY / "RUNBOOK.md").read_text(encoding="utf-8").replace("\\\n", " ")
    made = {
        line.split()[6]: {Path(word.split("=")[1]).name for word in line.split()[7:]}
        for line in runbook.splitlines()
        if line.startswith("kubectl -n pserver create secret generic ")
    }

    check_binds(settings)
    for workload, name, files in (
        (one(objects, "StatefulSet"), "", files_of(settings)),
        (one(objects, "Job"), "", files_of(trained(objects, job_file, index=0))),
        (save, "save", files_of(given)),
    ):
        assert len(files) == (0 if settings.insecure_bind else 4)
        folders = {
            m["mountPath"]: m["name"] for m in main_container(workload, name=name)["volumeMounts"]
        }
        volumes = {volume["name"]: volume for volume in pod_of(workload)["volumes"]}
        for file in map(Path, sorted(files)):
            secret = volumes[folders[str(file.parent)]]["secret"]["secretName"]
            assert file.name in made[secret]
    (endpoint,) = one(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint.get("scheme") == (None if settings.insecure_bind else "https")


def test_saves_go_to_the_servers_that_trainers_use(objects: list[Object], job_file: Path) -> None:
    """The hourly save is a command that there is, and asks all shards."""
    container = main_container(one(objects, "CronJob")["spec"]["jobTemplate"], name="save")

    given = make_parser().parse_args(container["args"])

    assert (given.command, given.verb) == ("checkpoint", "save")
    assert given.ps == trained(objects, job_file, index=0).ps


@pytest.mark.parametrize("kind", ["StatefulSet", "Job", "CronJob"])
def test_pods_are_locked_in(objects: list[Object], kind: str) -> None:
    """No root, no capabilities, a root that is read only, and a cache for Numba that is not."""
    workload = one(objects, kind)
    pod = pod_of(workload["spec"]["jobTemplate"] if kind == "CronJob" else workload)
    security = pod["securityContext"]

    assert security["runAsNonRoot"]
    assert security["runAsUser"] == 10001  # the image's user
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    assert not pod["enableServiceLinks"]
    for container in [*pod["initContainers"], *pod["containers"]]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    (filling,), (working,) = pod["initContainers"], pod["containers"]
    cache = {m["name"]: m["mountPath"] for m in working["volumeMounts"]}["compile-cache"]
    assert filling["image"] == working["image"]
    assert filling["command"] == ["cp", "-r", f"{cache}/.", "/cache"]
    assert filling["volumeMounts"] == [{"name": "compile-cache", "mountPath": "/cache"}]


@pytest.mark.parametrize("kind", ["StatefulSet", "Job", "CronJob"])
def test_i8_the_last_words_of_a_container_outlive_it(objects: list[Object], kind: str) -> None:
    """Its end is told with its last lines of log, which is where the reason stands."""
    workload = one(objects, kind)
    pod = pod_of(workload["spec"]["jobTemplate"] if kind == "CronJob" else workload)

    for container in pod["containers"]:
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_names_that_objects_call_each_other_by_exist(objects: list[Object]) -> None:
    """Selectors find their pods and services, and volumes their ConfigMap."""
    pods: dict[str, Any] = {
        kind: one(objects, kind)["spec"]["template"]["metadata"]["labels"]
        for kind in ("StatefulSet", "Job")
    }
    save = one(objects, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]
    pods["CronJob"] = save["metadata"]["labels"]

    def finds(selector: Object, labels: Object) -> bool:
        return selector.items() <= labels.items()

    assert finds(one(objects, "Service")["spec"]["selector"], pods["StatefulSet"])
    for kind in ("StatefulSet", "PodDisruptionBudget"):
        selector = one(objects, kind)["spec"]["selector"]["matchLabels"]
        assert finds(selector, pods["StatefulSet"])
    policy = one(objects, "NetworkPolicy")["spec"]
    assert finds(policy["podSelector"]["matchLabels"], pods["StatefulSet"])
    callers = [peer["podSelector"]["matchLabels"] for peer in policy["ingress"][0]["from"]]
    for labels in pods.values():
        assert any(finds(selector, labels) for selector in callers)
    monitor = one(objects, "ServiceMonitor")["spec"]
    assert finds(monitor["selector"]["matchLabels"], one(objects, "Service")["metadata"]["labels"])
    for kind in ("StatefulSet", "Job"):
        volumes = pod_of(one(objects, kind))["volumes"]
        (given,) = [v["configMap"]["name"] for v in volumes if "configMap" in v]
        assert given == one(objects, "ConfigMap")["metadata"]["name"]
