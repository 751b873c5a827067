"""Exports: everything of a recipe is expressed or listed as not expressed, and the shell reads back what was
written."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotune.export import export, targets
from tests.places import FACTS
from trainer.errors import BadInputError
from trainer.frameworks.megatron_bridge.precision import FORMATS
from trainer.frameworks.megatron_lm.model import model_spellings
from trainer.frameworks.megatron_lm.spelling import PRECISIONS
from trainer.recipe import Recipe, load_recipe
from trainer.recipe.architecture import Architecture
from trainer.recipe.knobs import KNOBS

BASH = shutil.which("bash")

DEEPSEEK: dict[str, Any] = {
    "name": "deepseek-v3-1024xh100",
    "model": "deepseek-v3",
    "cluster": {"gpu": "h100", "nodes": 128},
    "training": {"global_batch_size": 8192, "precision": "fp8_blockwise"},
    "parallelism": {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 8,
        "virtual_pipeline_model_parallel_size": 4,
        "expert_model_parallel_size": 64,
        "expert_tensor_parallel_size": 1,
    },
    "knobs": {
        "sequence_parallel": True,
        "recompute_granularity": "selective",
        "recompute_modules": ["mla_up_proj", "mlp"],
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "use_precision_aware_optimizer": True,
        "exp_avg_dtype": "bfloat16",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    },
}


def recipe(**knobs: Any) -> Recipe:
    return Recipe.model_validate(DEEPSEEK).replace(knobs)


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("given", ["cpu-moe", "deepseek"])
def test_every_target_writes_every_recipe_the_same_each_time(target: str, given: str) -> None:
    exported = load_recipe(given) if given == "cpu-moe" else recipe()
    assert export(exported, target) == export(exported, target)
    assert export(exported, target).endswith("\n")


def test_yaml_reads_back_to_the_same_recipe(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(export(recipe(), "yaml"))
    assert load_recipe(str(path)) == recipe()


SAID_AS = {
    "precision": "--bf16 --fp8-format e4m3 --fp8-recipe blockwise",
    "threads_per_rank": "export OMP_NUM_THREADS=1",
    "overlap_p2p_comm": "--no-overlap-p2p-communication",
    "align_param_gather": "--no-align-param-gather",
}


@pytest.mark.parametrize("name", [name for name, knob in KNOBS.items() if knob.acts != "environment"])
def test_every_knob_is_written_or_named_in_a_comment(name: str) -> None:
    text = export(recipe(), "megatron-lm")
    words = [SAID_AS[name]] if name in SAID_AS else [name, KNOBS[name].megatron_lm or name]
    assert any(re.search(rf"{re.escape(word)}\b", text) for word in words)


def test_environment_variables_with_a_value_are_exported() -> None:
    text = export(recipe(CUDA_DEVICE_MAX_CONNECTIONS=1), "megatron-lm")
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" in text
    assert "NCCL_GRAPH_REGISTER" not in text


def test_a_value_without_a_flag_is_said_to_be_lost() -> None:
    text = export(recipe(fp8_dot_product_attention=True, cpu_affinity="spread"), "megatron-lm")
    assert "# NOT EXPRESSED: fp8_dot_product_attention: true (it has no flag)" in text
    assert "# NOT EXPRESSED: cpu_affinity: spread (it has no flag)" in text
    assert "NOT EXPRESSED" not in export(recipe(), "megatron-lm")


def test_flags_that_switch_off_stand_for_what_is_off() -> None:
    off, on = (
        export(recipe(), "megatron-lm"),
        export(recipe(overlap_p2p_comm=True, align_param_gather=True), "megatron-lm"),
    )
    for flag in ("--no-overlap-p2p-communication", "--no-align-param-gather"):
        assert flag in off
        assert flag not in on
    assert "--grad-reduce-in-bf16" in export(recipe(grad_reduce_in_fp32=False), "megatron-lm")
    assert "--exp-avg-dtype bf16" in off


def test_a_pipeline_layout_takes_the_place_of_virtual_stages() -> None:
    text = export(recipe(pipeline_model_parallel_layout="Et*3|(tt|)*29m|L"), "megatron-lm")
    assert "--pipeline-model-parallel-layout 'Et*3|(tt|)*29m|L'" in text
    assert "--num-virtual-stages-per-pipeline-rank" not in text


def test_knobs_without_effect_are_not_written() -> None:
    text = export(recipe(recompute_granularity=None), "megatron-lm")
    assert "--recompute-modules" not in text
    assert re.search(r"# Not written, without effect[^\n]*(\n#  [^\n]*)*recompute_modules", text)


@pytest.mark.skipif(BASH is None, reason="no bash on this machine")
def test_the_shell_gets_each_argument_whole(tmp_path: Path) -> None:
    hostile = "a'b $(touch owned) `x`"
    text = export(recipe(PYTORCH_CUDA_ALLOC_CONF=hostile, pipeline_model_parallel_layout=hostile), "megatron-lm")
    script = tmp_path / "run.sh"
    script.write_text('torchrun() { printf "%s\\0" "$@" "$PYTORCH_CUDA_ALLOC_CONF"; }\n' + text)
    assert BASH is not None
    done = subprocess.run([BASH, "-eu", str(script), "--lr", "1e-4"], capture_output=True, text=True, cwd=tmp_path,
                          env={"NODE_RANK": "0", "MASTER_ADDR": "here", "MASTER_PORT": "1"}, check=True)  # fmt: skip
    words = done.stdout.split("\0")[:-1]
    assert words[words.index("--pipeline-model-parallel-layout") + 1] == hostile
    assert words[-1] == hostile
    assert words[words.index("--recompute-modules") + 1 :][:2] == ["mla_up_proj", "mlp"]
    assert words[-3:-1] == ["--lr", "1e-4"]
    assert not (tmp_path / "owned").exists()


@pytest.mark.skipif(BASH is None, reason="no bash on this machine")
@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge", "slurm"])
def test_a_name_with_a_line_break_stays_in_its_comment(target: str, tmp_path: Path) -> None:
    named = Recipe.model_validate(DEEPSEEK).model_copy(update={"name": "x\ntouch owned"})  # unchecked
    text = export(named, target)
    assert "\ntouch" not in text
    assert BASH is not None
    subprocess.run([BASH, "-n"], input=text, text=True, check=True)


def test_flags_are_spelled_as_real_megatron_lm_runs_spell_them() -> None:
    """Each flag of the export is one that Megatron-LM's functional tests use for MoE models, except torchrun's and five
    rare ones."""
    with (FACTS / "golden_runs.csv").open(newline="") as table:
        used = {flag for row in csv.DictReader(table) for flag in json.loads(row["model_args"] or "{}")}
    code = [line for line in export(recipe(), "megatron-lm").splitlines() if not line.startswith("#")]
    ours = {word for line in code for word in line.split() if word.startswith("--")}
    launch = {"--nnodes", "--nproc-per-node", "--local-addr", "--node-rank", "--master-addr", "--master-port"}
    # in arguments.py, but in no functional test
    rare = {
        "--rope-type",
        "--no-overlap-p2p-communication",
        "--no-align-param-gather",
        "--use-precision-aware-optimizer",
        "--no-create-attention-mask-in-dataloader",
    }
    assert ours - used - launch <= rare


def test_every_field_of_the_architecture_is_spelled() -> None:
    spelled = {spelling.name: spelling for spelling in model_spellings(recipe())}
    assert set(spelled) == set(Architecture.model_fields)
    text = export(recipe(), "megatron-lm")
    for words in (
        "--moe-router-topk 8",
        "--rope-type yarn",
        "--rotary-scaling-factor 40",
        "--moe-router-topk-scaling-factor 2.5",
        "--init-method-std 0.006",
        "--swiglu",
        "--disable-bias-linear",
    ):
        assert f"  {words}" in text
    assert "--group-query-attention --num-query-groups 4" in export(load_qwen(), "megatron-lm")


def load_qwen() -> Recipe:
    return Recipe.model_validate({"name": "qwen", "model": "qwen3-30b-a3b", "cluster": {"gpu": "h100", "nodes": 2}})


def test_every_precision_is_spelled() -> None:
    names = KNOBS["precision"].domain.words
    assert set(PRECISIONS) == set(names)
    assert set(FORMATS) == set(names)


def test_an_unknown_target_names_the_nearest() -> None:
    with pytest.raises(BadInputError, match="did you mean megatron-lm"):
        export(recipe(), "megatron-ml")


def test_what_few_models_have_is_spelled_where_they_have_it() -> None:
    oss = Recipe.model_validate({"name": "oss", "model": "gpt-oss-20b", "cluster": {"gpu": "h100", "nodes": 2}})
    text = export(oss, "megatron-lm")
    assert "--softmax-type learnable" in text
    assert "--window-size 128,0" in text
    assert "--disable-bias-linear" not in text
    assert "--softmax-type" not in export(recipe(), "megatron-lm")


def test_an_export_of_an_imported_script_is_the_users_own_command_with_the_recipes_values(tmp_path: Path) -> None:
    mine = ["python", "pretrain_gpt.py", "--data-path", "/data/my tokens", "--save", "/ckpt", "--micro-batch-size", "8"]
    recipe = load_recipe("deepseek-v3-1024xh100")
    data = recipe.model_dump(mode="json", exclude_defaults=True)
    data["trainer"] = {"command": mine, "env": {"MY_TOKEN_FILE": "/home/me"}}
    own = Recipe.model_validate(data).replace({"micro_batch_size": 2})
    words = _words_of_array(export(own, "megatron-lm"), "COMMAND")
    assert words[:6] == ["python", "pretrain_gpt.py", "--data-path", "/data/my tokens", "--save", "/ckpt"]
    assert words[words.index("--micro-batch-size") + 1] == "2"
    assert words.count("--micro-batch-size") == 1


def _words_of_array(script: str, name: str) -> list[str]:
    inside = script.partition(f"{name}=(\n")[2].partition("\n)")[0]
    return [word for line in inside.splitlines() for word in shlex.split(line)]
