"""Rules of dispatcher `flex`: where each backend runs, what it requires, and what it is incompatible with."""

from typing import Any

from packaging.specifiers import SpecifierSet

from trainer.recipe.layout import layout_of
from trainer.recipe.predicates import all_of, among, any_of, is_moe, negated, off, on, quantized
from trainer.recipe.rules.examples import FUSED
from trainer.recipe.rules.nearest import EP
from trainer.recipe.rules.rule import BRIDGE, FindingKind, Rule, Suggestion, example, fixed
from trainer.recipe.settings import Settings

DISPATCHER = "moe_token_dispatcher_type"
BACKEND = "moe_flex_dispatcher_backend"
CAPACITY = "moe_expert_capacity_factor"
PAD = "moe_pad_expert_input_to_capacity"
RANK_CAPACITY = "moe_expert_rank_capacity_factor"
FUSER = "use_transformer_engine_op_fuser"
STATIC = "moe_ncclep_static_shape"
ZERO_COPY = "moe_ncclep_zero_copy"
CUTEDSL = "NVTE_CUTEDSL_FUSED_GROUPED_MLP"
NCCLEP: dict[str, Any] = {
    DISPATCHER: "flex",
    BACKEND: "ncclep",
    RANK_CAPACITY: 2.0,
    **FUSED,
}
SM_COUNTS = ("moe_deepep_num_sms", "moe_hybridep_num_sms")
TOPOLOGY = ("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", "NVLINK_DOMAIN_SIZE", "USE_MNNVL")
_flex = all_of(is_moe, among(DISPATCHER, "flex"))
_hybridep = all_of(_flex, among(BACKEND, "hybridep"))
_ncclep = all_of(_flex, among(BACKEND, "ncclep"))


def _nothing_to_dispatch(recipe: Settings) -> bool:
    now = layout_of(recipe)
    return now.etp * now.ep <= 1


def _unused_backend(recipe: Settings) -> bool:
    return is_moe(recipe) and recipe.knob(DISPATCHER) != "flex" and recipe.knobs.get(BACKEND, "ncclep") != "ncclep"


def _on_nvl72(recipe: Settings) -> bool:
    return recipe.hardware.is_rack_scale


def _beyond_domain(recipe: Settings) -> bool:
    return layout_of(recipe).ep > recipe.hardware.nvlink_domain_gpus


def _topology(recipe: Settings) -> Suggestion:
    """Returns the values that Megatron-Bridge's scripts set: EP ranks in an NVLink domain, its GPUs, and 1 if it
    spans nodes."""
    domain = recipe.hardware.nvlink_domain_gpus
    return dict(zip(TOPOLOGY, (min(layout_of(recipe).ep, domain), domain, int(_on_nvl72(recipe))), strict=True))


def _topology_unwritten(recipe: Settings) -> bool:
    return any(recipe.knob(name) is None for name in TOPOLOGY)


def _two_counts(recipe: Settings) -> bool:
    return all(name in recipe.knobs for name in SM_COUNTS) and len({*map(recipe.knob, SM_COUNTS)}) > 1


def _one_count(recipe: Settings) -> Suggestion:
    acting = SM_COUNTS[recipe.knob(BACKEND) == "hybridep"]
    return dict.fromkeys(SM_COUNTS, recipe.knob(acting))


def _fuses_quantized(recipe: Settings) -> bool:
    return "mxfp8" in (recipe.hardware.precisions or ()) and recipe.knob(CUTEDSL) == 1


def _fused_quantized(recipe: Settings) -> Suggestion:
    """Returns the fused experts on a GPU that has them, else the all-to-all."""
    fuses = "mxfp8" in (recipe.hardware.precisions or ())
    return {CUTEDSL: 1} if fuses else {DISPATCHER: "alltoall", RANK_CAPACITY: None}


ROWS = (
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
        id="hybridep-needs-ranks",
        kind=FindingKind.WARNING,
        knobs=(DISPATCHER,),
        broken=all_of(_hybridep, _nothing_to_dispatch),
        message="HybridEP with ETP·EP 1: Megatron-Core before 0.18 refuses it when it builds the layer",
        nearest=fixed(moe_token_dispatcher_type="alltoall"),
        source="megatron/core/transformer/moe/token_dispatcher.py:1346 of core_v0.16.1; core_v0.18.0 has no such check",
        versions=SpecifierSet(">=0.15,<0.18"),
        breaking=example(
            moe_token_dispatcher_type="flex", moe_flex_dispatcher_backend="hybridep", expert_model_parallel_size=1
        ),
        passing=example(moe_token_dispatcher_type="flex", moe_flex_dispatcher_backend="hybridep"),
    ),
    Rule(
        id="backend-without-flex",
        kind=FindingKind.FALLBACK,
        knobs=(BACKEND, DISPATCHER),
        broken=_unused_backend,
        message="this recipe asks for {moe_flex_dispatcher_backend}; without dispatcher flex it will silently run "
        "{moe_token_dispatcher_type}",
        nearest=fixed(moe_token_dispatcher_type="flex"),
        source="Megatron-Bridge skills, moe-optimization-workflow: the backend acts with dispatcher flex only",
        breaking=example(moe_flex_dispatcher_backend="hybridep"),
        passing=example(moe_flex_dispatcher_backend="hybridep", moe_token_dispatcher_type="flex"),
    ),
    Rule(
        id="deepep-platform",
        binds=BRIDGE,
        refuses=BRIDGE,
        kind=FindingKind.FALLBACK,
        knobs=(BACKEND, DISPATCHER),
        broken=all_of(_flex, among(BACKEND, "deepep"), _on_nvl72),
        message="DeepEP on {gpu}, an NVL72 system: where Megatron-Bridge applies the backend it warns and keeps "
        "alltoall, and its validation refuses a backend that is set explicitly",
        nearest=fixed(moe_flex_dispatcher_backend="hybridep"),
        source="src/megatron/bridge/training/flex_dispatcher_backend.py:65, :101",
        breaking=example(cluster={"gpu": "gb200"}, moe_token_dispatcher_type="flex"),
        passing=example(
            cluster={"gpu": "gb200"}, moe_token_dispatcher_type="flex", moe_flex_dispatcher_backend="hybridep"
        ),
    ),
    Rule(
        id="deepep-padding",
        knobs=(PAD, BACKEND),
        broken=all_of(among(DISPATCHER, "flex"), among(BACKEND, "deepep"), on(PAD)),
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
        broken=all_of(on(RANK_CAPACITY), negated(among(BACKEND, "hybridep", "ncclep"))),
        message="moe_expert_rank_capacity_factor needs dispatcher flex with HybridEP or NCCL EP",
        nearest=fixed(moe_expert_rank_capacity_factor=None),
        source="transformer_config.py:1872",
        versions=SpecifierSet(">=0.18"),
        breaking=example(moe_expert_rank_capacity_factor=1.05),
        passing=example(
            moe_expert_rank_capacity_factor=1.05,
            moe_token_dispatcher_type="flex",
            moe_flex_dispatcher_backend="hybridep",
            **FUSED,
        ),
    ),
    Rule(
        id="rank-capacity-fuser",
        knobs=(RANK_CAPACITY, FUSER),
        broken=all_of(on(RANK_CAPACITY), among(BACKEND, "hybridep"), off(FUSER)),
        message="moe_expert_rank_capacity_factor without use_transformer_engine_op_fuser: only the fused experts skip "
        "the rows that were dropped",
        nearest=fixed(use_transformer_engine_op_fuser=True),
        source="transformer_config.py:1880",
        versions=SpecifierSet(">=0.18"),
        breaking=example(
            moe_expert_rank_capacity_factor=1.05,
            moe_token_dispatcher_type="flex",
            moe_flex_dispatcher_backend="hybridep",
        ),
        passing=example(
            moe_expert_rank_capacity_factor=1.05,
            moe_token_dispatcher_type="flex",
            moe_flex_dispatcher_backend="hybridep",
            **FUSED,
        ),
    ),
    Rule(
        id="ncclep-needs-flex",
        knobs=(BACKEND, DISPATCHER),
        broken=all_of(among(BACKEND, "ncclep"), negated(among(DISPATCHER, "flex"))),
        message="backend ncclep with dispatcher {moe_token_dispatcher_type}: it exists inside dispatcher flex only",
        nearest=fixed(moe_token_dispatcher_type="flex"),
        source="transformer_config.py:1766",
        versions=SpecifierSet(">=0.19"),
        breaking=example(moe_flex_dispatcher_backend="ncclep"),
        passing=example(**NCCLEP),
    ),
    Rule(
        id="ncclep-release",
        kind=FindingKind.WARNING,
        knobs=(BACKEND,),
        broken=_ncclep,
        message="backend ncclep: Megatron-Core before 0.19 does not know it, and refuses it when a layer is built",
        nearest=fixed(
            moe_token_dispatcher_type="alltoall",
            moe_flex_dispatcher_backend="deepep",
            moe_expert_rank_capacity_factor=None,
        ),
        source="megatron-core 0.18.2 moe/token_dispatcher.py; 0.19.2 has it",
        versions=SpecifierSet(">=0.15,<0.19"),
        breaking=example(**NCCLEP),
    ),
    Rule(
        id="ncclep-rank-capacity",
        kind=FindingKind.WARNING,
        knobs=(BACKEND, RANK_CAPACITY),
        broken=all_of(_ncclep, off(RANK_CAPACITY)),
        message="NCCL EP without moe_expert_rank_capacity_factor, which sizes its receive buffer: 0.19 refuses it, "
        "later releases size the buffer in every step",
        hint="set moe_expert_rank_capacity_factor generously: with NCCL EP a rank that gets more tokens ends the run",
        source="megatron-core 0.19.2 moe/token_dispatcher.py:1563; main :1625",
        versions=SpecifierSet(">=0.19,<0.20"),
        breaking=example(moe_flex_dispatcher_backend="ncclep", moe_token_dispatcher_type="flex"),
        passing=example(**NCCLEP),
    ),
    Rule(
        id="ncclep-fuser",
        knobs=(BACKEND, RANK_CAPACITY, FUSER),
        broken=all_of(_ncclep, any_of(on(RANK_CAPACITY), on(STATIC)), any_of(off(FUSER), off("moe_grouped_gemm"))),
        message="NCCL EP with static shapes (a capacity of the rank's experts) needs use_transformer_engine_op_fuser "
        "and moe_grouped_gemm: only the fused experts skip the rest of the buffer",
        nearest=fixed(use_transformer_engine_op_fuser=True, moe_grouped_gemm=True),
        source="moe/token_dispatcher.py:1572; 0.19.2 :1537 with moe_ncclep_static_shape",
        versions=SpecifierSet(">=0.19"),
        versions_note="0.19 asks for it with moe_ncclep_static_shape only",
        breaking=example(**NCCLEP | {FUSER: False, STATIC: True}),
    ),
    Rule(
        id="ncclep-zero-copy",
        knobs=(ZERO_COPY, STATIC, RANK_CAPACITY),
        broken=all_of(_ncclep, on(ZERO_COPY), any_of(off(STATIC), off(RANK_CAPACITY))),
        message="moe_ncclep_zero_copy without a receive buffer of fixed size (moe_ncclep_static_shape, "
        "moe_expert_rank_capacity_factor)",
        nearest=fixed(moe_ncclep_zero_copy=False),
        source="megatron-core 0.19.2 moe/token_dispatcher.py:1529; main :1562",
        versions=SpecifierSet(">=0.19"),
        breaking=example(**NCCLEP | {ZERO_COPY: True}),
    ),
    Rule(
        id="ncclep-quantized",
        knobs=("precision", STATIC, RANK_CAPACITY, CUTEDSL),
        broken=all_of(_ncclep, any_of(on(STATIC), on(RANK_CAPACITY)), on(FUSER), quantized, negated(_fuses_quantized)),
        message="NCCL EP with static shapes in {precision} needs the fused experts of a Blackwell GPU "
        "(NVTE_CUTEDSL_FUSED_GROUPED_MLP 1); the GPU is {gpu}",
        nearest=_fused_quantized,
        source="megatron-core 0.19.2 moe/token_dispatcher.py:1545; main :1580",
        versions=SpecifierSet(">=0.19"),
        breaking=example(
            model={"gated_linear_unit": False, "activation_func": "squared_relu"},
            cluster={"gpu": "b200"},
            precision="mxfp8",
            **NCCLEP | {STATIC: True, CUTEDSL: None},
        ),
    ),
    Rule(
        id="ncclep-capacity",
        knobs=(BACKEND, CAPACITY, PAD),
        broken=all_of(_ncclep, any_of(on(CAPACITY), on(PAD))),
        message="NCCL EP does not drop or pad to moe_expert_capacity_factor",
        nearest=fixed(moe_expert_capacity_factor=None, moe_pad_expert_input_to_capacity=False),
        source="megatron/core/transformer/moe/token_dispatcher.py:1556",
        versions=SpecifierSet(">=0.19"),
        breaking=example(**NCCLEP | {CAPACITY: 1.0}),
        passing=example(**NCCLEP),
    ),
    Rule(
        id="hybridep-domain",
        kind=FindingKind.WARNING,
        binds=BRIDGE,
        knobs=(BACKEND, EP),
        broken=all_of(_hybridep, _on_nvl72, _beyond_domain),
        message="HybridEP with EP {ep} on {gpu}: Megatron-Bridge's scripts refuse an EP larger than the 72 GPUs of "
        "an NVLink domain",
        hint="lower expert_model_parallel_size to 64 or 72, or take another backend",
        source="scripts/performance/utils/overrides.py:274",
        breaking=example(
            model={"num_moe_experts": 160},
            cluster={"gpu": "gb200", "nodes": 20, "gpus_per_node": 4},
            global_batch_size=320,
            expert_model_parallel_size=80,
            moe_token_dispatcher_type="flex",
            moe_flex_dispatcher_backend="hybridep",
        ),
        passing=example(
            cluster={"gpu": "gb200"}, moe_token_dispatcher_type="flex", moe_flex_dispatcher_backend="hybridep"
        ),
    ),
    Rule(
        id="hybridep-topology",
        kind=FindingKind.AUTOSET,
        binds=BRIDGE,
        knobs=TOPOLOGY,
        broken=all_of(_hybridep, _topology_unwritten),
        message="HybridEP without its topology variables: Megatron-Bridge's scripts set them, any other framework "
        "leaves HybridEP to guess the NVLink domain",
        nearest=_topology,
        source="scripts/performance/utils/overrides.py:268",
        breaking=example(moe_token_dispatcher_type="flex", moe_flex_dispatcher_backend="hybridep"),
        passing=example(
            moe_token_dispatcher_type="flex",
            moe_flex_dispatcher_backend="hybridep",
            NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=8,
            NVLINK_DOMAIN_SIZE=8,
            USE_MNNVL=0,
        ),
    ),
    Rule(
        id="one-sm-count",
        kind=FindingKind.WARNING,
        knobs=SM_COUNTS,
        broken=all_of(_flex, _two_counts),
        message="moe_deepep_num_sms {moe_deepep_num_sms} and moe_hybridep_num_sms {moe_hybridep_num_sms}: 0.19 and "
        "later know one count and refuse two; before, only that of the backend acts",
        nearest=_one_count,
        source="transformer_config.py:1808",
        versions=SpecifierSet(">=0.19"),
        breaking=example(moe_token_dispatcher_type="flex", moe_deepep_num_sms=24, moe_hybridep_num_sms=16),
        passing=example(moe_token_dispatcher_type="flex", moe_deepep_num_sms=24),
    ),
)
