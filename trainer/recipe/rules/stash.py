"""Rules of paged stash (expert activations in pages) and of the fused grouped MLP (experts as one operation)."""

from typing import Any

from packaging.specifiers import SpecifierSet

from trainer.recipe.predicates import all_of, among, any_of, is_moe, lists, negated, off, on, quantized, splits_experts
from trainer.recipe.rules.examples import FUSED
from trainer.recipe.rules.rule import MEGATRON_LM, FindingKind, Rule, example, fixed, without
from trainer.recipe.settings import Settings

STASH = "moe_paged_stash"
RANK_CAPACITY = "moe_expert_rank_capacity_factor"
FUSER = "use_transformer_engine_op_fuser"
FINE = "fine_grained_activation_offloading"
MODULES = "offload_modules"
EXPERT_MODULES = ("expert_fc1", "moe_act", "fused_group_mlp")
STASHED: dict[str, Any] = {
    "moe_paged_stash": True,
    "moe_expert_rank_capacity_factor": 1.05,
    "moe_token_dispatcher_type": "flex",
    "moe_flex_dispatcher_backend": "hybridep",
    **FUSED,
}
CUTEDSL = "NVTE_CUTEDSL_FUSED_GROUPED_MLP"
INTERLEAVE = "moe_mlp_glu_interleave_size"
SINGLE = "moe_single_grouped_weight"
_other_quantization = all_of(quantized, negated(among("precision", "mxfp8", "nvfp4")))
_offload: dict[str, Any] = {"fine_grained_activation_offloading": True, "NVTE_CPU_OFFLOAD_V1": 1}
_fused = all_of(is_moe, on(FUSER), on("moe_grouped_gemm"))


def _gated(recipe: Settings) -> bool:
    return recipe.architecture.gated_linear_unit and recipe.architecture.activation in ("silu", "quick_gelu")


ROWS = (
    Rule(
        id="paged-stash-capacity",
        knobs=("moe_paged_stash", RANK_CAPACITY),
        broken=all_of(on("moe_paged_stash"), among(RANK_CAPACITY, None)),
        message="moe_paged_stash without moe_expert_rank_capacity_factor",
        nearest=fixed(moe_paged_stash=False),
        source="transformer_config.py:2215",
        versions=SpecifierSet(">=0.18"),
        breaking=example(moe_paged_stash=True),
        passing=example(**STASHED),
    ),
    Rule(
        id="paged-stash-layers",
        knobs=(STASH, "cpu_offloading"),
        broken=all_of(on(STASH), on("cpu_offloading")),
        message="moe_paged_stash with offload of whole layers",
        nearest=fixed(cpu_offloading=False),
        source="transformer_config.py:2212",
        versions=SpecifierSet(">=0.18"),
        breaking=example(cpu_offloading=True, cpu_offloading_num_layers=2, **STASHED),
        passing=example(**STASHED),
    ),
    Rule(
        id="paged-stash-modules",
        knobs=(STASH, MODULES),
        broken=all_of(on(STASH), on(FINE), lists(MODULES, *EXPERT_MODULES)),
        message="expert activations are offloaded ({offload_modules}) that the paged stash keeps already",
        nearest=without(MODULES, *EXPERT_MODULES),
        source="transformer_config.py:2223",
        versions=SpecifierSet(">=0.18"),
        breaking=example(offload_modules=("core_attn", "fused_group_mlp"), **_offload, **STASHED),
        passing=example(offload_modules=("core_attn",), **_offload, **STASHED),
    ),
    Rule(
        id="fused-experts",
        knobs=(FUSER, "expert_tensor_parallel_size", MODULES, "moe_apply_probs_on_input"),
        broken=all_of(
            _fused,
            any_of(
                splits_experts,
                on("moe_apply_probs_on_input"),
                all_of(on(FINE), lists(MODULES, "expert_fc1", "moe_act")),
            ),
        ),
        message="the fused grouped MLP supports neither ETP {etp}, nor offload of expert_fc1 or moe_act, nor "
        "moe_apply_probs_on_input",
        nearest=fixed(use_transformer_engine_op_fuser=False),
        source="megatron/core/transformer/moe/experts.py:290",
        versions=SpecifierSet(">=0.18"),
        breaking=example(moe_apply_probs_on_input=True, **FUSED),
        passing=example(**FUSED),
    ),
    Rule(
        id="fused-gated-kernel",
        knobs=(FUSER, CUTEDSL),
        broken=all_of(_fused, _gated, negated(among(CUTEDSL, 1))),
        message="use_transformer_engine_op_fuser with gated experts and NVTE_CUTEDSL_FUSED_GROUPED_MLP "
        "{NVTE_CUTEDSL_FUSED_GROUPED_MLP}: Megatron-Core 0.19 does not start without the kernel that it switches on",
        nearest=fixed(NVTE_CUTEDSL_FUSED_GROUPED_MLP=1),
        source="megatron-core 0.19.2 moe/experts.py:398; 0.18.2 does not ask for it",
        versions=SpecifierSet(">=0.19"),
        breaking=example(**FUSED | {CUTEDSL: None}),
    ),
    Rule(
        id="fused-gated-order",
        kind=FindingKind.WARNING,
        knobs=(FUSER, INTERLEAVE),
        broken=all_of(_fused, _gated, negated(among(INTERLEAVE, 32))),
        message="use_transformer_engine_op_fuser with moe_mlp_glu_interleave_size {moe_mlp_glu_interleave_size}: "
        "Transformer Engine fuses gated experts whose gates and linear units alternate in blocks of 32 only",
        nearest=fixed(moe_mlp_glu_interleave_size=32),
        source="megatron-core 0.19.2 extensions/transformer_engine.py:3123; Transformer Engine 2.17 ops/fused",
        versions=SpecifierSet(">=0.18"),
        versions_note="it orders the rows of fc1 in another way: convert a checkpoint before it is loaded",
        breaking=example(**FUSED | {INTERLEAVE: None}),
    ),
    Rule(
        id="single-grouped-weight",
        knobs=(SINGLE, FUSER, "moe_grouped_gemm", "precision"),
        broken=all_of(on(SINGLE), any_of(off(FUSER), off("moe_grouped_gemm"), _other_quantization)),
        message="moe_single_grouped_weight needs moe_grouped_gemm, use_transformer_engine_op_fuser, and weights in 16 "
        "bits, MXFP8 or NVFP4; the precision is {precision}",
        nearest=fixed(moe_single_grouped_weight=False),
        source="megatron-core 0.19.2 transformer_config.py:1556",
        versions=SpecifierSet(">=0.19"),
        breaking=example(moe_single_grouped_weight=True),
    ),
    Rule(
        id="single-grouped-release",
        kind=FindingKind.WARNING,
        knobs=(SINGLE, "precision"),
        broken=all_of(on(SINGLE), negated(among("precision", "mxfp8"))),
        message="moe_single_grouped_weight in {precision}: Megatron-Core 0.18 takes it in MXFP8 only",
        nearest=fixed(moe_single_grouped_weight=False),
        source="megatron-core 0.18.2 transformer_config.py:1425",
        versions=SpecifierSet(">=0.18,<0.19"),
        breaking=example(moe_single_grouped_weight=True, **FUSED),
    ),
    Rule(
        id="single-grouped-fsdp",
        binds=MEGATRON_LM,
        knobs=(SINGLE, "use_megatron_fsdp"),
        broken=all_of(is_moe, on(SINGLE), on("use_megatron_fsdp")),
        message="moe_single_grouped_weight under Megatron FSDP, which cannot shard one tensor of all experts",
        nearest=fixed(moe_single_grouped_weight=False),
        source="megatron-core 0.19.2 training/arguments.py:1115",
        versions=SpecifierSet(">=0.19"),
        breaking=example(moe_single_grouped_weight=True, use_megatron_fsdp=True, **FUSED),
    ),
    Rule(
        id="offload-fused-group",
        knobs=(MODULES, FUSER),
        broken=all_of(on(FINE), lists(MODULES, "fused_group_mlp"), off(FUSER)),
        message="fused_group_mlp is offloaded without use_transformer_engine_op_fuser, which makes it",
        nearest=fixed(use_transformer_engine_op_fuser=True),
        source="transformer_config.py:2188",
        versions=SpecifierSet(">=0.19"),
        versions_note="before, no release knows the module",
        breaking=example(offload_modules=("fused_group_mlp",), **_offload),
        passing=example(offload_modules=("fused_group_mlp",), **_offload, **FUSED),
    ),
    Rule(
        id="offload-fused-parts",
        knobs=(MODULES,),
        broken=all_of(on(FINE), lists(MODULES, "fused_group_mlp"), lists(MODULES, "expert_fc1", "moe_act")),
        message="fused_group_mlp is offloaded together with its parts: {offload_modules}",
        nearest=without(MODULES, "expert_fc1", "moe_act"),
        source="transformer_config.py:2188",
        versions=SpecifierSet(">=0.19"),
        versions_note="before, no release knows the module",
        breaking=example(
            model={"num_moe_experts": None, "moe_ffn_hidden_size": None, "moe_shared_expert_intermediate_size": None},
            expert_model_parallel_size=1,
            offload_modules=("fused_group_mlp", "moe_act"),
            **_offload,
            **FUSED,
        ),
        passing=example(offload_modules=("fused_group_mlp",), **_offload, **FUSED),
    ),
    Rule(
        id="fused-group-release",
        kind=FindingKind.WARNING,
        knobs=(MODULES,),
        broken=all_of(on(FINE), lists(MODULES, "fused_group_mlp")),
        message="fused_group_mlp is offloaded: Megatron-Core before 0.19 knows no such module and refuses it",
        hint="with an older release offload expert_fc1 and moe_act, and leave use_transformer_engine_op_fuser out",
        source="megatron-core 0.18.0 transformer_config.py:1673; 0.19.0 has it",
        versions=SpecifierSet(">=0.16,<0.19"),
        breaking=example(offload_modules=("fused_group_mlp",), **_offload, **FUSED),
        passing=example(offload_modules=("core_attn",), **_offload, **FUSED),
    ),
)
