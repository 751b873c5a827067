"""Lines and configurations of Megatron-Bridge become recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from autotune.importing.found import ImportOptions
from autotune.importing.reading import imported
from tests.autotune.importing.starts import LAUNCH


def test_a_bridge_line_keeps_what_is_no_knob_and_says_what_it_cannot_know() -> None:
    made = imported(ImportOptions(file=str(LAUNCH / "bridge_line.sh"), gpu="b200"))
    recipe = made.recipe
    assert recipe.trainer is not None
    assert (recipe.model, recipe.trainer.kind) == ("qwen3-30b-a3b", "megatron-bridge")
    assert recipe.training.model_dump() == {
        "seq_length": 8192,
        "global_batch_size": 512,
        "micro_batch_size": 2,
        "precision": "mxfp8",
    }
    assert recipe.knob("recompute_modules") == ("core_attn", "moe_act")
    assert recipe.trainer.command[-5:] == (
        "--recipe",
        "qwen3_30b_a3b_pretrain_config",
        "checkpoint.save=/ckpt/run",
        "logger.log_interval=1",
        "dataset.blend=[[/data/a],null]",
    )
    assert any("is not known here" in note for note in made.found.notes)


def test_a_bridge_configuration_is_read_whole(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "_target_": "megatron.bridge.training.config.ConfigContainer",
        "model": {
            "_target_": "megatron.bridge.models.GPTModelProvider",
            "num_layers": 4,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "vocab_size": 512,
            "num_moe_experts": 8,
            "moe_layer_freq": [0, 1, 1, 1],
            "gated_linear_unit": True,
            "activation_func": {"_target_": "torch.nn.functional.silu", "_call_": False},
            "normalization": "RMSNorm",
            "expert_model_parallel_size": 4,
            "moe_token_dispatcher_type": "alltoall",
            "rotary_base": 500000,
            "bf16": True,
        },
        "train": {"global_batch_size": 64, "micro_batch_size": 2},
        "dataset": {"seq_length": 2048},
        "optimizer": {
            "exp_avg_dtype": {"_target_": "torch.bfloat16", "_call_": False},
            "use_precision_aware_optimizer": True,
        },
        "ddp": {"use_distributed_optimizer": True, "overlap_grad_reduce": True},
        "mixed_precision": {"bf16": True, "fp8": "e4m3", "fp8_recipe": "mxfp8"},
    }
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    made = imported(ImportOptions(file=str(file), gpu="b200", nodes=1))
    recipe = made.recipe
    assert recipe.architecture.moe_layer_freq == (0, 1, 1, 1)
    assert recipe.architecture.rotary_base == 500000.0
    assert (recipe.training.precision, recipe.training.global_batch_size, recipe.training.seq_length) == (
        "mxfp8",
        64,
        2048,
    )
    assert recipe.knob("exp_avg_dtype") == "bfloat16"
    assert recipe.knob("use_distributed_optimizer") is True
    assert (recipe.trainer, recipe.burst.engine) == (None, "megatron")
