"""Checks `burst.launcher`: a name, or a name with settings, which are not part of a recipe's digest."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.errors import BadInputError
from trainer.recipe.launching import SlurmSettings, hosts_settings, slurm_settings
from trainer.recipe.schema import Recipe
from trainer.recipe.source import parse_source
from trainer.recipe.validation import validated


def recipe(launcher: str) -> Recipe:
    text = f"model: qwen3-30b-a3b\ncluster: {{gpu: h100, nodes: 2}}\nburst:\n  launcher: {launcher}\n"
    return validated(Recipe, parse_source(text, name="r.yaml"))


@pytest.mark.parametrize("written", ["slurm", "{slurm: {}}", "{slurm: {partition: gpu, srun: [--mpi=none]}}"])
def test_a_launcher_comes_back_as_it_was_written(written: str) -> None:
    found = recipe(written)
    assert found.burst.launcher_kind == "slurm"
    assert validated(Recipe, parse_source(found.to_yaml(), name="again")).burst == found.burst
    assert found.replace({"micro_batch_size": 2}).burst == found.burst


def test_only_the_kind_of_launcher_distinguishes_recipes() -> None:
    digests = {recipe(each).digest() for each in ("slurm", "{slurm: {account: a, job: per-burst}}")}
    assert len(digests) == 1
    assert recipe("local").digest() not in digests


def test_a_launcher_that_is_not_written_is_the_local_one() -> None:
    text = "model: qwen3-30b-a3b\ncluster: {gpu: h100, nodes: 2}\n"
    assert validated(Recipe, parse_source(text, name="r.yaml")).digest() == recipe("local").digest()


def test_the_name_alone_means_the_defaults() -> None:
    assert slurm_settings(recipe("slurm").burst.launcher) == SlurmSettings()


@pytest.mark.parametrize(
    ("written", "where", "hint"),
    [
        ("{slurm: {partitio: gpu}}", "r.yaml:4 burst.launcher.slurm.partitio", "did you mean partition?"),
        ("{slurm: {nodes: 3}}", "r.yaml:4 burst.launcher.slurm.nodes", "move it to cluster"),
        ("{slrum: {}}", "r.yaml:4 burst.launcher.slrum", "did you mean slurm?"),
        ("{slurm: {job: per-brst}}", "r.yaml:4 burst.launcher.slurm.job", "did you mean per-burst?"),
        ("[slurm]", "r.yaml:4 burst.launcher", "write a mapping of keys"),
        ("{hosts: [n1], shh: [-v]}", "r.yaml:4 burst.launcher.shh", "did you mean ssh?"),
    ],
)
def test_an_error_in_a_launcher_names_its_place(written: str, where: str, hint: str) -> None:
    with pytest.raises(BadInputError) as raised:
        recipe(written)
    found: dict[str, Any] = {problem.where: problem.hint for problem in raised.value.problems}
    assert found[where] == hint


def test_hosts_are_named_and_ssh_takes_further_options() -> None:
    found = recipe("{hosts: [n1, n2], ssh: [-p, '2222']}").burst
    assert found.launcher_kind == "hosts"
    settings = hosts_settings(found.launcher)
    assert settings is not None
    assert (settings.hosts, settings.ssh) == (("n1", "n2"), ("-p", "2222"))


@pytest.mark.parametrize(
    "written", ["{hosts: []}", "{slurm: {job: per-burst, allocate: --time=5}}", '{slurm: {allocate: "--comment=\'a"}}']
)
def test_what_cannot_be_meant_is_refused(written: str) -> None:
    with pytest.raises(BadInputError):
        recipe(written)
