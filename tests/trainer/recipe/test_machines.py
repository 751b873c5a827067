from __future__ import annotations

from pathlib import Path

import pytest

from trainer.errors import BadInputError
from trainer.recipe import load_recipe
from trainer.recipe.load_machine import load_machine, load_machine_file, packaged_machines
from trainer.recipe.machine import Links, Machine
from trainer.recipe.machine_file import Learned

RECIPE = "model: mixtral-8x7b\ncluster: {gpu: h100, nodes: 2}\nburst: {engine: simulated, machine: MACHINE}\n"


def written(folder: Path, machine: str, *, engine: str = "simulated") -> str:
    file = folder / "recipe.yaml"
    file.write_text(RECIPE.replace("MACHINE", machine).replace("simulated", engine))
    return str(file)


def problem(recipe: str) -> str:
    with pytest.raises(BadInputError) as raised:
        load_recipe(recipe)
    return "\n".join(map(str, raised.value.problems))


@pytest.mark.parametrize("name", packaged_machines())
def test_a_packaged_machine_says_what_is_special_about_it(name: str) -> None:
    machine = load_machine(name)
    assert (machine.name, bool(machine.about)) == (name, True)
    assert (machine == Machine(name=name, about=machine.about)) == (name == "as-published")


def test_a_recipe_holds_what_its_machine_file_says(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text("links: {network: 0.6}\n")
    recipe = load_recipe(written(tmp_path, "ours.yaml"))
    assert recipe.burst.machine == Machine(name="ours", links=Links(network=0.6))
    assert load_recipe(written(tmp_path, "slow-network")).burst.machine == load_machine("slow-network")


def test_what_the_file_says_is_part_of_the_digest_and_its_place_is_not(tmp_path: Path) -> None:
    machine = tmp_path / "ours.yaml"
    digests = []
    for text in ("links: {network: 0.6}\n", "links: {network: 0.5}\n", "links: {network: 0.60}\n"):
        machine.write_text(text)
        digests.append(load_recipe(written(tmp_path, "ours.yaml")).digest())
    assert digests[0] != digests[1]
    assert digests[0] == digests[2]


def test_a_recipe_written_out_reads_back_with_its_machine(tmp_path: Path) -> None:
    recipe = load_recipe(written(tmp_path, "one-slow-node"))
    for resolved in (False, True):
        again = tmp_path / "again.yaml"
        again.write_text(recipe.to_yaml(resolved=resolved))
        assert load_recipe(str(again)).digest() == recipe.digest()


def test_a_machine_that_is_not_there_is_asked_for_by_its_nearest_name(tmp_path: Path) -> None:
    said = problem(written(tmp_path, "slow-netwrk"))
    assert "recipe.yaml:3 burst.machine: no machine 'slow-netwrk'" in said
    assert "did you mean slow-network?" in said


def test_every_problem_of_a_machine_file_is_said_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("links: {netwrk: 0.5}\nhost: {launch: -1}\n")
    said = problem(written(tmp_path, "bad.yaml"))
    assert "bad.yaml:1 links.netwrk: unknown key" in said
    assert "did you mean network?" in said
    assert "bad.yaml:2 host.launch" in said


def test_a_machine_without_the_simulated_engine_is_refused(tmp_path: Path) -> None:
    said = problem(written(tmp_path, "slow-network", engine="megatron"))
    assert "recipe.yaml:3 burst.machine: engine megatron runs on the cluster it finds" in said


@pytest.mark.parametrize(
    ("machine", "what"),
    [
        ("stragglers: [{node: 7, compute: 1.5}]", "stragglers names node 7, the cluster has 2"),
        ("stragglers: [{rank: 16, host: 1.5}]", "stragglers names rank 16, the cluster has 16"),
        ("faults: [{kind: dies, rank: 99}]", "faults names rank 99, the cluster has 16"),
    ],
)
def test_a_place_that_the_cluster_does_not_have_is_refused(tmp_path: Path, machine: str, what: str) -> None:
    (tmp_path / "ours.yaml").write_text(f"{machine}\n")
    assert what in problem(written(tmp_path, "ours.yaml"))


def test_a_factor_that_nothing_could_be_measured_under_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text("links: {network: 1.0e-16}\n")
    assert "network" in problem(written(tmp_path, "ours.yaml"))


def test_what_was_learned_for_the_estimate_is_no_part_of_the_recipe(tmp_path: Path) -> None:
    keys = "name: ours\nlinks: {network: 0.6}\n"
    learned = "estimate: {source: night, gpu: h100, factors: {gemm: {mean: 0.1, deviation: 0.05}}}\n"
    (tmp_path / "ours.yaml").write_text(keys)
    before = load_recipe(written(tmp_path, "ours.yaml"))
    (tmp_path / "ours.yaml").write_text(keys + learned)
    after = load_recipe(written(tmp_path, "ours.yaml"))
    assert after == before
    assert after.digest() == before.digest()
    estimate = load_machine_file(str(tmp_path / "ours.yaml")).estimate
    assert estimate is not None
    assert estimate.factors["gemm"] == Learned(mean=0.1, deviation=0.05)


def test_a_problem_in_what_was_learned_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text("estimate:\n  source: night\n  gpu: h100\n  factors: {gemm: {mean: 0.1}}\n")
    with pytest.raises(BadInputError) as raised:
        load_machine_file(str(tmp_path / "ours.yaml"))
    assert "ours.yaml:4" in str(raised.value.problems[0])
    assert "deviation" in str(raised.value.problems[0])
