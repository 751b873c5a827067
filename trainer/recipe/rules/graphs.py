"""Rules of CUDA graphs of layers: which scopes can be captured, what must be static, conflicts with recompute and
overlap."""

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
from trainer.recipe.rules.data_parallel import expandable
from trainer.recipe.rules.examples import DENSE
from trainer.recipe.rules.rule import BRIDGE, LM_AND_BRIDGE, FindingKind, Rule, Suggestion, example, fixed, without
from trainer.recipe.settings import Settings

IMPL = "cuda_graph_impl"
SCOPE = "cuda_graph_scope"
MOE_SCOPES = ("moe", "moe_router", "moe_preprocess")
NO_GRAPHS = fixed(cuda_graph_impl="none")
whole_iteration = any_of(among(IMPL, "full_iteration"), all_of(among(IMPL, "local"), lists(SCOPE, "full_iteration")))
_iteration_alone = any_of(
    among(IMPL, "full_iteration"), all_of(among(IMPL, "local"), among(SCOPE, ("full_iteration",)))
)
padded = all_of(on("moe_expert_capacity_factor"), on("moe_pad_expert_input_to_capacity"))

_preprocess_graphed = all_of(has_graphs, lists(SCOPE, "moe_preprocess"), among("moe_token_dispatcher_type", "alltoall"))

# local graphs capture moe_router and moe_preprocess together
_router_captured = any_of(lists(SCOPE, "moe_router"), all_of(among(IMPL, "local"), lists(SCOPE, "moe_preprocess")))


def _one_of_both(recipe: Settings) -> bool:
    return len({"moe_router", "moe_preprocess"} & set(recipe.knob(SCOPE) or ())) == 1


def _both(recipe: Settings) -> Suggestion:
    return {SCOPE: (*without(SCOPE, "moe_router", "moe_preprocess")(recipe)[SCOPE], "moe_router", "moe_preprocess")}


def _with_router(recipe: Settings) -> Suggestion:
    return {SCOPE: (*recipe.knob(SCOPE), "moe_router")}


def graphs(**knobs: Any) -> dict[str, Any]:
    """Returns the knobs of a Transformer Engine graph over attention, plus `knobs`."""
    plain: dict[str, Any] = {IMPL: "transformer_engine", SCOPE: ("attn",), "use_te_rng_tracker": True}
    return plain | knobs


ROWS = (
    Rule(
        id="graph-rng-tracker",
        binds=LM_AND_BRIDGE,
        kind=FindingKind.AUTOSET,
        knobs=(IMPL, "use_te_rng_tracker"),
        broken=all_of(has_graphs, on_gpu, off("use_te_rng_tracker")),
        message="CUDA graphs without use_te_rng_tracker: Megatron-LM switches it on, Megatron-Bridge refuses",
        nearest=fixed(use_te_rng_tracker=True),
        source="megatron/training/arguments.py:1960",
        breaking=example(**graphs(use_te_rng_tracker=False)),
        passing=example(**graphs()),
    ),
    Rule(
        id="graph-preprocess-needs-router",
        knobs=(SCOPE,),
        broken=all_of(
            among(IMPL, "transformer_engine"), lists(SCOPE, "moe_preprocess"), negated(lists(SCOPE, "moe_router"))
        ),
        message="graph scope moe_preprocess without moe_router",
        nearest=_with_router,
        source="transformer_config.py:2824",
        breaking=example(**graphs(cuda_graph_scope=("attn", "moe_preprocess"))),
        passing=example(**graphs(cuda_graph_scope=("attn", "moe_router", "moe_preprocess"))),
    ),
    Rule(
        id="graph-moe-and-router",
        knobs=(SCOPE,),
        broken=all_of(has_graphs, lists(SCOPE, "moe"), _router_captured),
        message="graph scopes moe and moe_router: the first contains the second",
        nearest=without(SCOPE, "moe_router", "moe_preprocess"),
        source="transformer_config.py:2820",
        breaking=example(
            **graphs(
                cuda_graph_scope=("moe", "moe_router"),
                moe_expert_capacity_factor=1.0,
                moe_pad_expert_input_to_capacity=True,
            )
        ),
        passing=example(
            **graphs(cuda_graph_scope=("moe",), moe_expert_capacity_factor=1.0, moe_pad_expert_input_to_capacity=True)
        ),
    ),
    Rule(
        id="graph-moe-needs-padding",
        knobs=(SCOPE, "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity"),
        broken=all_of(has_graphs, lists(SCOPE, "moe"), is_moe, negated(padded)),
        message="graph scope moe on a dropless model: how many tokens an expert gets changes every step, and a graph "
        "needs static shapes",
        nearest=without(SCOPE, "moe"),
        source="transformer_config.py:2844",
        breaking=example(**graphs(cuda_graph_scope=("attn", "moe"))),
        passing=example(
            **graphs(
                cuda_graph_scope=("attn", "moe"),
                moe_expert_capacity_factor=1.0,
                moe_pad_expert_input_to_capacity=True,
            )
        ),
    ),
    Rule(
        id="graph-preprocess-syncs",
        knobs=(SCOPE, "moe_token_dispatcher_type", "moe_expert_capacity_factor"),
        broken=all_of(_preprocess_graphed, on("moe_expert_capacity_factor"), negated(padded)),
        message="graph scope moe_preprocess with a capacity and without padding to it: the alltoall dispatcher copies "
        "counts to the host there, and a graph cannot wait",
        nearest=without(SCOPE, "moe_preprocess"),
        source="transformer_config.py:2850",
        breaking=example(**graphs(cuda_graph_scope=("moe_router", "moe_preprocess"), moe_expert_capacity_factor=1.0)),
        passing=example(**graphs(cuda_graph_scope=("moe_router", "moe_preprocess"))),
    ),
    Rule(
        id="graph-preprocess-padding",
        knobs=(SCOPE, "moe_token_dispatcher_type", "moe_router_padding_for_quantization"),
        broken=all_of(_preprocess_graphed, on("moe_router_padding_for_quantization"), negated(padded)),
        message="graph scope moe_preprocess with moe_router_padding_for_quantization: the alltoall dispatcher copies "
        "counts to the host there, and a graph cannot wait (Megatron-Core checks the old name of the knob only)",
        nearest=without(SCOPE, "moe_preprocess"),
        source="transformer_config.py:2850; token_dispatcher.py, 0.16.1 :515",
        breaking=example(
            precision="fp8_current",
            moe_router_padding_for_quantization=True,
            **graphs(cuda_graph_scope=("moe_router", "moe_preprocess")),
        ),
        passing=example(
            precision="fp8_current",
            moe_router_padding_for_quantization=True,
            **graphs(cuda_graph_scope=("attn", "moe_router")),
        ),
    ),
    Rule(
        id="graph-moe-needs-experts",
        knobs=(SCOPE,),
        broken=all_of(has_graphs, lists(SCOPE, *MOE_SCOPES), negated(is_moe)),
        message="graph scope {cuda_graph_scope} names experts, and the model has none",
        nearest=without(SCOPE, *MOE_SCOPES),
        source="transformer_config.py:2829",
        breaking=example(
            model=DENSE,
            **graphs(expert_model_parallel_size=1, cuda_graph_scope=("attn", "moe_router")),
        ),
        passing=example(**graphs(cuda_graph_scope=("attn", "moe_router"))),
    ),
    Rule(
        id="graph-mlp-needs-dense",
        knobs=(SCOPE,),
        broken=all_of(has_graphs, lists(SCOPE, "mlp"), negated(has_dense_layers)),
        message="graph scope mlp in a model without dense layers",
        nearest=without(SCOPE, "mlp"),
        source="transformer_config.py:2835",
        breaking=example(model={"moe_layer_freq": 1}, **graphs(cuda_graph_scope=("attn", "mlp"))),
        passing=example(**graphs(cuda_graph_scope=("attn", "mlp"))),
    ),
    Rule(
        id="graph-full-recompute",
        knobs=(IMPL, SCOPE, "recompute_granularity"),
        broken=all_of(has_graphs, negated(_iteration_alone), among("recompute_granularity", "full")),
        message="full recompute with graphs of parts of a layer: only a graph of the whole iteration can capture it",
        nearest=NO_GRAPHS,
        source="transformer_config.py:2858",
        breaking=example(**graphs(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)),
        passing=example(**graphs(recompute_granularity="selective", recompute_modules=("mlp",))),
    ),
    Rule(
        id="graph-moe-recompute",
        knobs=(SCOPE, "recompute_modules"),
        broken=all_of(among(IMPL, "transformer_engine"), lists(SCOPE, "moe_router"), recomputed("moe")),
        message="the whole moe is recomputed around a graph of moe_router",
        nearest=without("recompute_modules", "moe"),
        source="transformer_config.py:2868",
        breaking=example(
            **graphs(
                cuda_graph_scope=("attn", "moe_router"),
                recompute_granularity="selective",
                recompute_modules=("moe", "layernorm"),
            )
        ),
        passing=example(
            **graphs(
                cuda_graph_scope=("attn", "moe_router"),
                recompute_granularity="selective",
                recompute_modules=("layernorm",),
            )
        ),
    ),
    Rule(
        id="graph-ep-overlap",
        knobs=(SCOPE, "overlap_moe_expert_parallel_comm"),
        broken=all_of(
            among(IMPL, "transformer_engine"),
            on("overlap_moe_expert_parallel_comm"),
            lists(SCOPE, "mlp", "moe"),
        ),
        message="graph scope mlp or moe with EP communication overlap, which runs them in pieces",
        nearest=without(SCOPE, "mlp", "moe"),
        source="transformer_config.py:3069",
        breaking=example(**graphs(cuda_graph_scope=("attn", "mlp"), overlap_moe_expert_parallel_comm=True)),
        passing=example(**graphs(overlap_moe_expert_parallel_comm=True)),
    ),
    Rule(
        id="graph-nccl-register",
        knobs=(IMPL, "PYTORCH_CUDA_ALLOC_CONF", "NCCL_GRAPH_REGISTER"),
        broken=all_of(among(IMPL, "transformer_engine"), expandable, negated(among("NCCL_GRAPH_REGISTER", 0))),
        message="graphs with expandable segments and NCCL_GRAPH_REGISTER {NCCL_GRAPH_REGISTER}: NCCL would register "
        "memory that the allocator remaps",
        nearest=fixed(NCCL_GRAPH_REGISTER=0),
        source="megatron/training/arguments.py:1966; megatron/core/transformer/cuda_graphs.py:2193",
        breaking=example(**graphs(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")),
        passing=example(**graphs(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True", NCCL_GRAPH_REGISTER=0)),
    ),
    Rule(
        id="graph-local-preprocess",
        kind=FindingKind.AUTOSET,
        knobs=(IMPL, SCOPE),
        broken=all_of(among(IMPL, "local"), is_moe, _one_of_both),
        message="local graphs of {cuda_graph_scope}: Megatron-Core captures moe_router and moe_preprocess together",
        nearest=_both,
        source="megatron-core 0.16.1 transformer_config.py:1722, 0.19.0 :2472",
        breaking=example(**graphs(cuda_graph_impl="local", cuda_graph_scope=("attn", "moe_router"))),
        passing=example(**graphs(cuda_graph_impl="local", cuda_graph_scope=("moe_router", "moe_preprocess"))),
    ),
    Rule(
        id="graph-local-bridge",
        kind=FindingKind.WARNING,
        binds=BRIDGE,
        knobs=(IMPL, SCOPE),
        broken=all_of(among(IMPL, "local"), negated(lists(SCOPE, "full_iteration"))),
        message="local graphs of layers: Megatron-Bridge takes local for the whole iteration only",
        nearest=fixed(cuda_graph_impl="transformer_engine"),
        source="src/megatron/bridge/utils/cuda_graph.py:148",
        breaking=example(**graphs(cuda_graph_impl="local")),
        passing=example(**graphs()),
    ),
)
