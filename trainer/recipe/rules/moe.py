"""Experts: sequence parallel beside TP, dispatchers and their backends, shared experts, capacity, router."""

from trainer.recipe.layout import layout_of
from trainer.recipe.predicates import (
    above_one,
    all_of,
    among,
    any_of,
    fp4,
    fp8,
    has_shared_experts,
    is_moe,
    negated,
    off,
    on,
    on_gpu,
)
from trainer.recipe.rules.nearest import TP
from trainer.recipe.rules.rule import FindingKind, Rule, example, fixed
from trainer.recipe.schema import Recipe

DISPATCHER = "moe_token_dispatcher_type"
BACKEND = "moe_flex_dispatcher_backend"
CAPACITY = "moe_expert_capacity_factor"
PAD = "moe_pad_expert_input_to_capacity"
RANK_CAPACITY = "moe_expert_rank_capacity_factor"
_flex = all_of(is_moe, among(DISPATCHER, "flex"))
_NVL72 = ("gb200", "gb300")


def _nothing_to_dispatch(recipe: Recipe) -> bool:
    now = layout_of(recipe)
    return now.etp * now.ep <= 1


def _unused_backend(recipe: Recipe) -> bool:
    return is_moe(recipe) and BACKEND in recipe.knobs and recipe.knob(DISPATCHER) != "flex"


ROWS = (
    Rule(
        id="sp-needs-tp",
        knobs=("sequence_parallel", TP),
        broken=all_of(on("sequence_parallel"), negated(above_one(TP))),
        message="sequence_parallel with TP 1",
        nearest=fixed(sequence_parallel=False),
        source="megatron/core/model_parallel_config.py:504",
        breaking=example(sequence_parallel=True),
        passing=example(sequence_parallel=True, tensor_model_parallel_size=2, expert_tensor_parallel_size=1),
    ),
    Rule(
        id="moe-tp-needs-sp",
        knobs=("sequence_parallel", TP),
        broken=all_of(is_moe, above_one(TP), off("sequence_parallel")),
        message="experts with TP {tp} and without sequence_parallel: the MoE layer refuses to train",
        nearest=fixed(sequence_parallel=True),
        source="megatron/core/transformer/moe/moe_layer.py:638",
        breaking=example(tensor_model_parallel_size=2, expert_tensor_parallel_size=1),
        passing=example(tensor_model_parallel_size=2, expert_tensor_parallel_size=1, sequence_parallel=True),
    ),
    Rule(
        id="flex-needs-ranks",
        knobs=(DISPATCHER,),
        broken=all_of(_flex, among(BACKEND, "deepep", "ncclep"), _nothing_to_dispatch),
        message="{moe_flex_dispatcher_backend} with ETP·EP 1: there is no other rank to send tokens to",
        nearest=fixed(moe_token_dispatcher_type="alltoall"),
        source="megatron/core/transformer/moe/token_dispatcher.py:1836",
        breaking=example(moe_token_dispatcher_type="flex", expert_model_parallel_size=1),
        passing=example(moe_token_dispatcher_type="flex"),
    ),
    Rule(
        id="backend-without-flex",
        kind=FindingKind.WARNING,
        knobs=(BACKEND, DISPATCHER),
        broken=_unused_backend,
        message="backend {moe_flex_dispatcher_backend} does nothing: the dispatcher is {moe_token_dispatcher_type}",
        nearest=fixed(moe_token_dispatcher_type="flex"),
        source="Megatron-Bridge skills, moe-optimization-workflow: the backend acts with dispatcher flex only",
        breaking=example(moe_flex_dispatcher_backend="hybridep"),
        passing=example(moe_flex_dispatcher_backend="hybridep", moe_token_dispatcher_type="flex"),
    ),
    Rule(
        id="deepep-platform",
        kind=FindingKind.FALLBACK,
        knobs=(BACKEND, DISPATCHER),
        broken=all_of(_flex, among(BACKEND, "deepep"), lambda recipe: recipe.cluster.gpu in _NVL72),
        message="DeepEP on an NVL72 system: Megatron-Bridge warns and keeps alltoall",
        nearest=fixed(moe_flex_dispatcher_backend="hybridep"),
        source="src/megatron/bridge/training/flex_dispatcher_backend.py:65",
        breaking=example(cluster={"gpu": "gb200"}, moe_token_dispatcher_type="flex"),
        passing=example(
            cluster={"gpu": "gb200"}, moe_token_dispatcher_type="flex", moe_flex_dispatcher_backend="hybridep"
        ),
    ),
    Rule(
        id="shared-overlap-dispatcher",
        knobs=("moe_shared_expert_overlap", DISPATCHER),
        broken=all_of(has_shared_experts, on("moe_shared_expert_overlap"), among(DISPATCHER, "allgather")),
        message="moe_shared_expert_overlap with dispatcher {moe_token_dispatcher_type}",
        nearest=fixed(moe_token_dispatcher_type="alltoall"),
        source="transformer_config.py:1825",
        breaking=example(moe_shared_expert_overlap=True, moe_token_dispatcher_type="allgather"),
        passing=example(moe_shared_expert_overlap=True),
    ),
    Rule(
        id="shared-overlap-flex",
        kind=FindingKind.AUTOSET,
        knobs=("moe_shared_expert_overlap", DISPATCHER),
        broken=all_of(has_shared_experts, on("moe_shared_expert_overlap"), among(DISPATCHER, "flex")),
        message="moe_shared_expert_overlap with dispatcher flex: 0.16.1 refuses it, Megatron-Bridge switches it off",
        nearest=fixed(moe_shared_expert_overlap=False),
        source="src/megatron/bridge/training/flex_dispatcher_backend.py:55",
        versions="core accepts it from 0.17",
        breaking=example(moe_shared_expert_overlap=True, moe_token_dispatcher_type="flex"),
        passing=example(moe_token_dispatcher_type="flex"),
    ),
    Rule(
        id="shared-overlap-needs-shared",
        kind=FindingKind.WARNING,
        knobs=("moe_shared_expert_overlap",),
        broken=all_of(on("moe_shared_expert_overlap"), negated(has_shared_experts)),
        message="moe_shared_expert_overlap does nothing: the model has no shared experts",
        nearest=fixed(moe_shared_expert_overlap=False),
        source="megatron/core/transformer/moe/moe_layer.py: read where shared experts are built",
        breaking=example(model={"moe_shared_expert_intermediate_size": None}, moe_shared_expert_overlap=True),
        passing=example(moe_shared_expert_overlap=True),
    ),
    Rule(
        id="pad-needs-capacity",
        knobs=(PAD, CAPACITY),
        broken=all_of(on(PAD), among(CAPACITY, None)),
        message="moe_pad_expert_input_to_capacity without moe_expert_capacity_factor",
        nearest=fixed(moe_pad_expert_input_to_capacity=False),
        source="transformer_config.py:1865",
        breaking=example(moe_pad_expert_input_to_capacity=True),
        passing=example(moe_pad_expert_input_to_capacity=True, moe_expert_capacity_factor=1.0),
    ),
    Rule(
        id="capacity-balancing",
        knobs=(CAPACITY, "moe_router_load_balancing_type"),
        broken=all_of(on(CAPACITY), among("moe_router_load_balancing_type", "sinkhorn")),
        message="moe_expert_capacity_factor with {moe_router_load_balancing_type} balancing",
        nearest=fixed(moe_expert_capacity_factor=None),
        source="transformer_config.py:1848",
        breaking=example(moe_expert_capacity_factor=1.0, moe_router_load_balancing_type="sinkhorn"),
        passing=example(moe_expert_capacity_factor=1.0),
    ),
    Rule(
        id="deepep-padding",
        knobs=(PAD, BACKEND),
        broken=all_of(_flex, among(BACKEND, "deepep"), on(PAD)),
        message="DeepEP does not pad expert inputs to their capacity",
        nearest=fixed(moe_token_dispatcher_type="alltoall"),
        source="transformer_config.py:1759",
        breaking=example(
            moe_token_dispatcher_type="flex", moe_pad_expert_input_to_capacity=True, moe_expert_capacity_factor=1.0
        ),
        passing=example(moe_pad_expert_input_to_capacity=True, moe_expert_capacity_factor=1.0),
    ),
    Rule(
        id="rank-capacity-backend",
        knobs=(RANK_CAPACITY, BACKEND),
        broken=all_of(on(RANK_CAPACITY), negated(all_of(_flex, among(BACKEND, "hybridep", "ncclep")))),
        message="moe_expert_rank_capacity_factor needs dispatcher flex with HybridEP or NCCL EP",
        nearest=fixed(moe_expert_rank_capacity_factor=None),
        source="transformer_config.py:1872",
        versions="0.17 and later",
        breaking=example(moe_expert_rank_capacity_factor=1.05),
        passing=example(
            moe_expert_rank_capacity_factor=1.05,
            moe_token_dispatcher_type="flex",
            moe_flex_dispatcher_backend="hybridep",
        ),
    ),
    Rule(
        id="paged-stash-capacity",
        knobs=("moe_paged_stash", RANK_CAPACITY),
        broken=all_of(on("moe_paged_stash"), among(RANK_CAPACITY, None)),
        message="moe_paged_stash without moe_expert_rank_capacity_factor",
        nearest=fixed(moe_paged_stash=False),
        source="transformer_config.py:2215",
        versions="0.17 and later",
        breaking=example(moe_paged_stash=True),
        passing=example(
            moe_paged_stash=True,
            moe_expert_rank_capacity_factor=1.05,
            moe_token_dispatcher_type="flex",
            moe_flex_dispatcher_backend="hybridep",
        ),
    ),
    Rule(
        id="router-padding-quantized",
        knobs=("moe_router_padding_for_quantization", "precision"),
        broken=all_of(on("moe_router_padding_for_quantization"), negated(any_of(fp8, fp4))),
        message="moe_router_padding_for_quantization in {precision}: there is nothing to quantize",
        nearest=fixed(moe_router_padding_for_quantization=False),
        source="transformer_config.py:2652",
        breaking=example(moe_router_padding_for_quantization=True),
        passing=example(moe_router_padding_for_quantization=True, precision="fp8_blockwise"),
    ),
    Rule(
        id="router-padding-dispatcher",
        knobs=("moe_router_padding_for_quantization", DISPATCHER),
        broken=all_of(on("moe_router_padding_for_quantization"), among(DISPATCHER, "allgather")),
        message="moe_router_padding_for_quantization with dispatcher allgather",
        nearest=fixed(moe_token_dispatcher_type="alltoall"),
        source="transformer_config.py:2657",
        breaking=example(
            moe_router_padding_for_quantization=True,
            precision="fp8_blockwise",
            moe_token_dispatcher_type="allgather",
        ),
        passing=example(moe_router_padding_for_quantization=True, precision="fp8_blockwise"),
    ),
    Rule(
        id="router-stays-fp32",
        kind=FindingKind.WARNING,
        knobs=("moe_router_dtype", "precision"),
        broken=all_of(is_moe, on_gpu, among("moe_router_dtype", None), negated(among("precision", "fp32"))),
        message="the router computes in {precision}'s 16 bits: with many experts its scores tie and training drifts",
        nearest=fixed(moe_router_dtype="fp32"),
        source="transformer_config.py:3125; DeepEP and HybridEP want float32 probabilities",
        breaking=example(moe_router_dtype=None),
        passing=example(moe_router_dtype="fp32"),
    ),
    Rule(
        id="forced-balance",
        kind=FindingKind.WARNING,
        knobs=("moe_router_force_load_balancing",),
        broken=on("moe_router_force_load_balancing"),
        message="tokens are routed at random: good for comparing layouts, the model does not train",
        nearest=fixed(moe_router_force_load_balancing=False),
        source="Megatron-Bridge skills, moe-optimization-workflow: forced balance is benchmark-only",
        breaking=example(moe_router_force_load_balancing=True),
        passing=example(),
    ),
)
