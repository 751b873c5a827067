"""Turns rows of NVIDIA's table of tuned recipes into recipes, and says what that leaves out.

Left out: environment variables that are not knobs (tokenizers, caches, cuDNN switches). Filled in where the table is
silent: grouped GEMM, the distributed optimizer and an fp32 router, which all of these recipes use; one layer a
checkpoint of full recompute; the pipeline split, which Megatron-Bridge keeps elsewhere (`split_of`). Set as
Megatron-Bridge does: sequence parallel is off with TP 1 (R024). Dropped: recompute of `mhc`, which is DeepSeek-V4's
(here DeepSeek-V3 stands in for it), and the optimizer section's own copy of the overlaps, a default that never acts.
What the table has no column for and Megatron-Core requires with a setting is set with it (`unrecorded`).
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from tests.places import FACTS
from trainer.recipe.hardware import known_hardware
from trainer.recipe.knobs import KNOBS
from trainer.recipe.models import presets
from trainer.recipe.names import safe_name
from trainer.recipe.rules.examples import FUSED
from trainer.recipe.schema import Recipe


@cache
def rows() -> tuple[dict[str, Any], ...]:
    """Returns the table as collected."""
    return tuple(json.loads((FACTS / "tuned_recipes.json").read_text(encoding="utf-8")))


# The table's model -> a preset, and fields that differ. Vision-language recipes train the language model of that size;
# for the others a preset near the model stands in.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_vl_235b_a22b": ("qwen3-235b-a22b", {}),
    "qwen3_vl_30b_a3b": ("qwen3-30b-a3b", {}),
    "nemotron_3_nano": ("nemotron-3-nano-30b-a3b", {}),
    "nemotron_3_5_lightning": ("nemotron-3-nano-30b-a3b", {}),
    "nemotron_3_ultra": ("nemotron-3-nano-30b-a3b", {}),
    "qwen35_vl_35b_a3b": ("qwen3-next-80b-a3b", {"mtp_num_layers": None}),
    "qwen35_text_35b_a3b": ("qwen3-next-80b-a3b", {"mtp_num_layers": None}),
    "qwen35_vl_122b_a10b": ("qwen3-next-80b-a3b", {"mtp_num_layers": None}),
    "qwen35_vl_397b_a17b": ("qwen3-next-80b-a3b", {"mtp_num_layers": None, "num_layers": 60}),
    "deepseek_v4_flash": ("deepseek-v3", {}),
    "deepseek_v4_pro": ("deepseek-v3", {}),
    "deepseek-v3-proxy": ("deepseek-v3", {}),
    "mixtral-8x2b": ("mixtral-8x7b", {}),
}
GPUS = {"vr200": "gb300", None: "h100"}  # no row of ours; no GPU named
PRECISIONS = {
    "bf16": "bf16",
    "bf16 (default PR)": "bf16",
    None: "bf16",
    "fp8": "fp8_current",
    "fp8_cs": "fp8_current",
    "fp8_ds": "fp8_delayed",
    "fp8_sc": "fp8_blockwise",
    "fp8_mx": "mxfp8",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
}
SAME_NAME = ("overlap", "offload", "fp8", "optimizer")  # sections whose keys are Megatron's own


def recipe_of_row(row: dict[str, Any]) -> Recipe:
    name, fields = MODELS.get(row["model"].lower().lstrip("_"), (row["model"].lower().replace("_", "-"), {}))
    model = presets()[name].model_copy(update=fields)
    gpu = GPUS.get(row["gpu"], row["gpu"])
    each = known_hardware()[gpu].gpus_per_node
    sizes = row["parallelism"]
    split = split_of(model.num_layers, model.mtp_num_layers or 0, name, sizes)
    return Recipe.model_validate(
        {
            "name": safe_name(row["id"]),
            "model": model.model_dump(),
            "cluster": {"gpu": gpu, "nodes": row["num_gpus"] // each, "gpus_per_node": each},
            "training": {
                "seq_length": row["batch"].get("seq_len") or 4096,
                "global_batch_size": row["batch"]["gbs"],
                "micro_batch_size": row["batch"]["mbs"],
                "precision": PRECISIONS[row["precision"]],
            },
            "parallelism": {
                "tensor_model_parallel_size": sizes["tp"],
                "pipeline_model_parallel_size": sizes["pp"],
                "context_parallel_size": sizes["cp"],
                "expert_model_parallel_size": sizes["ep"],
                "expert_tensor_parallel_size": sizes["etp"],
                "virtual_pipeline_model_parallel_size": None
                if "pipeline_model_parallel_layout" in split
                else sizes["vp"],
            },
            "knobs": split | knobs_of(row),
            "burst": {"engine": "simulated" if model.hybrid else "megatron"},
        }
    )


def split_of(layers: int, mtp: int, model: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """Returns the recipe's own layout; if it has none and the layers do not divide, Qwen3-235B counts embedding and
    loss as layers, as its recipes do, and the others get an even layout."""
    stages = sizes["pp"] * (sizes["vp"] or 1)
    if layout := sizes.get("pp_layout"):
        letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
        text = (
            layout
            if isinstance(layout, str)
            else "|".join("".join(letters[part] for part in stage) for stage in layout)
        )
        return {"pipeline_model_parallel_layout": text}
    if layers % stages == 0:
        return {}
    if model == "qwen3-235b-a22b":
        return {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    counts = [layers // stages + (stage < layers % stages) for stage in range(stages)]
    return {"pipeline_model_parallel_layout": "E" + "|".join("t" * count for count in counts) + "m" * mtp + "L"}


def knobs_of(row: dict[str, Any]) -> dict[str, Any]:
    knobs: dict[str, Any] = {"moe_grouped_gemm": True, "moe_router_dtype": "fp32"}
    knobs["sequence_parallel"] = row["parallelism"]["tp"] > 1
    for section in SAME_NAME:
        for name, value in (row.get(section) or {}).items():
            if name in KNOBS and value is not None and name not in knobs:
                knobs[name] = value.removeprefix("torch.") if isinstance(value, str) else value
    knobs.setdefault("use_distributed_optimizer", True)
    recompute = {"num_layers": None} | (row.get("recompute") or {})
    recompute["modules"] = tuple(word for word in recompute.get("modules") or () if word != "mhc") or None
    if recompute.get("granularity") == "full":
        recompute["num_layers"] = recompute["num_layers"] or 1
    knobs |= {f"recompute_{name}": value for name, value in recompute.items()}
    knobs |= dispatcher_of(row.get("dispatcher")) | graphs_of(row.get("cuda_graph") or {})
    knobs |= environment_of(row.get("env_vars") or {})
    if row.get("variant") in ("fsdp", "hsdp"):
        knobs["use_megatron_fsdp"] = True
    return knobs | unrecorded(knobs)


def unrecorded(knobs: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that rows do not record: fused experts with a rank capacity or an offload of them (R126,
    R282), the bound on offloads with a graph of the whole iteration (R206)."""
    fused = bool(knobs.get("moe_expert_rank_capacity_factor")) or "fused_group_mlp" in (
        knobs.get("offload_modules") or ()
    )
    offloaded = knobs.get("fine_grained_activation_offloading") and knobs.get("cuda_graph_impl") == "full_iteration"
    found: dict[str, Any] = FUSED if fused else {}
    return found | ({"fine_grained_offloading_max_inflight_offloads": 1} if offloaded else {})


def dispatcher_of(written: dict[str, Any] | str | None) -> dict[str, Any]:
    if isinstance(written, str):
        word = re.split(r"\W", written, maxsplit=1)[0]
        kind = "alltoall" if word == "alltoall" else "flex"
        written = {"type": kind, "flex_backend": None if kind == "alltoall" else word}
    written = written or {}
    names = {
        "moe_token_dispatcher_type": "type",
        "moe_flex_dispatcher_backend": "flex_backend",
        "moe_hybridep_num_sms": "hybridep_num_sms",
        "moe_hybridep_num_sms_preprocessing": "hybridep_num_sms_preprocessing",
        "moe_permute_fusion_into_hybridep": "permute_fusion_into_hybridep",
        "moe_expert_rank_capacity_factor": "moe_expert_rank_capacity_factor",
    }
    return {ours: written[theirs] for ours, theirs in names.items() if written.get(theirs) is not None}


def graphs_of(written: dict[str, Any]) -> dict[str, Any]:
    impl = {None: "none", "external": "transformer_engine"}.get(written.get("impl"), written.get("impl"))
    scope = written.get("scope") or written.get("modules") or ()
    if scope == "full_iteration" and impl == "transformer_engine":
        impl, scope = "full_iteration", ()
    scope = (scope,) if isinstance(scope, str) else tuple(scope)
    knobs = {
        "cuda_graph_impl": impl,
        "cuda_graph_scope": scope,
        "use_te_rng_tracker": bool(written.get("te_rng")),
        "cuda_graph_warmup_steps": written.get("warmup_steps"),
    }
    return {name: value for name, value in knobs.items() if value is not None}


def environment_of(variables: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in variables.items() if name in KNOBS}
    return {name: value if KNOBS[name].domain.kind == "text" else int(value) for name, value in known.items()}
