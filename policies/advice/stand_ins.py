"""Example recipes in place of an unknown one: each leaves to the fixes what they turn on, split or take back.

Only the knobs that a fix moves from them are shown; their sizes are not advice, and sizes stay open.
"""

from __future__ import annotations

from functools import cache
from typing import Any

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


@cache
def stand_ins(*, on_cpu: bool) -> tuple[Recipe, ...]:
    """Returns example recipes of GPUs or of CPU ranks, to be tried in order."""
    return tuple(recipe_from(Source(name="stand-in", data=dict(data))) for data in (_ON_CPUS if on_cpu else _ON_GPUS))
