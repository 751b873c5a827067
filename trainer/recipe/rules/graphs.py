"""CUDA graphs: scopes that can be captured, what must be static, what recompute and overlap leave to capture."""

from typing import Any

from trainer.recipe.predicates import (
    all_of,
    among,
    any_of,
    has_dense_layers,
    has_graphs,
    is_moe,
    lists,
    negated,
    off,
    on,
    on_gpu,
    recomputed,
)
from trainer.recipe.rules.rule import FindingKind, Rule, Suggestion, example, fixed, without
from trainer.recipe.schema import Recipe

IMPL = "cuda_graph_impl"
SCOPE = "cuda_graph_scope"
NO_GRAPHS = fixed(cuda_graph_impl="none")
_whole_iteration = any_of(among(IMPL, "full_iteration"), all_of(among(IMPL, "local"), lists(SCOPE, "full_iteration")))
_padded = all_of(on("moe_expert_capacity_factor"), on("moe_pad_expert_input_to_capacity"))
_dropless = all_of(is_moe, negated(_padded), off("moe_expert_rank_capacity_factor"))


def _expandable(recipe: Recipe) -> bool:
    return "expandable_segments:True" in (recipe.knob("PYTORCH_CUDA_ALLOC_CONF") or "")


def _with_router(recipe: Recipe) -> Suggestion:
    return {SCOPE: (*recipe.knob(SCOPE), "moe_router")}


def _graphs(**knobs: Any) -> dict[str, Any]:
    """A Transformer Engine graph over attention, with these knobs."""
    plain: dict[str, Any] = {IMPL: "transformer_engine", SCOPE: ("attn",), "use_te_rng_tracker": True}
    return plain | knobs


ROWS = (
    Rule(
        id="graph-rng-tracker",
        kind=FindingKind.AUTOSET,
        knobs=(IMPL, "use_te_rng_tracker"),
        broken=all_of(has_graphs, on_gpu, off("use_te_rng_tracker")),
        message="CUDA graphs without use_te_rng_tracker: Megatron-LM switches it on, Megatron-Bridge refuses",
        nearest=fixed(use_te_rng_tracker=True),
        source="megatron/training/arguments.py:1960",
        breaking=example(**_graphs(use_te_rng_tracker=False)),
        passing=example(**_graphs()),
    ),
    Rule(
        id="graph-preprocess-needs-router",
        knobs=(SCOPE,),
        broken=all_of(has_graphs, lists(SCOPE, "moe_preprocess"), negated(lists(SCOPE, "moe_router"))),
        message="graph scope moe_preprocess without moe_router",
        nearest=_with_router,
        source="transformer_config.py:2824",
        breaking=example(**_graphs(cuda_graph_scope=("attn", "moe_preprocess"))),
        passing=example(**_graphs(cuda_graph_scope=("attn", "moe_router", "moe_preprocess"))),
    ),
    Rule(
        id="graph-moe-and-router",
        knobs=(SCOPE,),
        broken=all_of(has_graphs, lists(SCOPE, "moe"), lists(SCOPE, "moe_router")),
        message="graph scopes moe and moe_router: the first contains the second",
        nearest=without(SCOPE, "moe_router", "moe_preprocess"),
        source="transformer_config.py:2820",
        breaking=example(
            **_graphs(
                cuda_graph_scope=("moe", "moe_router"),
                moe_expert_capacity_factor=1.0,
                moe_pad_expert_input_to_capacity=True,
            )
        ),
        passing=example(
            **_graphs(cuda_graph_scope=("moe",), moe_expert_capacity_factor=1.0, moe_pad_expert_input_to_capacity=True)
        ),
    ),
    Rule(
        id="graph-moe-needs-padding",
        knobs=(SCOPE, "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity"),
        broken=all_of(has_graphs, lists(SCOPE, "moe"), is_moe, negated(_padded)),
        message="graph scope moe on a dropless model: how many tokens an expert gets changes every step, and a graph "
        "needs static shapes",
        nearest=without(SCOPE, "moe"),
        source="transformer_config.py:2844",
        breaking=example(**_graphs(cuda_graph_scope=("attn", "moe"))),
        passing=example(
            **_graphs(
                cuda_graph_scope=("attn", "moe"),
                moe_expert_capacity_factor=1.0,
                moe_pad_expert_input_to_capacity=True,
            )
        ),
    ),
    Rule(
        id="graph-preprocess-syncs",
        knobs=(SCOPE, "moe_token_dispatcher_type"),
        broken=all_of(
            has_graphs,
            lists(SCOPE, "moe_preprocess"),
            among("moe_token_dispatcher_type", "alltoall"),
            any_of(
                all_of(on("moe_expert_capacity_factor"), negated(_padded)),
                on("moe_router_padding_for_quantization"),
            ),
        ),
        message="graph scope moe_preprocess where the alltoall dispatcher copies counts to the host (capacity without "
        "padding, or router padding)",
        nearest=without(SCOPE, "moe_preprocess"),
        source="transformer_config.py:2850",
        breaking=example(**_graphs(cuda_graph_scope=("moe_router", "moe_preprocess"), moe_expert_capacity_factor=1.0)),
        passing=example(**_graphs(cuda_graph_scope=("moe_router", "moe_preprocess"))),
    ),
    Rule(
        id="graph-moe-needs-experts",
        knobs=(SCOPE,),
        broken=all_of(has_graphs, lists(SCOPE, "moe", "moe_router", "moe_preprocess"), negated(is_moe)),
        message="graph scope {cuda_graph_scope} names experts, and the model has none",
        nearest=without(SCOPE, "moe", "moe_router", "moe_preprocess"),
        source="transformer_config.py:2829",
        breaking=example(
            model={"num_moe_experts": None},
            **_graphs(expert_model_parallel_size=1, cuda_graph_scope=("attn", "moe_router")),
        ),
        passing=example(**_graphs(cuda_graph_scope=("attn", "moe_router"))),
    ),
    Rule(
        id="graph-mlp-needs-dense",
        knobs=(SCOPE,),
        broken=all_of(has_graphs, lists(SCOPE, "mlp"), negated(has_dense_layers)),
        message="graph scope mlp in a model without dense layers",
        nearest=without(SCOPE, "mlp"),
        source="transformer_config.py:2835",
        breaking=example(model={"moe_layer_freq": 1}, **_graphs(cuda_graph_scope=("attn", "mlp"))),
        passing=example(**_graphs(cuda_graph_scope=("attn", "mlp"))),
    ),
    Rule(
        id="graph-full-recompute",
        knobs=(IMPL, SCOPE, "recompute_granularity"),
        broken=all_of(has_graphs, negated(_whole_iteration), among("recompute_granularity", "full")),
        message="full recompute with graphs of parts of a layer: only a graph of the whole iteration can hold it",
        nearest=NO_GRAPHS,
        source="transformer_config.py:2858",
        breaking=example(**_graphs(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)),
        passing=example(**_graphs(recompute_granularity="selective", recompute_modules=("mlp",))),
    ),
    Rule(
        id="graph-moe-recompute",
        knobs=(SCOPE, "recompute_modules"),
        broken=all_of(among(IMPL, "transformer_engine"), lists(SCOPE, "moe_router"), recomputed("moe")),
        message="the whole moe is recomputed around a graph of moe_router",
        nearest=without("recompute_modules", "moe"),
        source="transformer_config.py:2868",
        breaking=example(
            **_graphs(
                cuda_graph_scope=("attn", "moe_router"),
                recompute_granularity="selective",
                recompute_modules=("moe", "layernorm"),
            )
        ),
        passing=example(
            **_graphs(
                cuda_graph_scope=("attn", "moe_router"),
                recompute_granularity="selective",
                recompute_modules=("layernorm",),
            )
        ),
    ),
    Rule(
        id="graph-ep-overlap",
        knobs=(SCOPE, "overlap_moe_expert_parallel_comm"),
        broken=all_of(has_graphs, on("overlap_moe_expert_parallel_comm"), lists(SCOPE, "mlp")),
        message="graph scope mlp with EP communication overlap",
        nearest=without(SCOPE, "mlp"),
        source="transformer_config.py:3069",
        breaking=example(**_graphs(cuda_graph_scope=("attn", "mlp"), overlap_moe_expert_parallel_comm=True)),
        passing=example(**_graphs(overlap_moe_expert_parallel_comm=True)),
    ),
    Rule(
        id="graph-iteration-scope",
        knobs=(IMPL, SCOPE),
        broken=any_of(
            all_of(among(IMPL, "transformer_engine"), lists(SCOPE, "full_iteration")),
            all_of(among(IMPL, "full_iteration"), on(SCOPE)),
        ),
        message="{cuda_graph_impl} graphs with scope {cuda_graph_scope}: the whole iteration has no other scope",
        nearest=fixed(cuda_graph_scope=None),
        source="transformer_config.py:2796",
        breaking=example(
            **_graphs(
                cuda_graph_impl="full_iteration",
                moe_expert_capacity_factor=1.0,
                moe_pad_expert_input_to_capacity=True,
            )
        ),
        passing=example(**_graphs()),
    ),
    Rule(
        id="graph-static-shapes",
        kind=FindingKind.WARNING,
        knobs=(IMPL, "moe_expert_capacity_factor", "moe_expert_rank_capacity_factor"),
        broken=all_of(_whole_iteration, _dropless),
        message="a graph of the whole iteration on a dropless model needs static shapes: padding to capacity, or a "
        "rank capacity with paged stash",
        nearest=NO_GRAPHS,
        source="Megatron-Bridge skills, cuda-graphs: full-iteration on dropless MoE",
        breaking=example(**_graphs(cuda_graph_impl="full_iteration", cuda_graph_scope=None)),
        passing=example(
            **_graphs(
                cuda_graph_impl="full_iteration",
                cuda_graph_scope=None,
                moe_expert_capacity_factor=1.0,
                moe_pad_expert_input_to_capacity=True,
            )
        ),
    ),
    Rule(
        id="graph-nccl-register",
        knobs=(IMPL, "PYTORCH_CUDA_ALLOC_CONF", "NCCL_GRAPH_REGISTER"),
        broken=all_of(among(IMPL, "transformer_engine"), _expandable, negated(among("NCCL_GRAPH_REGISTER", 0))),
        message="graphs with expandable segments and NCCL_GRAPH_REGISTER {NCCL_GRAPH_REGISTER}: NCCL would register "
        "memory that the allocator remaps",
        nearest=fixed(NCCL_GRAPH_REGISTER=0),
        source="megatron/training/arguments.py:1966",
        breaking=example(**_graphs(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")),
        passing=example(**_graphs(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True", NCCL_GRAPH_REGISTER=0)),
    ),
)
