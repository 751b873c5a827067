"""Checks what a proxy changes in the user's own command: layers, pipeline and batch, and nothing of data or state."""

from __future__ import annotations

from pathlib import Path

from trainer.fidelity import Fidelity, at_fidelity
from trainer.frameworks import framework_named
from trainer.frameworks.bounds import bounds_of
from trainer.frameworks.burst import BurstRequest
from trainer.launch_scripts.argv import split
from trainer.recipe import Recipe

COMMAND = (
    *("python", "pretrain_gpt.py", "--num-layers", "48", "--pipeline-model-parallel-size", "4"),
    *("--decoder-first-pipeline-num-layers", "12", "--global-batch-size", "512", "--micro-batch-size", "1"),
    *("--data-path", "/data/corpus", "--tokenizer-model", "/data/tokenizer", "--lr", "1e-4"),
    *("--save", "/checkpoints/run", "--load", "/checkpoints/run", "--save-interval", "100"),
)
TARGET = Recipe.model_validate(
    {
        "name": "theirs",
        "model": "qwen3-30b-a3b",
        "cluster": {"gpu": "h100", "nodes": 8},
        "training": {"global_batch_size": 512},
        "parallelism": {"pipeline_model_parallel_size": 4, "expert_model_parallel_size": 8},
        "knobs": {"moe_grouped_gemm": True, "use_distributed_optimizer": True},
        "burst": {"engine": "command"},
        "trainer": {"kind": "megatron-lm", "command": COMMAND},
    }
)


def words_of(recipe: Recipe, folder: Path) -> dict[str, tuple[str, ...]]:
    assert recipe.trainer is not None
    request = BurstRequest(recipe=recipe, trainer=recipe.trainer, bounds=bounds_of(recipe), ranks=(0,), folder=folder)
    return {str(each.flag): each.values for each in split(framework_named("megatron-lm").burst_argv(request))}


def test_a_proxy_edits_layers_pipeline_and_batch_of_the_users_command(tmp_path: Path) -> None:
    proxy = at_fidelity(TARGET, Fidelity(nodes=2, layers=24))
    was, now = words_of(TARGET, tmp_path), words_of(proxy, tmp_path)
    assert (was["--num-layers"], now["--num-layers"]) == (("48",), ("24",))
    assert now["--pipeline-model-parallel-size"] == ("2",)
    assert (was["--global-batch-size"], now["--global-batch-size"]) == (("512",), ("256",))
    same = ("--micro-batch-size", "--expert-model-parallel-size", "--data-path", "--tokenizer-model", "--lr")
    assert [now[flag] for flag in same] == [was[flag] for flag in same]
    assert not {"--save", "--load", "--save-interval"} & now.keys()


def test_one_stage_alone_takes_the_split_of_the_pipeline_out_of_the_command(tmp_path: Path) -> None:
    proxy = at_fidelity(TARGET, Fidelity(nodes=1, layers=12))
    now = words_of(proxy, tmp_path)
    assert now["--pipeline-model-parallel-size"] == ("1",)
    assert "--decoder-first-pipeline-num-layers" not in now
