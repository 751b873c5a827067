"""Rules of paged stash (expert activations in pages) and of the fused grouped MLP (experts as one operation)."""

from typing import Any

from packaging.specifiers import SpecifierSet

from trainer.recipe.predicates import all_of, among, any_of, is_moe, lists, off, on, splits_experts
from trainer.recipe.rules.rule import FindingKind, Rule, example, fixed, without

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
    "use_transformer_engine_op_fuser": True,
}
FUSED: dict[str, Any] = {"use_transformer_engine_op_fuser": True}
_offload: dict[str, Any] = {"fine_grained_activation_offloading": True, "NVTE_CPU_OFFLOAD_V1": 1}
_fused = all_of(is_moe, on(FUSER), on("moe_grouped_gemm"))


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
