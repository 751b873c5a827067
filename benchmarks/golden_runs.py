"""Reads Megatron-LM's functional tests on real GPUs as recipes: the calibration data of the memory estimate.

A row of `golden_runs.csv` is a test case on one platform with its command line. Flags that a recipe does not have and
memory does not depend on (data, checkpoints, learning rates) are left out; rows of unsupported models are left out with
the reason, which the benchmark prints and counts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.places import table_rows
from trainer.recipe import Recipe
from trainer.recipe.architecture import Architecture
from trainer.recipe.identity import NUMBERS_ONLY
from trainer.recipe.knobs import KNOBS
from trainer.recipe.models import parse_layer_freq

GPT2_VOCABULARY = 50257  # vocabulary size of rows that name a BPE vocabulary file
GPUS = {"dgx_h100": "h100", "dgx_h100_2nd": "h100", "dgxh100_dgxc": "h100", "dgx_gb200": "gb200"}
PRECISIONS = {"tensorwise": "fp8_current", "delayed": "fp8_delayed", "blockwise": "fp8_blockwise", "mxfp8": "mxfp8"}
AMPERE = ("dgx_a100", "")  # rows without a platform equal those of A100
# Transformer Engine's workspace of a stream is 4 MiB on A100 and 32 MiB on the estimated GPUs
AMPERE_LESS_BYTES = 28 * 2**20
GROUPED_STREAMS = 4
KINDS = ("gpt", "moe", "hybrid", "nemotron")
RENAMED = {  # Megatron-LM's flag -> the knob's name
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "ddp_average_in_collective": "average_in_collective",
    "cuda_graph_modules": "cuda_graph_scope",
    "microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage",
}


@dataclass(frozen=True, kw_only=True)
class GoldenRun:
    """One measured row.

    `recipe` is None if `left_out` gives a reason. Bytes are of torch's allocator on the logging rank, in the last
    pipeline stage; A100 runs get the larger workspaces of the estimated GPUs, and the attention masks of Megatron-LM's
    data loader are subtracted.
    """

    case: str  # a test case on any platform and environment
    platform: str
    recipe: Recipe | None
    left_out: str
    peak_bytes: float
    resting_bytes: float

    @property
    def is_moe(self) -> bool:
        return self.recipe is not None and self.recipe.architecture.num_moe_experts is not None

    @property
    def family(self) -> str:
        """Returns the kind of model: hybrid, MLA, MoE or dense."""
        model = self.recipe.architecture if self.recipe else None
        if model and model.hybrid is not None:
            return "hybrid"
        if model and model.multi_latent_attention:
            return "MLA"
        return "MoE" if self.is_moe else "dense"


def golden_runs(path: Path) -> Iterator[GoldenRun]:
    for row in table_rows(path):
        flags = {name.removeprefix("--").replace("-", "_"): v for name, v in json.loads(row["model_args"]).items()}
        left_out = _left_out(row, flags)
        correction = 0.0 if left_out else _smaller_workspaces(row["platform"], flags) - _masks(flags)
        yield GoldenRun(
            case=row["test_case"].removesuffix("_1node").removesuffix("_dp_last"),
            platform=row["platform"],
            recipe=None if left_out else _recipe(row, flags),
            left_out=left_out,
            peak_bytes=float(row["max_mem_allocated_bytes"]) + correction,
            resting_bytes=float(row["last_mem_allocated_bytes"]) + correction,
        )


def _left_out(row: dict[str, str], flags: dict[str, Any]) -> str:
    """Returns the reason why a row cannot be used; "" if it can."""
    if row["test_suite"] not in KINDS:
        return f"{row['test_suite']} model"
    if "flextron" in flags:
        return "flexible widths"
    if "perform_rl_step" in flags or "grpo" in row["test_case"]:
        return "reinforcement learning, with an inference engine beside"
    if flags.get("optimizer", "adam") != "adam":
        return f"optimizer {flags['optimizer']}"
    if "defer_embedding_wgrad_compute" in flags:
        return "the embedding's weight gradient is deferred, which keeps its inputs"
    if "fp8_format" in flags and "bf16" not in flags:
        return "FP8 over fp32 weights"
    if "fp16" in flags:
        return "trains in fp16"
    return ""


def _smaller_workspaces(platform: str, flags: dict[str, Any]) -> float:
    if platform not in AMPERE or (flags.get("transformer_impl") == "local" and "num_experts" not in flags):
        return 0.0
    return AMPERE_LESS_BYTES * (1.0 + GROUPED_STREAMS * bool(flags.get("moe_grouped_gemm")))


def _masks(flags: dict[str, Any]) -> float:
    """Returns bytes of the attention masks that Megatron-LM's data loader makes by default, one per model chunk;
    recipes do not have them."""
    if "no_create_attention_mask_in_dataloader" in flags:
        return 0.0
    chunks = _parallelism(flags)["virtual_pipeline_model_parallel_size"] or 1
    return float(chunks * flags["micro_batch_size"] * flags["seq_length"] ** 2)


def _recipe(row: dict[str, str], flags: dict[str, Any]) -> Recipe:
    gpu = GPUS.get(row["platform"], "h100")
    each = int(row["gpus_per_node"])
    return Recipe.model_validate(
        {
            "name": f"{row['test_case']}-{row['env']}-{row['platform']}",
            "model": _architecture(flags),
            "cluster": {
                "gpu": gpu,
                "nodes": int(row["num_gpus"]) // min(each, int(row["num_gpus"])),
                "gpus_per_node": each,
            },
            "training": {
                "seq_length": flags["seq_length"],
                "global_batch_size": flags["global_batch_size"],
                "micro_batch_size": flags["micro_batch_size"],
                "precision": _precision(flags),
            },
            "parallelism": _parallelism(flags),
            "knobs": _knobs(flags),
        }
    )


def _architecture(flags: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in flags.items() if name in Architecture.model_fields.keys() - NUMBERS_ONLY}
    fields.pop("make_vocab_size_divisible_by", None)
    tp = flags.get("tensor_model_parallel_size", 1)
    multiple = flags.get("make_vocab_size_divisible_by", 128) * tp
    rope = flags.get("position_embedding_type") == "rope" or flags.get("use_rotary_position_embeddings")
    if experts := flags.get("num_experts"):
        fields["num_moe_experts"] = experts
        fields["moe_layer_freq"] = parse_layer_freq(str(flags.get("moe_layer_freq", "all")).strip("()"))
    pattern = flags.get("hybrid_layer_pattern") or flags.get("hybrid_override_pattern")
    if pattern:
        letters = pattern.split("/")[0].replace("|", "")  # the rest of the pattern is MTP layers
        fields |= {"hybrid": letters, "num_layers": len(letters)}
        fields["moe_layer_freq"] = tuple(int(letter == "E") for letter in letters)
    if not fields.get("multi_latent_attention"):
        for name in ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"):
            fields.pop(name, None)
    if not flags.get("group_query_attention"):
        fields.pop("num_query_groups", None)
    return fields | {
        "vocab_size": math.ceil(flags.get("vocab_size", GPT2_VOCABULARY) / multiple) * multiple,
        "gated_linear_unit": bool(flags.get("swiglu")),
        "untie_embeddings_and_output_weights": bool(flags.get("untie_embeddings_and_output_weights")),
        "add_bias_linear": not flags.get("disable_bias_linear", False),
        "normalization": flags.get("normalization", "LayerNorm"),
        "position_embedding_type": "rope" if rope else flags.get("position_embedding_type", "learned_absolute"),
        "hidden_dropout": flags.get("hidden_dropout", 0.1),
        "attention_dropout": flags.get("attention_dropout", 0.1),
    }


def _precision(flags: dict[str, Any]) -> str:
    if "fp8_format" in flags:
        return PRECISIONS[flags.get("fp8_recipe", "delayed")]
    return "bf16" if flags.get("bf16") or flags.get("fp16") else "fp32"


def _parallelism(flags: dict[str, Any]) -> dict[str, Any]:
    tp, pp = flags.get("tensor_model_parallel_size", 1), flags.get("pipeline_model_parallel_size", 1)
    vpp = flags.get("num_virtual_stages_per_pipeline_rank")
    pattern = (flags.get("hybrid_layer_pattern") or "").split("/")[0]
    if "|" in pattern:
        vpp = len(pattern.split("|")) // pp
    if each := flags.get("num_layers_per_virtual_pipeline_stage"):
        vpp = flags["num_layers"] // pp // each
    return {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "context_parallel_size": flags.get("context_parallel_size", 1),
        "expert_model_parallel_size": flags.get("expert_model_parallel_size", 1),
        "expert_tensor_parallel_size": flags.get("expert_tensor_parallel_size"),
        "virtual_pipeline_model_parallel_size": vpp if vpp and vpp > 1 else None,
    }


def _knobs(flags: dict[str, Any]) -> dict[str, Any]:
    """Returns every flag that is a knob, and Megatron-LM's defaults where ours differ."""
    knobs: dict[str, Any] = {
        "moe_token_dispatcher_type": "allgather",
        "transformer_impl": "transformer_engine",
    }
    for flag, value in flags.items():
        name = RENAMED.get(flag, flag)
        if name in KNOBS and KNOBS[name].section == "knobs":
            knobs[name] = _value(name, value)
    knobs["sequence_parallel"] = bool(flags.get("sequence_parallel")) and flags.get("tensor_model_parallel_size", 1) > 1
    knobs["grad_reduce_in_fp32"] = not flags.get("grad_reduce_in_bf16", False) and bool(flags.get("bf16"))
    return knobs


def _value(name: str, value: Any) -> Any:
    kind = KNOBS[name].domain.kind
    if kind == "any":
        return tuple(re.findall(r"[\w]+", str(value)))
    if name.endswith("_dtype") and isinstance(value, str) and name != "moe_router_dtype":
        return {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}.get(value, value)
    return value
