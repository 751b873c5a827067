"""Rules for settings with which some releases compute gradient norms, loss scales, counts or first iterations wrongly,
by reports in their issue trackers."""

from typing import Any

from packaging.specifiers import SpecifierSet

from trainer.recipe.layout import layout_of
from trainer.recipe.predicates import (
    Test,
    above_one,
    all_of,
    among,
    any_of,
    has_mtp,
    is_delta_net,
    is_moe,
    negated,
    off,
    on,
    on_gpu,
)
from trainer.recipe.rules.examples import TP2
from trainer.recipe.rules.nearest import CP, EP, TP
from trainer.recipe.rules.rule import Effect, FindingKind, Rule, example, fixed
from trainer.recipe.settings import Settings

BALANCING = "moe_router_load_balancing_type"
FORCED = "moe_router_force_load_balancing"
_CP2: dict[str, Any] = {"context_parallel_size": 2}


def _has_balancing_loss(recipe: Settings) -> bool:
    return recipe.architecture.moe_aux_loss_coeff > 0


def _has_expert_bias(recipe: Settings) -> bool:
    return recipe.architecture.moe_router_enable_expert_bias


def _groups_experts(recipe: Settings) -> bool:
    return recipe.architecture.moe_router_group_topk is not None


def _has_sinks(recipe: Settings) -> bool:
    return recipe.architecture.softmax_type == "learnable"


def _other_norm_epsilon(recipe: Settings) -> bool:
    """Returns true for a hybrid model with Mamba layers whose norms do not have Megatron-Core's default epsilon."""
    model = recipe.architecture
    return "M" in (model.hybrid_pattern or "") and model.layernorm_epsilon != 1e-5


_balanced_by: Test = all_of(is_moe, _has_balancing_loss, off(FORCED))

ROWS = (
    Rule(
        id="sink-gradient-norm",
        kind=FindingKind.WARNING,
        effect=Effect.MAY_TRAIN_WRONGLY,
        knobs=(TP,),
        broken=all_of(above_one(TP), any_of(_has_sinks, is_delta_net)),
        message="TP {tp} with learnable attention sinks or gated delta nets: the sinks and the norm after a delta net "
        "are left out of the gradient norm, so that gradients are clipped less than asked for",
        hint="compare the gradient norm with that of TP 1 before clip_grad is trusted",
        source="Megatron-LM#7452 (open)",
        versions_note="reported of 0.19 and of the main branch of 2026; earlier releases were not checked",
        breaking=example(model={"softmax_type": "learnable"}, **TP2),
        passing=example(**TP2),
    ),
    Rule(
        id="expert-gradient-norm",
        kind=FindingKind.WARNING,
        effect=Effect.INACCURATE,
        knobs=(TP, EP),
        broken=all_of(is_moe, above_one(EP), above_one(TP), on("moe_grouped_gemm")),
        message="EP {ep} with TP {tp}: Megatron-Core before 0.19 leaves experts out of the gradient norm, so that "
        "gradients are clipped less than asked for",
        hint="log the norm with Megatron-Core 0.19, or with TP 1, before clip_grad is trusted",
        source="Megatron-LM#5916, Megatron-LM#6470",
        versions=SpecifierSet(">=0.15,<0.19"),
        breaking=example(**TP2),
        passing=example(),
    ),
    Rule(
        id="fsdp-gradient-norm",
        kind=FindingKind.WARNING,
        effect=Effect.INACCURATE,
        knobs=("use_megatron_fsdp", "use_precision_aware_optimizer"),
        broken=all_of(on("use_megatron_fsdp"), on("use_precision_aware_optimizer")),
        message="Megatron FSDP with use_precision_aware_optimizer: Megatron-Core before 0.18 takes the gradient norm "
        "of other gradients than those it applies",
        nearest=fixed(use_precision_aware_optimizer=False),
        source="Megatron-LM#3746; megatron-core 0.16.1 optimizer/optimizer.py:149",
        versions=SpecifierSet(">=0.15,<0.18"),
        breaking=example(use_megatron_fsdp=True, use_precision_aware_optimizer=True),
        passing=example(use_megatron_fsdp=True),
    ),
    Rule(
        id="balancing-loss-over-cp",
        kind=FindingKind.WARNING,
        effect=Effect.INACCURATE,
        knobs=(CP, BALANCING),
        broken=all_of(_balanced_by, above_one(CP), negated(among(BALANCING, "none", "sinkhorn"))),
        message="a balancing loss over CP {cp}: Megatron-Core 0.15 divides its gradient by CP once too often",
        nearest=fixed(context_parallel_size=1),
        source="Megatron-LM#2217; megatron-core 0.15.3 pipeline_parallel/schedules.py:271, corrected in 0.16.1 :292",
        versions=SpecifierSet(">=0.15,<0.16"),
        breaking=example(**_CP2),
        passing=example(**_CP2, moe_router_load_balancing_type="none"),
    ),
    Rule(
        id="mtp-loss-over-cp",
        kind=FindingKind.WARNING,
        effect=Effect.INACCURATE,
        knobs=(CP,),
        broken=all_of(has_mtp, above_one(CP)),
        message="MTP over CP {cp}: the gradient of the MTP loss is divided by CP once too often",
        hint="multiply model.mtp_loss_scaling_factor by the CP size",
        source="Megatron-LM#3959, closed; pipeline_parallel/schedules.py has no such factor, 0.16.1 :306 to main :378",
        breaking=example(model={"mtp_num_layers": 1}, **_CP2),
        passing=example(model={"mtp_num_layers": 1}),
    ),
    Rule(
        id="global-balancing-loss",
        kind=FindingKind.WARNING,
        effect=Effect.INACCURATE,
        knobs=(BALANCING,),
        broken=all_of(_balanced_by, among(BALANCING, "global_aux_loss"), lambda recipe: layout_of(recipe).dp > 1),
        message="global_aux_loss over DP {dp}: its gradient is DP times smaller than that of aux_loss with the same "
        "coefficient",
        hint="multiply model.moe_aux_loss_coeff by DP, or take aux_loss",
        source="Megatron-LM#3672, Megatron-LM#3769; Megatron-LM#5007 is open",
        breaking=example(moe_router_load_balancing_type="global_aux_loss"),
        passing=example(moe_router_load_balancing_type="aux_loss"),
    ),
    Rule(
        id="balancing-of-other-experts",
        kind=FindingKind.WARNING,
        effect=Effect.INACCURATE,
        knobs=(BALANCING,),
        broken=all_of(
            _balanced_by,
            negated(among(BALANCING, "none", "sinkhorn")),
            any_of(_groups_experts, _has_expert_bias),
        ),
        message="{moe_router_load_balancing_type} counts the experts that scores alone would choose, not those that "
        "groups and the expert bias choose",
        nearest=fixed(moe_router_load_balancing_type="none"),
        source="Megatron-LM#2767, Megatron-LM#5195 (closed); megatron-core 0.16.1 transformer/moe/moe_utils.py:750, "
        "0.19.0 :899",
        breaking=example(model={"moe_router_num_groups": 4, "moe_router_group_topk": 2}),
        passing=example(
            model={"moe_router_num_groups": 4, "moe_router_group_topk": 2}, moe_router_load_balancing_type="none"
        ),
    ),
    Rule(
        id="expert-bias-counts",
        kind=FindingKind.WARNING,
        effect=Effect.INACCURATE,
        knobs=("precision",),
        broken=all_of(is_moe, _has_expert_bias, negated(among("precision", "fp32")), off(FORCED)),
        message="the expert bias follows counts of tokens that are added up in {precision}'s 16-bit dtype: near "
        "balance the sign of an update may be wrong",
        hint="train with a Megatron-Core later than 0.19, which counts in integers",
        source="Megatron-LM#7081; megatron-core 0.16.1 transformer/moe/router.py:164 keeps them in a buffer that "
        "Float16Module converts",
        breaking=example(model={"moe_router_enable_expert_bias": True, "moe_router_score_function": "sigmoid"}),
        passing=example(),
    ),
    Rule(
        id="mamba-norm-epsilon",
        kind=FindingKind.WARNING,
        effect=Effect.INACCURATE,
        knobs=(),
        broken=_other_norm_epsilon,
        message="layernorm_epsilon {layernorm_epsilon} in a model with Mamba layers: Megatron-Core before 0.19 gives "
        "their norms its default",
        hint="train with Megatron-Core 0.19, or take the default of 1e-5",
        source="Megatron-LM#5750",
        versions=SpecifierSet(">=0.15,<0.19"),
        breaking=example(model={"hybrid": "MEMEMEM*", "layernorm_epsilon": 1e-6}, engine="simulated"),
        passing=example(model={"layernorm_epsilon": 1e-6}),
    ),
    Rule(
        id="offload-first-iteration",
        kind=FindingKind.WARNING,
        effect=Effect.MAY_TRAIN_WRONGLY,
        knobs=("fine_grained_activation_offloading",),
        broken=all_of(on("fine_grained_activation_offloading"), on_gpu),
        message="fine-grained offload: in the first iteration an activation may be read back before it was written",
        hint="compare the first gradient norm with that of a run without offload",
        source="Megatron-LM#7398 (open)",
        versions_note="reported of the main branch of September 2026; releases were not checked",
        breaking=example(
            fine_grained_activation_offloading=True, offload_modules=("core_attn",), NVTE_CPU_OFFLOAD_V1=1
        ),
        passing=example(),
    ),
)
