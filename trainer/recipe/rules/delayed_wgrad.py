"""Rules of weight gradients delayed behind EP communication, combined with graphs that capture their layers."""

from typing import Any

from packaging.specifiers import SpecifierSet

from trainer.recipe.predicates import all_of, any_of, has_graphs, has_shared_experts, lists, off, on
from trainer.recipe.rules.graphs import graphs
from trainer.recipe.rules.rule import BRIDGE, LM_AND_BRIDGE, Effect, FindingKind, Rule, example, fixed, without
from trainer.recipe.settings import Settings

DELAY = "delay_wgrad_compute"
SCOPE = "cuda_graph_scope"


def _has_attention_bias(recipe: Settings) -> bool:
    return recipe.architecture.add_bias_linear or recipe.architecture.add_qkv_bias


_delayed = all_of(on(DELAY), has_graphs)
_attention = all_of(_delayed, lists(SCOPE, "attn"))
_captured = all_of(
    _delayed,
    any_of(
        lists(SCOPE, "attn"),
        all_of(lists(SCOPE, "moe_router"), has_shared_experts, off("moe_shared_expert_overlap")),
    ),
)
_BIAS: dict[str, Any] = {"add_qkv_bias": True}
_DELAYED: dict[str, Any] = {DELAY: True, "overlap_moe_expert_parallel_comm": True}
_ASSERTED = (
    "src/megatron/bridge/training/comm_overlap.py, 0.4.0 :555, 0.6.2 :555; 0.3.1 asserts nothing; "
    "megatron/training/arguments.py:1918, 0.17.1 :1538"
)
_SINCE = SpecifierSet(">=0.17")

ROWS = (
    Rule(
        id="delayed-wgrad-bias",
        binds=LM_AND_BRIDGE,
        knobs=(DELAY, SCOPE, "overlap_grad_reduce"),
        broken=all_of(_attention, _has_attention_bias, on("overlap_grad_reduce")),
        message="delay_wgrad_compute with a graph of attn in a model with attention biases: the graph does not hold "
        "their gradients",
        nearest=without(SCOPE, "attn"),
        source=_ASSERTED,
        versions=_SINCE,
        versions_note="before, nothing refuses it",
        breaking=example(model=_BIAS, **graphs(**_DELAYED)),
        passing=example(model=_BIAS, **graphs(**_DELAYED, cuda_graph_scope=("moe_router",))),
    ),
    Rule(
        id="delayed-wgrad-bias-bridge",
        binds=BRIDGE,
        refuses=BRIDGE,
        kind=FindingKind.WARNING,
        knobs=(DELAY, SCOPE),
        broken=all_of(_attention, _has_attention_bias, off("overlap_grad_reduce")),
        message="delay_wgrad_compute with a graph of attn in a model with attention biases: Megatron-Bridge refuses it "
        "with overlap_grad_reduce and without",
        nearest=without(SCOPE, "attn"),
        source=_ASSERTED,
        versions=_SINCE,
        versions_note="before, nothing refuses it",
        breaking=example(model=_BIAS, **graphs(**_DELAYED, overlap_grad_reduce=False)),
        passing=example(model=_BIAS, **graphs(**_DELAYED, overlap_grad_reduce=False, cuda_graph_scope=("moe_router",))),
    ),
    Rule(
        id="delayed-wgrad-hooks",
        kind=FindingKind.WARNING,
        effect=Effect.MAY_TRAIN_WRONGLY,
        knobs=(DELAY, SCOPE),
        broken=_captured,
        message="delay_wgrad_compute with a graph of {cuda_graph_scope}: before Transformer Engine 2.12 the delayed "
        "gradients skip the hook that reduces them; Megatron-LM 0.17 and Megatron-Bridge 0.4 refuse that, older ones "
        "train on",
        hint="train with Transformer Engine 2.12 or later and with gradient accumulation fusion",
        source="Megatron-LM#2999, fixed in Megatron-LM#3074; megatron/training/arguments.py:1918",
        versions_note="a matter of Transformer Engine",
        breaking=example(**graphs(**_DELAYED, cuda_graph_scope=("attn", "moe_router"))),
        passing=example(**graphs(overlap_moe_expert_parallel_comm=True)),
    ),
    Rule(
        id="delayed-wgrad-latent",
        kind=FindingKind.WARNING,
        effect=Effect.TRAINS_WRONGLY,
        knobs=(DELAY,),
        broken=all_of(on(DELAY), lambda recipe: recipe.architecture.moe_latent_size is not None),
        message="delay_wgrad_compute with moe_latent_size {moe_latent_size}: Megatron-Core before 0.17 never computes "
        "the delayed gradients of the latent projections",
        nearest=fixed(delay_wgrad_compute=False),
        source="Megatron-LM#2977; megatron-core 0.16.1 transformer/moe/moe_layer.py backward_dw leaves them out",
        versions=SpecifierSet(">=0.16,<0.17"),
        breaking=example(model={"moe_latent_size": 256}, **_DELAYED),
        passing=example(model={"moe_latent_size": 256}, overlap_moe_expert_parallel_comm=True),
    ),
)
