"""A framework is one folder: what imports, checks, runs and exports recipes finds it there, and names none."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainer.frameworks
from autotune.check.frameworks import findings_of_framework
from autotune.export import export
from autotune.importing.found import ImportOptions, Started
from autotune.importing.reading import imported_command
from tests.policies.drawn import cpu_recipe
from tests.rows import filled
from trainer.burst import Burst
from trainer.engines.command.injected_folder import INJECTED
from trainer.engines.command.job import Job
from trainer.engines.command.lines import Reading, patterns_with
from trainer.errors import BadInputError
from trainer.frameworks import framework_named, frameworks
from trainer.frameworks.bounds import bounds_of
from trainer.launch_scripts.launchers import Sizes
from trainer.recipe import Recipe, framework_names

ADDED = Path(__file__).parent / "added"
TREE = Path(__file__).parents[3]
ASK = ("autotune/importing", "autotune/export", "trainer/engines/command", "trainer/launch_scripts")
NAMES = re.compile(r"megatron[-_. ]?(lm|bridge)\b", re.IGNORECASE)
FOREIGN = {"--use_megatron_lm"}  # a switch of accelerate


@pytest.fixture
def _toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Adds the folder `added/toy` to the frameworks."""
    monkeypatch.setattr(trainer.frameworks, "__path__", [*trainer.frameworks.__path__, str(ADDED)])
    monkeypatch.setattr(framework_names, "FOLDERS", [*framework_names.FOLDERS, ADDED])
    framework_names.framework_names.cache_clear()
    yield
    framework_names.framework_names.cache_clear()
    for module in ("trainer.frameworks.toy", "trainer.frameworks.toy.framework"):
        sys.modules.pop(module, None)


def toy_recipe() -> Recipe:
    started = Started(
        program=("python", "train_toy.py"),
        argv=("toy.num_layers:4", "toy.hidden_size:64", "toy.num_attention_heads:4", "toy.vocab_size:512",
              "toy.num_moe_experts:8", "toy.micro_batch_size:2", "toy.expert_model_parallel_size:2", "toy.data:mine"),
        sizes=Sizes(nodes=1, gpus_per_node=2),
    )  # fmt: skip
    return imported_command(started, ImportOptions(file="train.sh", gpu="cpu"), "a launch script").recipe


@pytest.mark.usefixtures("_toy")
def test_a_command_of_an_added_framework_is_imported() -> None:
    recipe = toy_recipe()
    assert recipe.trainer is not None
    assert (recipe.trainer.kind, recipe.trainer.command) == ("toy", ("python", "train_toy.py", "toy.data:mine"))
    assert (recipe.architecture.num_moe_experts, recipe.training.micro_batch_size) == (8, 2)
    assert recipe.parallelism.expert_model_parallel_size == 2


@pytest.mark.usefixtures("_toy")
def test_a_burst_of_an_added_framework_has_its_words_and_reads_its_lines(tmp_path: Path) -> None:
    recipe = toy_recipe()
    assert recipe.trainer is not None
    burst = Burst(number=1, recipe=recipe, folder=tmp_path)
    job = Job(burst=burst, trainer=recipe.trainer, bounds=bounds_of(recipe), folder=tmp_path)
    words = job.argv()
    assert {"train_toy.py", "toy.data:mine", "toy.micro_batch_size:2"} < set(words)
    assert words[-1] == f"toy.stop_after:{job.bounds.last}"
    reading = Reading(patterns=patterns_with(job.framework.log_patterns, {}))
    reading.feed("step 3 took 250 ms, loss 1.5")
    assert (reading.iterations[3].ms, reading.iterations[3].loss) == (250.0, 1.5)


@pytest.mark.usefixtures("_toy")
def test_a_recipe_is_checked_for_and_exported_to_an_added_framework() -> None:
    illegal = cpu_recipe().replace({"tensor_model_parallel_size": 3})
    assert findings_of_framework(illegal, "toy")
    assert "python train_toy.py toy." in export(cpu_recipe(), "toy")
    own = toy_recipe()
    for target in ("toy", "slurm"):
        assert "toy.data:mine" in export(own, target)
    with pytest.raises(BadInputError, match="toy"):
        export(own, "toyy")


def test_a_framework_is_named_as_its_folder_and_reads_every_line() -> None:
    lines = frameworks()[0].log_patterns.keys()
    for framework in filled(frameworks()):
        assert framework_named(framework.name) is framework
        assert framework.log_patterns.keys() == lines
        assert patterns_with(framework.log_patterns, {})


def test_what_asks_a_framework_names_none() -> None:
    named = [
        f"{path.relative_to(TREE)}:{number}: {line.strip()}"
        for folder in ASK
        for path in sorted((TREE / folder).rglob("*.py"))
        if INJECTED not in path.parents  # runs inside the trainer, and looks for its modules
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if NAMES.search(" ".join(word for word in line.split() if word not in FOREIGN))
    ]
    assert named == []
