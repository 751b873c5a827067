"""A tiny recipe for GPUs, which tests of what only a GPU does are written against."""

from __future__ import annotations

from typing import Any

from tests.conftest import HANG_S
from trainer.recipe import Recipe

TINY: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "num_moe_experts": 4,
    "moe_ffn_hidden_size": 64,
}


def on_gpus(knobs: dict[str, Any] | None = None, *, gpu: str = "h100", gpus: int = 2, **model: Any) -> Recipe:
    recipe = Recipe.model_validate(
        {
            "name": "tiny",
            "model": TINY | model,
            "cluster": {"gpu": gpu, "nodes": 1, "gpus_per_node": gpus},
            "training": {"seq_length": 32, "global_batch_size": 4},
            "burst": {"warmup_steps": 1, "measure_steps": 2, "trace_steps": 0, "deadline_s": HANG_S},
        }
    )
    return recipe.replace(knobs or {})


WHOLE_ITERATION = {"cuda_graph_impl": "local", "cuda_graph_scope": ("full_iteration",), "use_te_rng_tracker": True}
TE_GRAPHS = {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ("attn",), "use_te_rng_tracker": True}
LOCAL_GRAPHS = {"cuda_graph_impl": "local", "cuda_graph_scope": ("attn",), "use_te_rng_tracker": True}
