"""The examples for Kubeflow: they render, have the fields that Kubeflow knows, and say what the product does."""

import json
from pathlib import Path

import kubernetes_validate
import pytest
from kubeflow_trainer_api.models import TrainerV1alpha1TrainingRuntime as Runtime
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob as TrainJob

import pserver
import trainer.cli.main
from tests.deploy.manifests import Object, one, pod_of, rendered, run_settings
from tests.deploy.test_kubernetes import INDEX, KUBERNETES
from trainer.config import RunSettings
from trainer.settings.aliases import RunAliases


@pytest.fixture(scope="module")
def trainjob() -> list[Object]:
    """Return what the example with a TrainJob renders to."""
    return rendered("trainjob", of="examples")


@pytest.fixture(scope="module")
def pytorchjob() -> list[Object]:
    """Return what the example with a PyTorchJob renders to."""
    return rendered("pytorchjob", of="examples")


@pytest.fixture
def dev_job() -> Object:
    """Return the Job of the dev overlay, whose place the examples take; the test's own."""
    return one(rendered("dev"), "Job")


def job_file(objects: list[Object], folder: Path) -> Path:
    """Return the file that trainers are given."""
    file = folder / "job.toml"
    file.write_text(one(objects, "ConfigMap")["data"]["job.toml"], encoding="utf-8")
    return file


def job_of(runtime: Object) -> Object:
    """Return the template of the one replicated job of a runtime."""
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["name"] == "node"  # which the trainer's fields of a TrainJob are written into
    template: Object = replicated["template"]
    return template


def is_known(model: type[TrainJob] | type[Runtime], item: Object) -> bool:
    """Return whether Kubeflow's own model of a kind keeps every field of an object."""
    read = model.from_dict(item)
    return read is not None and read.to_dict() == item


def test_trainers_are_in_no_job_of_kubernetes_itself(
    trainjob: list[Object], pytorchjob: list[Object]
) -> None:
    """The Job of the overlay is gone, else there would be two trainers of each number."""
    for objects in (trainjob, pytorchjob):
        assert "Job" not in {item["kind"] for item in objects}
        assert {"StatefulSet", "ConfigMap"} <= {item["kind"] for item in objects}


def test_trainjob_and_its_runtime_have_fields_that_there_are(trainjob: list[Object]) -> None:
    """Kubeflow's models and Kubernetes' schema keep every field; a misspelt one is found."""
    job, runtime = one(trainjob, "TrainJob"), one(trainjob, "TrainingRuntime")
    bad = json.loads(json.dumps(runtime))
    bad["spec"]["mlPolicy"]["numNode"] = 2

    assert is_known(TrainJob, job)
    assert is_known(Runtime, runtime)
    assert not is_known(Runtime, bad)
    kubernetes_validate.validate(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "x"},
            "spec": job_of(runtime)["spec"],
        },
        KUBERNETES,
        strict=True,
    )
    assert job["spec"]["runtimeRef"] == {
        "apiGroup": runtime["apiVersion"].split("/")[0],
        "kind": runtime["kind"],
        "name": runtime["metadata"]["name"],
    }


def test_nodes_of_the_trainjob_are_the_trainers_of_the_job(
    trainjob: list[Object], tmp_path: Path
) -> None:
    """There are as many as job.toml says, and the index of each is its number."""
    file = job_file(trainjob, tmp_path)
    runtime = one(trainjob, "TrainingRuntime")
    template = job_of(runtime)
    (container,) = pod_of(template)["containers"]
    (variable,) = container["env"]
    words = [word.replace("/etc/pserver/job.toml", str(file)) for word in container["args"]]
    settings = [
        run_settings(words, file=file, environ={variable["name"]: str(index)}) for index in range(2)
    ]

    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": INDEX}}
    assert container["name"] == "node"
    assert [each.trainer_id for each in settings] == [0, 1]
    counts = {
        one(trainjob, "TrainJob")["spec"]["trainer"]["numNodes"],
        runtime["spec"]["mlPolicy"]["numNodes"],
        template["spec"]["completions"],
        template["spec"]["parallelism"],
    }
    assert counts == {settings[0].trainers}
    label = template["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"]
    assert label == "trainer"


def test_trainjob_gives_up_and_is_locked_in_as_the_job_is(
    trainjob: list[Object], dev_job: Object
) -> None:
    """What the tests of the Job hold, holds here: the rules of failure and the pod are its own."""
    template = job_of(one(trainjob, "TrainingRuntime"))
    own, theirs = pod_of(dev_job), pod_of(template)
    rules = json.dumps(dev_job["spec"]["podFailurePolicy"])

    assert json.loads(rules.replace('"trainer"', '"node"')) == template["spec"]["podFailurePolicy"]
    for name in ("completionMode", "backoffLimitPerIndex", "maxFailedIndexes"):
        assert template["spec"][name] == dev_job["spec"][name]
    own["containers"][0]["name"] = "node"
    assert theirs == own


def test_pytorchjob_has_pods_that_there_may_be(pytorchjob: list[Object], dev_job: Object) -> None:
    """Kubernetes' schema accepts the pods of both replicas, which are those of the Job but for its number."""
    spec = one(pytorchjob, "PyTorchJob")["spec"]
    own = pod_of(dev_job)
    del own["containers"][0]["env"]
    del own["restartPolicy"]  # that of replicas is above their pods
    own["containers"][0]["name"] = "pytorch"

    assert spec["pytorchReplicaSpecs"].keys() == {"Master", "Worker"}
    assert spec["runPolicy"] == {"backoffLimit": 5, "cleanPodPolicy": "None"}
    for replicas in spec["pytorchReplicaSpecs"].values():
        assert replicas.keys() == {"replicas", "restartPolicy", "template"}
        assert replicas["restartPolicy"] == "OnFailure"
        pod = {**replicas["template"]["spec"], "restartPolicy": replicas["restartPolicy"]}
        kubernetes_validate.validate(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod},
            KUBERNETES,
            strict=True,
        )
        assert replicas["template"]["spec"] == own
        labels = replicas["template"]["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "trainer"


def test_replicas_of_the_pytorchjob_are_the_trainers_of_the_job(
    pytorchjob: list[Object], tmp_path: Path
) -> None:
    """With the variables that the operator sets each is the trainer of its rank, and knows where they meet."""
    file = job_file(pytorchjob, tmp_path)
    replicas = one(pytorchjob, "PyTorchJob")["spec"]["pytorchReplicaSpecs"]
    world = sum(each["replicas"] for each in replicas.values())
    found = []
    for rank in range(world):
        (container,) = replicas["Worker" if rank else "Master"]["template"]["spec"]["containers"]
        words = [word.replace("/etc/pserver/job.toml", str(file)) for word in container["args"]]
        given = vars(trainer.cli.main.make_parser().parse_args(words))
        environ = {"RANK": str(rank), "WORLD_SIZE": str(world)}
        environ |= {"MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456"}
        settings, _ = pserver.resolve(
            RunSettings,
            given,
            environ=environ,
            prefix="TRAINER_",
            file=str(file),
            section="run",
            aliases=RunAliases(),
        )
        found.append((settings.trainer_id, settings.trainers, settings.master))

    assert found == [(rank, 2, "train-master-0:23456") for rank in range(2)]
