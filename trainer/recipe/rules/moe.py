"""Rules of experts: combinations with tensor parallel, dispatchers, shared experts, capacity, router."""

from packaging.specifiers import SpecifierSet

from trainer.recipe.layout import layout_of
from trainer.recipe.predicates import (
    above_one,
    all_of,
    among,
    has_shared_experts,
    is_moe,
    negated,
    off,
    on,
    on_gpu,
    quantized,
)
from trainer.recipe.rules.examples import TP2
from trainer.recipe.rules.nearest import ETP, TP
from trainer.recipe.rules.rule import BRIDGE, FindingKind, Rule, example, fixed
from trainer.recipe.settings import Settings

DISPATCHER = "moe_token_dispatcher_type"
CAPACITY = "moe_expert_capacity_factor"
PAD = "moe_pad_expert_input_to_capacity"


def _divided_experts(recipe: Settings) -> int:
    """Returns the ETP that Megatron-Core sets, TP; 1 if the ranks cannot be divided by that and EP."""
    now = layout_of(recipe)
    return now.tp if now.world % (now.tp * now.ep * now.pp) == 0 else 1


ROWS = (
    Rule(
        id="sp-needs-tp",
        knobs=("sequence_parallel", TP),
        broken=all_of(on("sequence_parallel"), negated(above_one(TP))),
        message="sequence_parallel with TP 1: Megatron-Core refuses it; Megatron-LM and Megatron-Bridge switch it off "
        "first",
        nearest=fixed(sequence_parallel=False),
        source="megatron/core/model_parallel_config.py:504; megatron/training/arguments.py:1436",
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
        binds=BRIDGE,
        refuses=BRIDGE,
        kind=FindingKind.AUTOSET,
        knobs=("moe_shared_expert_overlap", DISPATCHER),
        broken=all_of(has_shared_experts, on("moe_shared_expert_overlap"), among(DISPATCHER, "flex")),
        message="moe_shared_expert_overlap with dispatcher flex: Megatron-Bridge switches it off, and Megatron-Core "
        "before 0.18 refuses it",
        nearest=fixed(moe_shared_expert_overlap=False),
        source="src/megatron/bridge/training/flex_dispatcher_backend.py:55",
        core_refuses=SpecifierSet(">=0.16,<0.18"),
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
        id="router-padding-quantized",
        knobs=("moe_router_padding_for_quantization", "precision"),
        broken=all_of(on("moe_router_padding_for_quantization"), negated(quantized)),
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
    Rule(
        id="etp-follows-tp",
        kind=FindingKind.AUTOSET,
        knobs=(ETP, TP),
        broken=all_of(is_moe, above_one(TP), among(ETP, None)),
        message="expert_tensor_parallel_size is not written: Megatron-Core sets it to TP {tp}, and every expert is cut "
        "into {tp} parts",
        hint="write 1 for whole experts (more EP instead)",
        nearest=lambda recipe: {ETP: _divided_experts(recipe)},
        source="megatron/core/model_parallel_config.py:507",
        breaking=example(tensor_model_parallel_size=2, sequence_parallel=True, expert_model_parallel_size=4),
        passing=example(**TP2),
    ),
    Rule(
        id="capacity-dispatcher",
        kind=FindingKind.WARNING,
        binds=BRIDGE,
        knobs=(CAPACITY, DISPATCHER),
        broken=all_of(is_moe, on(CAPACITY), negated(among(DISPATCHER, "alltoall"))),
        message="moe_expert_capacity_factor with dispatcher {moe_token_dispatcher_type}: Megatron-Bridge's token drop "
        "takes alltoall only",
        nearest=fixed(moe_token_dispatcher_type="alltoall"),
        source="src/megatron/bridge/training/utils/moe_token_drop.py:59",
        breaking=example(moe_expert_capacity_factor=1.0, moe_token_dispatcher_type="allgather"),
        passing=example(moe_expert_capacity_factor=1.0),
    ),
)
