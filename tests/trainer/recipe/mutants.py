"""Thousands of recipes, legal and not: legal ones with a few knobs moved, the same for the same seed.

A move is of any knob of the table to any value it takes; where only some values decide something (degrees that divide
and that do not, layouts of the right and the wrong length) to one of those. Half of the moves are groups that belong
together (full recompute and its method), so that deep rules are reached and not only the first.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from trainer.recipe.knobs import KNOBS, Knob
from trainer.recipe.rules import RULES
from trainer.recipe.rules.examples import passing_of, recipe_of
from trainer.recipe.rules.rule import example
from trainer.recipe.schema import Recipe

DEGREES = (1, 2, 2, 3, 4, 4, 6, 8, 16)
SIZES: dict[str, Sequence[Any]] = {
    "seq_length": (1024, 4096, 4098, 6144),
    "global_batch_size": (16, 48, 64, 65, 128, 256),
    "micro_batch_size": (1, 1, 2, 3, 4, 8, 64),
    "tensor_model_parallel_size": DEGREES,
    "pipeline_model_parallel_size": DEGREES,
    "virtual_pipeline_model_parallel_size": (None, *DEGREES),
    "context_parallel_size": DEGREES,
    "expert_model_parallel_size": DEGREES,
    "expert_tensor_parallel_size": (None, *DEGREES),
    "num_distributed_optimizer_instances": DEGREES,
    "num_layers_in_first_pipeline_stage": (None, 1, 2, 3, 4, 8),
    "num_layers_in_last_pipeline_stage": (None, 1, 2, 3, 4, 8),
    "microbatch_group_size_per_vp_stage": (None, 1, 2, 4, 8),
    "recompute_num_layers": (None, 1, 2, 8, 9),
    "cpu_offloading_num_layers": (0, 1, 7, 8, 9),
    "num_layers_at_start_in_bf16": (0, 1, 2, 4, 9),
    "num_layers_at_end_in_bf16": (0, 1, 2, 4, 9),
    "cuda_graph_warmup_steps": (0, 3),
    "moe_expert_capacity_factor": (None, 1.0),
    "moe_expert_rank_capacity_factor": (None, 1.0),
    "pipeline_model_parallel_layout": (
        None, "Et*8L", "Et*4|t*4L", "Et*3|t*5L", "Et*2|t*2|t*2|t*2L", "Et|t|t|t|t|t|t|tL", "Et*4|t*3L", "Et*4|t*4",
        "t*4|Et*4L", "Et*2|t*3|t*3L", "Et*4|t*4mL", "Et*2|t*2|t*2|t*2mL", "Et*4m|t*4L", "Etm|t*3|t*2|t*2L",
        "Et*4|t*3|t|mL", "Et*4|t*4m|L", "Et*4|t*4|m|L", "Ett|tt|ttm|ttL", "|Et*8|L|", "Et*8||L",
    ),
    "PYTORCH_CUDA_ALLOC_CONF": (None, "expandable_segments:True", "max_split_size_mb:64,expandable_segments:True"),
}  # fmt: skip
TOGETHER: tuple[dict[str, Sequence[Any]], ...] = (
    {"recompute_granularity": ("full",), "recompute_method": ("uniform", "block"), "recompute_num_layers": (1, 9)},
    {"recompute_granularity": ("selective",), "recompute_modules": ()},
    {"cuda_graph_impl": ("local", "transformer_engine"), "cuda_graph_scope": (), "use_te_rng_tracker": (True,)},
    {"moe_expert_capacity_factor": (1.0,), "moe_pad_expert_input_to_capacity": (True,)},
    {"moe_token_dispatcher_type": ("flex",), "moe_flex_dispatcher_backend": ("deepep", "hybridep")},
    {"fine_grained_activation_offloading": (True,), "offload_modules": (), "NVTE_CPU_OFFLOAD_V1": (1,)},
    {"cpu_offloading": (True,), "cpu_offloading_num_layers": (1, 7, 8)},
    {"tensor_model_parallel_size": (2, 4), "sequence_parallel": (True,), "expert_tensor_parallel_size": (1, 2)},
    {"pipeline_model_parallel_size": (2, 4), "virtual_pipeline_model_parallel_size": (None, 2, 4)},
    {"pipeline_model_parallel_size": (2,), "pipeline_model_parallel_layout": ()},
    {"overlap_moe_expert_parallel_comm": (True,), "delay_wgrad_compute": (False, True)},
    {"precision": ("fp8_current", "fp8_delayed"), "first_last_layers_bf16": (True,)},
    {"precision": ("mxfp8",), "fp8_param_gather": (True,), "reuse_grad_buf_for_mxfp8_param_ag": (True, False)},
    {"use_precision_aware_optimizer": (True,), "exp_avg_dtype": (), "main_grads_dtype": ()},
)  # fmt: skip
MODELS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"num_moe_experts": None},
    {"num_moe_experts": None, "moe_layer_freq": 1},
    {"num_moe_experts": None, "moe_ffn_hidden_size": None, "moe_shared_expert_intermediate_size": None},
    {"moe_layer_freq": 1, "num_layers": 7},
    {"moe_layer_freq": 2},
    {"num_attention_heads": 24, "num_query_groups": 6},
    {"moe_shared_expert_intermediate_size": None},
    {"mtp_num_layers": 1},
    {"mtp_num_layers": 2},
    {"moe_router_topk": 1},
    {"experimental_attention_variant": "gated_delta_net", "linear_attention_freq": 4, "linear_num_key_heads": 4},
    {"add_bias_linear": True, "moe_shared_expert_intermediate_size": None},
    {"attention_dropout": 0.1, "hidden_dropout": 0.1},
    {"window_size": (128, 0), "softmax_type": "learnable", "moe_latent_size": 512},
    {"moe_router_num_groups": 4, "moe_router_group_topk": 2},
    {"moe_router_num_groups": 3, "moe_router_group_topk": 5},
    {
        "multi_latent_attention": True, "num_query_groups": None, "kv_lora_rank": 128, "qk_head_dim": 64,
        "qk_pos_emb_head_dim": 32, "v_head_dim": 64,
    },
)  # fmt: skip
CLUSTERS: tuple[dict[str, Any], ...] = (
    {"gpu": "b200"},
    {"gpu": "h100"},
    {"gpu": "gb200", "nodes": 4, "gpus_per_node": 4},
    {"gpu": "h100", "nodes": 3},
    {"gpu": "b200", "nodes": 1},
)


def mutants(count: int, *, seed: int, also: Sequence[Recipe] = ()) -> Iterator[Recipe]:
    """Yields every example of every rule, then `count` mutants of the example recipe and of `also`."""
    draw = random.Random(seed)
    for rule in RULES:
        yield from (recipe_of(rule.breaking), recipe_of(passing_of(rule)))
    for number in range(count):
        base = draw.choice(also) if also and number % 4 == 0 else _plain(draw)
        yield base.replace(_changes(draw, base))


def _plain(draw: random.Random) -> Recipe:
    model = draw.choice(MODELS)
    knobs: dict[str, Any] = {} if "num_moe_experts" not in model else {"expert_model_parallel_size": 1}
    return recipe_of(example(model=model, cluster=draw.choice(CLUSTERS), **knobs))


def _changes(draw: random.Random, base: Recipe) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for _ in range(draw.choice((1, 1, 2, 2, 3))):
        if draw.random() < 0.5:
            changes |= {name: _value(draw, KNOBS[name], words) for name, words in draw.choice(TOGETHER).items()}
        else:
            name = draw.choice(list(KNOBS))
            changes[name] = _value(draw, KNOBS[name], ())
    return changes


def _value(draw: random.Random, knob: Knob, words: Sequence[Any]) -> Any:
    """Returns one of `words`, else one of the knob's SIZES, else any value in its domain."""
    words = words or SIZES.get(knob.name) or knob.values or ()
    if words:
        return draw.choice(words)
    domain = knob.domain
    if domain.nullable and draw.random() < 0.1:
        return None
    if domain.kind == "any":
        return tuple(draw.sample(domain.words, draw.randint(0, min(3, len(domain.words)))))
    if domain.kind == "sizes":
        return tuple(draw.choice((1, 2, 4)) for _ in range(draw.randint(1, 3)))
    low, high = domain.low or 0.0, domain.high if domain.high is not None else 8.0
    return draw.uniform(low, high) if domain.kind == "float" else draw.randint(int(low), max(int(low), int(high)))
