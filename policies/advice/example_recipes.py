"""Example recipes in place of an unknown one, to which fixes are applied.

They differ in what is split and turned on, so that every fix of a wall can change one of them; splits that the traces
rule out are removed. Only the knobs that a fix changes are shown to the user; the sizes are not advice.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from policies.advice.job_properties import JobProperties
from trainer.recipe import Recipe
from trainer.recipe.load import recipe_from
from trainer.recipe.source import Source

_MODEL: dict[str, Any] = {
    "num_layers": 64,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "vocab_size": 131072,
    "num_moe_experts": 64,
    "moe_router_topk": 8,
    "moe_ffn_hidden_size": 1536,
    "moe_shared_expert_intermediate_size": 1536,
}
_FULL_RECOMPUTE: dict[str, Any] = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
_GPU: dict[str, Any] = {
    "model": _MODEL,
    "cluster": {"gpu": "h100", "nodes": 64},
    "training": {"seq_length": 8192, "global_batch_size": 1024, "micro_batch_size": 1},
    "tune": {"freeze": [], "allow": "numerics-changing"},
}
_ON_GPUS = (
    _GPU | {"parallelism": {"tp": 2, "pp": 4, "cp": 2, "ep": 16}, "knobs": {"sequence_parallel": True}},
    _GPU
    | {
        "parallelism": {"tp": 2, "pp": 4, "ep": 16, "etp": 2},
        "knobs": {"sequence_parallel": True} | _FULL_RECOMPUTE,
    },
    _GPU
    | {
        "training": _GPU["training"] | {"seq_length": 16384, "micro_batch_size": 2},
        "parallelism": {"pp": 4, "vpp": 4, "ep": 16},
        "knobs": {"use_distributed_optimizer": True, "overlap_p2p_comm": True, "moe_grouped_gemm": True},
    },
    _GPU
    | {
        "parallelism": {"ep": 16},
        "knobs": {
            "use_distributed_optimizer": True,
            "use_precision_aware_optimizer": True,
            "optimizer_cpu_offload": True,
            "optimizer_offload_fraction": 1.0,
            "overlap_moe_expert_parallel_comm": True,
            "moe_grouped_gemm": True,
        },
    },
)
_ON_CPUS = (
    {
        "model": _MODEL | {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 4},
        "cluster": {"gpu": "cpu", "nodes": 1, "gpus_per_node": 4},
        "training": {"seq_length": 128, "global_batch_size": 64, "micro_batch_size": 1, "precision": "fp32"},
        "parallelism": {"ep": 2},
        "knobs": _FULL_RECOMPUTE | {"use_distributed_optimizer": True},
    },
)


SECTIONS = ("model", "parallelism", "knobs")
# settings removed from an example if the traces rule the split out
_SETTINGS_OF = {
    "tp": ("tp", "etp", "sequence_parallel"),
    "cp": ("cp",),
    "pp": ("pp", "vpp", "overlap_p2p_comm"),
    "ep": ("ep", "overlap_moe_expert_parallel_comm"),
}
_OF_EXPERTS = ("num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size")
_FIRST_BLACKWELL = (10, 0)


@cache
def example_recipes(shown: JobProperties) -> tuple[Recipe, ...]:
    """Returns example recipes for GPUs or for CPU ranks, as the traces show, in the order in which to try them."""
    made = _ON_CPUS if shown.on_cpu else tuple(_as_shown(data, shown) for data in _ON_GPUS)
    return tuple(recipe_from(Source(name="stand-in", data=dict(data))) for data in made)


def _as_shown(data: dict[str, Any], shown: JobProperties) -> dict[str, Any]:
    gone = {key for split in shown.absent for key in _SETTINGS_OF[split]} | ({*_OF_EXPERTS} if shown.dense else set())
    model, layout, knobs = ({k: v for k, v in data.get(of, {}).items() if k not in gone} for of in SECTIONS)
    blackwell = (shown.compute_capability or (0, 0)) >= _FIRST_BLACKWELL
    grouped = not shown.dense and (shown.grouped_gemm or knobs.get("moe_grouped_gemm"))
    knobs = {k: v for k, v in knobs.items() if k != "moe_grouped_gemm"} | (
        {"moe_grouped_gemm": True} if grouped else {}
    )
    cluster = data["cluster"] | ({"gpu": "b200"} if blackwell else {})
    return data | {"model": model, "parallelism": layout, "knobs": knobs, "cluster": cluster}
