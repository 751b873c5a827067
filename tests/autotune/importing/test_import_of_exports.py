"""Importing an export gives the recipe again, except for settings that the trainer has no arguments for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from autotune.export import export
from autotune.importing.found import ImportOptions, Started
from autotune.importing.reading import imported_command
from autotune.importing.recipe import Imported
from autotune.importing.scripts import program_end
from tests.draws import few
from tests.rows import filled
from tests.trainer.recipe import tuned_recipes
from trainer.frameworks.megatron_lm.model import model_words
from trainer.launch_scripts.launchers import peel, sizes, slurm_sizes
from trainer.recipe import Recipe
from trainer.recipe.identity import effective
from trainer.recipe.knobs import KNOBS

# knob -> why its value differs after export and import
NOT_THE_SAME = {
    "fp8_dot_product_attention": "Megatron-LM has no flag for it",
    "store_param_remainders": "Megatron-LM has no flag for it",
    "use_te_rng_tracker": "Megatron-LM switches it on beside graphs of Transformer Engine",
    "CUDA_DEVICE_MAX_CONNECTIONS": "the export writes the 1 that Megatron-LM demands",
    "cuda_graph_impl": "a graph of the whole iteration has a word of its own since 0.18",
    "cuda_graph_scope": "a graph of the whole iteration has a word of its own since 0.18",
    "reuse_grad_buf_for_mxfp8_param_ag": "Megatron-LM switches it off beside Megatron FSDP",
    "grad_reduce_in_fp32": "with --main-grads-dtype bf16 Megatron-LM does not reduce in fp32 by itself",
}


# Fields that come back spelled otherwise, or that no override sets
SAID_OTHERWISE = {
    "overlap_param_gather_with_optimizer_step": "Megatron-Bridge has no path for it outside comm_overlap",
    "moe_hybridep_num_sms_preprocessing": "108 is what Megatron-Core takes where it is not set",
    "cuda_graph_impl": "a graph of the whole iteration is an implementation in newer versions, a scope in older ones",
    "cuda_graph_scope": "the same",
}


def as_given(recipe: Recipe, like: Recipe) -> Recipe:
    """Returns the imported recipe with the settings that no launch file holds."""
    data = recipe.model_dump() | {"burst": like.burst.model_dump(), "trainer": None, "tune": like.tune.model_dump()}
    return Recipe.model_validate(data)


STUB = "#!/bin/bash\nprintf '%s\\0' ${0##*/} \"$@\"; printf '\\1\\0'; exec /usr/bin/env -0\n"


def started(text: str, folder: Path) -> Started:
    """Returns what bash starts of an exported script; launchers are stubs that print arguments and variables."""
    stubs = (folder / "bin" / "torchrun", folder / "scripts" / "training" / "train.sh")
    for stub in () if stubs[0].exists() else stubs:
        stub.parent.mkdir(parents=True)
        stub.write_text(STUB)
        stub.chmod(0o755)
    env = {"PATH": f"{stubs[0].parent}:/usr/bin:/bin", "RECIPE": "qwen3_30b_a3b_config"}
    done = subprocess.run(["bash", "-c", text], cwd=folder, env=env, capture_output=True, text=True, check=True)
    words, _, variables = done.stdout.partition("\1\0")
    command = words.split("\0")[:-1]
    start = peel(command)
    behind = [*(start.python or "").split(), *(command[at] for at in start.command)]
    split = program_end(behind)
    own = dict(pair.split("=", 1) for pair in variables.split("\0") if pair)
    return Started(
        program=tuple(behind[:split]),
        argv=tuple(behind[split:]),
        env={name: value for name, value in own.items() if name not in (*env, "PWD", "SHLVL", "_", "OLDPWD")},
        sizes=slurm_sizes(command) if command[0] == "train.sh" else sizes(start.peeled),
    )


def imported(text: str, folder: Path, asked: ImportOptions) -> Imported:
    return imported_command(started(text, folder), asked, "an export")


SOME = (slice(0, None, 16), slice(8, None, 16), slice(1, None, 4))  # rows of the tuned recipes


@pytest.mark.parametrize("some", few(SOME, 1), ids=str)
def test_an_import_of_an_export_is_the_recipe_again(some: slice, tmp_path: Path) -> None:
    for row in filled(tuned_recipes.rows()[some]):
        recipe = tuned_recipes.recipe_of_row(row)
        given = {"vocab_size": str(recipe.architecture.vocab_size)}
        asked = ImportOptions(file="x.sh", gpu=recipe.cluster.gpu_name, nodes=recipe.cluster.nodes, given=given)
        again = imported(export(recipe, "megatron-lm"), tmp_path, asked)
        found = as_given(again.recipe, recipe)
        moved = {name for name in KNOBS if effective(recipe, name) != effective(found, name)}
        assert moved <= NOT_THE_SAME.keys(), (row["id"], moved)
        assert model_words(found.architecture) == model_words(recipe.architecture), row["id"]
        assert found.digest() == recipe.digest() or moved, row["id"]


@pytest.mark.parametrize("some", few(SOME, 1), ids=str)
def test_an_import_of_bridge_overrides_has_the_same_knobs(some: slice, tmp_path: Path) -> None:
    for row in filled(tuned_recipes.rows()[some]):
        recipe = tuned_recipes.recipe_of_row(row)
        asked = ImportOptions(file="x.sh", gpu=recipe.cluster.gpu_name)
        again = imported(export(recipe, "megatron-bridge"), tmp_path, asked)
        found = as_given(again.recipe, recipe).model_copy(update={"model": recipe.model})
        moved = {name for name in KNOBS if effective(recipe, name) != effective(found, name)}
        assert moved <= SAID_OTHERWISE.keys(), (row["id"], moved)
        assert found.cluster == recipe.cluster
