"""Finds the knobs of a published run: from its row, and where that has none, from NVIDIA's current recipe.

That recipe is the nearest in layout for the same model, GPU and precision (tuned_recipes.json), without features that
the run's release lacked: before NeMo 26.06 no recipe captured whole iterations or ran attention in FP8, and none
overlapped dispatch on NVL72 (arXiv 2603.07685, app. B.2). The steps of NVIDIA's GB200 guide are identified by their
notes.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.places import data_file
from tests.trainer.recipe.tuned_recipes import knobs_of, split_of
from trainer.recipe.architecture import Architecture
from trainer.recipe.hardware import known_hardware
from trainer.recipe.knobs import KNOBS

# model_key of a published run -> model of tuned_recipes.json, where they differ
TUNED_NAMES = {
    "qwen3-30b-a3b": "qwen3_30b_a3b",
    "qwen35_35b_a3b": "qwen35_text_35b_a3b",
}
TUNED_PRECISIONS = {"fp8_current": "fp8_cs", "mxfp8": "fp8_mx", "bf16": "bf16", "nvfp4": "nvfp4"}
# values of pipeline_model_parallel_layout for DeepSeek-V3 in NVIDIA's recipes, by (stages, with MTP layer): printed for
# 16, and in the GB200 guide for 32; tuned_recipes.json has none for 4 or 8
DEEPSEEK_STAGES = {
    (4, True): "Et*16|(t*16|)*2t*13mL",
    (8, True): "Et*8|(t*8|)*6t*5mL",
    (16, True): "Et*4|(t*4|)*14tmL",
    (32, True): "Et*3|(tt|)*29m|L",
    (8, False): "Et*8|(t*8|)*6t*5L",
    (16, False): "Et*4|(t*4|)*14tL",
    (32, False): "Et|(tt|)*30L",
}
# Megatron-Bridge, scripts/performance/configs/nemotronh/nemotronh_workload_base_configs.py: attention on Blackwell only
_MAMBA: dict[str, Any] = {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ("mamba",)}
HYBRID_GRAPHS: dict[tuple[str, str], dict[str, Any]] = {
    ("nemotronh_56b", "h100"): _MAMBA,
    ("nemotronh_56b", "gb200"): _MAMBA | {"cuda_graph_scope": ("mamba", "attn")},
    ("nemotronh_56b", "gb300"): _MAMBA | {"cuda_graph_scope": ("mamba", "attn")},
}
# Cumulative steps of NVIDIA's GB200 guide, by the word in the row's note -> what it set. The guide names the baseline.
GUIDE_START: dict[str, Any] = {
    "moe_token_dispatcher_type": "alltoall",
    "cuda_graph_impl": "none",
    "cuda_graph_scope": None,
    "moe_permute_fusion": False,
    "moe_router_fusion": False,
    "overlap_moe_expert_parallel_comm": False,
    "recompute_granularity": "selective",
    "recompute_modules": ("mla_up_proj", "mlp", "moe_act"),
    "pipeline_model_parallel_layout": "Et|(tt|)*30L",
    "cpu_affinity": "none",
}
GUIDE_STEPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fuse torch.zeros", {"moe_permute_fusion": True}),
    ("router fusion", {"moe_router_fusion": True}),
    ("DeepEP", {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}),
    ("remove up_proj", {"recompute_modules": ("mlp", "moe_act")}),
    ("CUDA graphs", {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ("attn", "moe_router")}),
    ("tune DeepEP", {}),
    ("CPU bindpcie", {"cpu_affinity": "spread"}),
    ("PDL", {}),
    ("CUDA graph for shared", {"cuda_graph_scope": ("attn", "moe_router", "moe_preprocess")}),
    ("HybridEP", {"moe_flex_dispatcher_backend": "hybridep"}),
    ("CPU optimisation", {}),
    ("norm+quant", {}),
)


_WORDS = {
    "norm": "layernorm",
    "act": "moe_act",
    "layernorm": "layernorm",
    "moe_act": "moe_act",
    "mla_up_proj": "mla_up_proj",
    "mlp": "mlp",
    "moe": "moe",
    "core_attn": "core_attn",
    "shared_experts": "shared_experts",
    "shared_expert": "shared_experts",
}


@cache
def _tuned(facts: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(data_file("tuned_recipes.json", folder=facts).read_text(encoding="utf-8"))
    return [row for row in rows if row.get("dispatcher") and "dev" not in row["id"] and "fsdp" not in row["id"]]


def _current(row: dict[str, str], precision: str, sizes: dict[str, int], facts: Path) -> dict[str, Any]:
    """Returns the knobs of NVIDIA's current recipe for this model, GPU and precision (any precision if there is none)
    that is nearest in layout; {} without a recipe."""
    fp8 = "fp8_cs" if precision.startswith("fp8") else TUNED_PRECISIONS.get(precision, precision)
    key = TUNED_NAMES.get(row["model_key"], row["model_key"])
    same = [tuned for tuned in _tuned(facts) if (tuned["model"], tuned["gpu"]) == (key, row["gpu"])]
    same = [tuned for tuned in same if tuned["precision"] == fp8] or same
    if not same:
        return {}

    def distance(tuned: dict[str, Any]) -> int:
        return sum((tuned["parallelism"][name] or 1) != sizes[name] for name in ("tp", "pp", "ep"))

    return knobs_of(min(same, key=distance))


def published_knobs(
    row: dict[str, str], name: str, model: Architecture, precision: str, sizes: dict[str, int], facts: Path
) -> dict[str, Any]:
    """Returns the knobs of a row of published_runs.csv. `name`: our preset; `sizes`: tp, pp, cp, vp, ep."""
    if model.num_moe_experts is None:
        knobs: dict[str, Any] = {"cpu_affinity": "spread"} | HYBRID_GRAPHS.get((name, row["gpu"]), {})
    else:
        knobs = {"moe_permute_fusion": True, "moe_router_fusion": True, "cpu_affinity": "spread"}
        knobs |= _current(row, precision, sizes, facts)
        knobs["moe_router_force_load_balancing"] = "natural" not in row["routing"]
        knobs["moe_grouped_gemm"] = True
    knobs["sequence_parallel"] = sizes["tp"] > 1
    knobs["grad_reduce_in_fp32"] = False  # set in all of NVIDIA's performance recipes
    knobs |= {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}
    knobs["tp_comm_overlap"] = sizes["tp"] > 1
    knobs["cross_entropy_loss_fusion"] = True
    knobs["fp8_param_gather"] = precision != "bf16"
    if row["release"] not in ("26.06", "card", "branch"):
        knobs["fp8_dot_product_attention"] = False
        if knobs.get("cuda_graph_impl") == "full_iteration":
            knobs |= {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ("attn", "moe_router")}
        if known_hardware()[row["gpu"]].is_rack_scale:
            knobs["overlap_moe_expert_parallel_comm"] = False
    if not knobs.get("recompute_modules"):  # an empty list in that recipe; no list would mean core attention
        knobs["recompute_granularity"] = None
    knobs |= _recorded(row)
    if row["fsdp"] not in ("", "0"):
        knobs |= {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
    split_sizes = {"pp": sizes["pp"], "vp": sizes["vp"], "pp_layout": knobs.get("pipeline_model_parallel_layout")}
    if name == "deepseek-v3" and not split_sizes["pp_layout"]:
        split_sizes["pp_layout"] = DEEPSEEK_STAGES.get((sizes["pp"] * sizes["vp"], bool(model.mtp_num_layers)))
    knobs |= split_of(model.num_layers, model.mtp_num_layers or 0, name, split_sizes)
    knobs["overlap_p2p_comm"] = sizes["pp"] > 1 and sizes["vp"] > 1  # as Megatron-Bridge's comm_overlap.py sets it
    if knobs.get("overlap_moe_expert_parallel_comm") and sizes["pp"] > 1 and sizes["vp"] < 2:
        knobs["overlap_moe_expert_parallel_comm"] = False
    return {name: value for name, value in knobs.items() if name in KNOBS and value is not None}


def _recorded(row: dict[str, str]) -> dict[str, Any]:
    """Returns the knobs that the row itself has."""
    found: dict[str, Any] = {}
    if row["release"] == "mcore-doc":
        found |= _guide(row["notes"])
    if row["dispatcher"]:
        kind = "alltoall" if row["dispatcher"] == "alltoall" else "flex"
        found["moe_token_dispatcher_type"] = kind
        if kind == "flex":
            found["moe_flex_dispatcher_backend"] = row["dispatcher"]
    if row["a2a_overlap"]:
        found["overlap_moe_expert_parallel_comm"] = row["a2a_overlap"] != "0"
    elif row["release"] == "zoo":
        found["overlap_moe_expert_parallel_comm"] = "1f1b overlap" in row["notes"]
    if row["recompute"]:
        found |= _recompute(row["recompute"])
    if "full_iteration" in row["cuda_graph"]:
        found["cuda_graph_impl"] = "full_iteration"
    elif row["cuda_graph"]:
        found |= {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ("attn", "moe_router")}
    elif row["release"] == "zoo":
        found["cuda_graph_impl"] = "none"
    if "token-drop" in row["routing"]:
        found |= {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}
        found["moe_token_dispatcher_type"] = "alltoall"  # the only dispatcher with which Megatron-Bridge drops tokens
    return found


def _recompute(text: str) -> dict[str, Any]:
    if text == "full":
        return {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
            "recompute_modules": None,
        }
    modules = tuple(dict.fromkeys(_WORDS[word] for word in re.findall(r"\w+", text) if word in _WORDS))
    return {"recompute_granularity": "selective" if modules else None, "recompute_modules": modules or None}


def _guide(note: str) -> dict[str, Any]:
    """Returns the knobs after the guide's step that the note names, earlier steps included."""
    knobs = dict(GUIDE_START)
    word = note.partition("+")[2]
    if word.startswith("baseline"):
        return knobs
    for name, changes in GUIDE_STEPS:
        knobs |= changes
        if word.lower().startswith(name.lower()):
            return knobs
    return knobs
