"""Writes a Kubeflow PyTorchJob (kubeflow.org/v1), for `--to pytorchjob`: one pod per node, torchrun in each.

The training operator sets PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and the like, which torchrun reads as defaults of
its arguments. Schema: kubeflow-training 1.9.4, KubeflowOrgV1PyTorchJobSpec.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from autotune.export.script import Command, rank_command
from autotune.export.target import Context, Target
from trainer.errors import refused
from trainer.frameworks import framework_of
from trainer.launch_scripts.variables import export_line, is_inherited, names_itself
from trainer.launch_scripts.writing import comment
from trainer.recipe import Recipe
from trainer.secrets import is_secret

IMAGE = "IMAGE"  # placeholder, which the user replaces
SECRET = "SECRET"
LONGEST_NAME = 50  # characters; Kubernetes allows 63, and the operator adds -worker-1023 and a suffix for the service


def render(recipe: Recipe, context: Context) -> str:
    """Returns the document as YAML. Raises BadInputError for an unknown version of the framework."""
    command = rank_command(recipe, context)
    return "\n".join([*_header(recipe, context, command), _yaml(document(recipe, command))])


def document(recipe: Recipe, command: Command) -> dict[str, Any]:
    """Returns the job: a Master, and a Worker for each further node."""
    per_node = recipe.cluster.gpus_per_node or recipe.hardware.gpus_per_node
    workers = recipe.cluster.nodes - 1
    pod = _pod(recipe, command, per_node)
    replicas = {"Master": _replicas(1, pod)} | ({"Worker": _replicas(workers, pod)} if workers else {})
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": _job_name(recipe.name)},
        "spec": {
            "nprocPerNode": str(per_node),
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 0},
            "pytorchReplicaSpecs": replicas,
        },
    }


def _replicas(number: int, pod: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": number, "restartPolicy": "Never", "template": {"spec": pod}}


def _pod(recipe: Recipe, command: Command, per_node: int) -> dict[str, Any]:
    """Returns the pod.

    Its container must be named pytorch for the operator. `$(` is escaped as `$$(`: Kubernetes expands $(NAME).
    """
    words = (*_shell(command.variables), "torchrun", *_of_torchrun(command.argv))
    container: dict[str, Any] = {
        "name": "pytorch",
        "image": IMAGE,
        "command": [word.replace("$(", "$$(") for word in words],
        "env": list(_environment(command.variables)),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    if not recipe.hardware.is_cpu:
        container["resources"] = {"limits": {_resource(recipe): per_node}}
    return {"containers": [container], "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]}


def _resource(recipe: Recipe) -> str:
    """Returns the resource name of the GPUs, such as nvidia.com/gpu.

    Raises BadInputError if their vendor is unknown.
    """
    if recipe.hardware.vendor is None:
        gpu = recipe.hardware.name
        raise refused(
            "cluster.gpu", f"Kubernetes asks for GPUs by vendor, and that of {gpu} is unknown", "write vendor"
        )
    return f"{recipe.hardware.vendor}.com/gpu"


def _environment(variables: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yields the container's variables; secrets refer to a Secret of the cluster."""
    for name, value in variables.items():
        if is_inherited(name, value) and is_secret(name):
            yield {"name": name, "valueFrom": {"secretKeyRef": {"name": SECRET, "key": name}}}
        elif not names_itself(name, value):
            yield {"name": name, "value": value}


def _shell(variables: dict[str, str]) -> tuple[str, ...]:
    """Returns the words that run torchrun inside bash if a variable extends a value of the image, which Kubernetes
    cannot express; else ()."""
    lines = [
        export_line(name, value)
        for name, value in variables.items()
        if names_itself(name, value) and not is_inherited(name, value)
    ]
    return ("bash", "-c", "; ".join([*lines, 'exec "$@"']), "job") if lines else ()


def _of_torchrun(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the arguments of torchrun: a Python script without its interpreter; any other program, and Python with
    options other than -u, -B and -m, after --no-python."""
    if not re.fullmatch(r"(.*/)?python[\d.]*", argv[0]):
        return ("--no-python", *argv)
    rest = argv[1:]
    while rest and rest[0] in ("-u", "-B"):
        rest = rest[1:]
    return ("--no-python", *argv) if rest[:1] and rest[0].startswith("-") and rest[0] != "-m" else rest


def _header(recipe: Recipe, context: Context, command: Command) -> Iterator[str]:
    yield from (comment(line) for line in (f"{recipe.name}: a PyTorchJob written by moe-autotune.", *context.origin))
    yield "# What only you know:"
    yield f"#   {IMAGE}: the container image, with the trainer and its folder as the working folder"
    yield "#   volumes of data and checkpoints; node selectors, tolerations and network devices (rdma) of your cluster"
    if any(is_inherited(name, value) and is_secret(name) for name, value in command.variables.items()):
        yield f"#   {SECRET}: the Secret of your cluster with the passwords and keys named below"
    lines = () if recipe.trainer is None else recipe.trainer.setup
    yield from (
        comment(f"Your own script sets up its shell with this; the image has to do it: {line}") for line in lines
    )
    yield from (
        comment(f"NOT EXPRESSED: {word}: Kubernetes expands nothing in it")
        for word in (*command.argv, *command.variables.values())
        if recipe.trainer is not None and word in recipe.trainer.expand
    )
    if command.on_mock_data:
        yield "#   data, tokenizer, schedule: it trains 50 steps on mock data"
    yield from (comment(f"NOT EXPRESSED: {each}") for each in command.lost)


_PLAIN = re.compile(r"-{0,2}[A-Za-z_/][\w./-]{2,}")  # text that no YAML parser reads as a number or a truth value


class _Dumper(yaml.SafeDumper):
    """Dumps YAML with one list item per line, and quotes all text that some YAML parser reads as a number or a truth
    value (3e-4)."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = None if _PLAIN.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _yaml(data: dict[str, Any]) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=110)


def _job_name(name: str) -> str:
    """Returns the name as Kubernetes accepts it: lower case letters, digits and dashes, at most LONGEST_NAME
    characters."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower())[:LONGEST_NAME].strip("-")
    return plain if plain[:1].isalpha() else f"job-{plain}"[:LONGEST_NAME].strip("-")


TARGET = Target(name="pytorchjob", render=render, framework=framework_of)
