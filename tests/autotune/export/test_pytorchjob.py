"""Export to Kubernetes: the document against the fields of the published schema."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from autotune.export import export
from trainer.recipe import Recipe

# Field -> (type, required). From the models of kubeflow-training 1.9.4 (PyPI), which are made from the CRD:
# KubeflowOrgV1PyTorchJob, ...PyTorchJobSpec, ...RunPolicy, ...ReplicaSpec; the pod's from V1PodSpec, V1Container.
SCHEMA: dict[str, dict[str, tuple[type, bool]]] = {
    "": {"apiVersion": (str, True), "kind": (str, True), "metadata": (dict, True), "spec": (dict, True)},
    "spec": {"nprocPerNode": (str, False), "pytorchReplicaSpecs": (dict, True), "runPolicy": (dict, True),
             "elasticPolicy": (dict, False)},
    "spec.runPolicy": {"activeDeadlineSeconds": (int, False), "backoffLimit": (int, False),
                       "cleanPodPolicy": (str, False), "managedBy": (str, False),
                       "schedulingPolicy": (dict, False), "suspend": (bool, False),
                       "ttlSecondsAfterFinished": (int, False)},
    "replica": {"replicas": (int, False), "restartPolicy": (str, False), "template": (dict, False)},
    "pod": {"containers": (list, True), "volumes": (list, False)},
    "container": {"name": (str, True), "image": (str, False), "command": (list, False), "args": (list, False),
                  "env": (list, False), "resources": (dict, False), "volumeMounts": (list, False)},
}  # fmt: skip
YAML_NUMBER = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
)  # numbers of the YAML that Kubernetes reads


def job(**sections: Any) -> Any:
    document = {"name": "Qwen_3", "model": "qwen3-30b-a3b", "cluster": {"gpu": "h100", "nodes": 4}}
    return yaml.safe_load(export(Recipe.model_validate(document | sections), "pytorchjob"))


def assert_fields(value: dict[str, Any], name: str) -> None:
    fields = SCHEMA[name]
    assert set(value) <= set(fields), name
    assert {field for field, (_, required) in fields.items() if required} <= set(value), name
    assert all(isinstance(value[field], fields[field][0]) for field in value), name


def test_the_document_has_the_fields_of_the_schema_and_no_others() -> None:
    found = job()
    assert_fields(found, "")
    assert_fields(found["spec"], "spec")
    assert_fields(found["spec"]["runPolicy"], "spec.runPolicy")
    assert (found["apiVersion"], found["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    for replica in found["spec"]["pytorchReplicaSpecs"].values():
        assert_fields(replica, "replica")
        pod = replica["template"]["spec"]
        assert_fields(pod, "pod")
        for container in pod["containers"]:
            assert_fields(container, "container")
            assert all(isinstance(word, str) for word in container["command"])
            assert all(isinstance(each["value"], str) for each in container["env"])


def test_a_master_and_a_worker_for_each_further_node_hold_the_gpus_of_a_node() -> None:
    spec = job()["spec"]
    replicas = spec["pytorchReplicaSpecs"]
    assert spec["nprocPerNode"] == "8"
    assert (replicas["Master"]["replicas"], replicas["Worker"]["replicas"]) == (1, 3)
    container = replicas["Worker"]["template"]["spec"]["containers"][0]
    assert container["name"] == "pytorch"  # the operator looks for it
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert container["command"][:2] == ["torchrun", "pretrain_gpt.py"]
    assert set(job(cluster={"gpu": "h100"})["spec"]["pytorchReplicaSpecs"]) == {"Master"}


def test_no_word_is_a_number_to_kubernetes() -> None:
    document = {"name": "q", "model": "qwen3-30b-a3b", "cluster": {"gpu": "h100"}}
    text = export(Recipe.model_validate(document), "pytorchjob")
    assert '- "3e-4"' in text
    bare = re.findall(r"^ *- ([^\"'\s:]+)$", text, re.MULTILINE)
    assert bare
    assert not [word for word in bare if YAML_NUMBER.fullmatch(word)]


@pytest.mark.parametrize(
    ("command", "started"),
    [(["python3", "-u", "train.py", "--x"], ["train.py", "--x"]),
     (["python", "-X", "faulthandler", "train.py"], ["--no-python", "python", "-X", "faulthandler", "train.py"]),
     (["python", "-u", "-m", "train", "--x"], ["-m", "train", "--x"]),
     (["/opt/wrap.sh", "$(HOME)"], ["--no-python", "/opt/wrap.sh", "$$(HOME)"])],
)  # fmt: skip
def test_torchrun_starts_the_users_command(command: list[str], started: list[str]) -> None:
    found = job(trainer={"command": command})["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    words = found["containers"][0]["command"]
    assert words[: len(started) + 1] == ["torchrun", *started]


def test_what_a_pod_inherits_comes_from_its_image_and_secrets_from_the_cluster() -> None:
    env = {"HF_TOKEN": "${HF_TOKEN}", "PATH": "/opt/bin:${PATH}", "NCCL_DEBUG": "INFO"}
    found = job(trainer={"command": ["python", "train.py"], "env": env})["spec"]["pytorchReplicaSpecs"]["Master"]
    (container,) = found["template"]["spec"]["containers"]
    variables = {each["name"]: each for each in container["env"]}
    assert variables["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "SECRET", "key": "HF_TOKEN"}}
    assert variables["NCCL_DEBUG"]["value"] == "INFO"
    assert "PATH" not in variables
    assert container["command"][:2] == ["bash", "-c"]
    assert container["command"][2] == 'export PATH=/opt/bin"${PATH:+:$PATH}"; exec "$@"'
    assert container["command"][4:6] == ["torchrun", "train.py"]


def test_a_name_is_one_that_kubernetes_takes() -> None:
    assert job()["metadata"]["name"] == "qwen-3"
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,49}", job(name="9.Long_" + "x" * 80)["metadata"]["name"])
