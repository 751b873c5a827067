"""Rules of the model, alone and over its ranks: heads, groups, experts, router, layer pattern."""

from packaging.specifiers import SpecifierSet

from trainer.recipe.layout import layout_of
from trainer.recipe.predicates import all_of, among, is_moe, negated
from trainer.recipe.rules.examples import DENSE, MLA
from trainer.recipe.rules.nearest import EP, ETP, TP, size_where
from trainer.recipe.rules.rule import MEGATRON_LM, OURS, FindingKind, Rule, example, fixed
from trainer.recipe.settings import Settings


def _heads(recipe: Settings, tp: int) -> bool:
    return recipe.architecture.num_attention_heads % tp == 0


def _groups(recipe: Settings, tp: int) -> bool:
    model = recipe.architecture
    groups = model.num_query_groups or model.num_attention_heads
    return groups % tp == 0 or tp % groups == 0


def _experts(recipe: Settings, ep: int) -> bool:
    return (recipe.architecture.num_moe_experts or ep) % ep == 0


def _dense_width(recipe: Settings, tp: int) -> bool:
    model = recipe.architecture
    widths = [model.ffn_hidden_size or 4 * model.hidden_size] if not all(model.moe_layers) else []
    return not any(width % tp for width in [*widths, model.moe_shared_expert_intermediate_size or 0])


def _expert_width(recipe: Settings, etp: int) -> bool:
    return (recipe.architecture.moe_ffn_hidden_size or 0) % etp == 0


def _router_groups_broken(recipe: Settings) -> bool:
    model = recipe.architecture
    if not model.moe_router_group_topk:
        return False
    groups = model.moe_router_num_groups
    return not groups or (model.num_moe_experts or 0) % groups != 0 or model.moe_router_group_topk > groups


def _layer_pattern_broken(recipe: Settings) -> bool:
    model = recipe.architecture
    patterns = (model.moe_layers, model.linear_attention_freq)
    broken = any(isinstance(flags, tuple) and len(flags) != model.num_layers for flags in patterns)
    return broken or 0 < len(model.csa_compress_ratios or ()) < model.num_layers


def _mla_incomplete(recipe: Settings) -> bool:
    model = recipe.architecture
    if model.experimental_attention_variant == "dsv4_hybrid":
        return False  # this variant has no rank of keys and values
    needed = (model.kv_lora_rank, model.qk_head_dim, model.qk_pos_emb_head_dim, model.v_head_dim)
    return model.multi_latent_attention and None in needed


def _mla_whole_queries_normed(recipe: Settings) -> bool:
    model = recipe.architecture
    return model.multi_latent_attention and model.qk_layernorm and model.q_lora_rank is None


def _idle_expert_width(recipe: Settings) -> bool:
    return not is_moe(recipe) and recipe.architecture.moe_ffn_hidden_size is not None


def _mixed(recipe: Settings) -> bool:
    """Returns True if the layer pattern has dense layers."""
    frequency = recipe.architecture.moe_layer_freq
    return frequency > 1 if isinstance(frequency, int) else 0 in frequency


def _head_width_broken(recipe: Settings) -> bool:
    model = recipe.architecture
    return model.kv_channels is None and model.hidden_size % model.num_attention_heads != 0


def _mla_grouped(recipe: Settings) -> bool:
    model = recipe.architecture
    return model.multi_latent_attention and model.num_query_groups not in (None, model.num_attention_heads)


def _single_softmax(recipe: Settings) -> bool:
    model = recipe.architecture
    return is_moe(recipe) and model.moe_router_topk == 1 and model.moe_router_score_function == "softmax"


ROWS = (
    Rule(
        id="heads-over-tp",
        knobs=(TP,),
        broken=lambda recipe: not _heads(recipe, layout_of(recipe).tp),
        message="{num_attention_heads} attention heads are not a multiple of TP {tp}",
        nearest=size_where(TP, _heads),
        source="transformer_config.py:1448",
        breaking=example(
            model={"num_attention_heads": 18, "num_query_groups": 2, "kv_channels": 64},
            tensor_model_parallel_size=4,
            sequence_parallel=True,
            expert_tensor_parallel_size=1,
        ),
        passing=example(tensor_model_parallel_size=4, sequence_parallel=True, expert_tensor_parallel_size=1),
    ),
    Rule(
        id="groups-over-tp",
        knobs=(TP,),
        broken=lambda recipe: not _groups(recipe, layout_of(recipe).tp),
        message="{num_query_groups} query groups and TP {tp}: neither is a multiple of the other",
        nearest=size_where(TP, lambda recipe, tp: _groups(recipe, tp) and _heads(recipe, tp)),
        source="transformer_config.py:1466",
        breaking=example(
            model={"num_attention_heads": 24, "num_query_groups": 6},
            tensor_model_parallel_size=4,
            sequence_parallel=True,
            expert_tensor_parallel_size=1,
        ),
        passing=example(
            model={"num_query_groups": 2},
            tensor_model_parallel_size=4,
            sequence_parallel=True,
            expert_tensor_parallel_size=1,
        ),
    ),
    Rule(
        id="experts-over-ep",
        knobs=(EP,),
        broken=lambda recipe: not _experts(recipe, layout_of(recipe).ep),
        message="{num_moe_experts} experts are not a multiple of EP {ep}",
        nearest=size_where(EP, lambda recipe, ep: _experts(recipe, ep) and ep > 1),
        hint="change the number of experts or of ranks",
        source="moe_layer.py:186",
        breaking=example(model={"num_moe_experts": 12}, expert_model_parallel_size=8),
        passing=example(model={"num_moe_experts": 24}, expert_model_parallel_size=8),
    ),
    Rule(
        id="ep-needs-experts",
        knobs=(EP,),
        broken=all_of(negated(is_moe), lambda recipe: layout_of(recipe).ep > 1),
        message="EP {ep} on a model without experts",
        nearest=fixed(expert_model_parallel_size=1),
        source="transformer_config.py:1596",
        breaking=example(model=DENSE),
        passing=example(model=DENSE, expert_model_parallel_size=1),
    ),
    Rule(
        id="dense-width-over-tp",
        knobs=(TP,),
        broken=lambda recipe: not _dense_width(recipe, layout_of(recipe).tp),
        message="the dense or shared feed-forward width is not a multiple of TP {tp}",
        nearest=size_where(TP, lambda recipe, tp: _dense_width(recipe, tp) and _heads(recipe, tp)),
        source="megatron/core/tensor_parallel/layers.py ColumnParallelLinear: divide(output_size, world_size)",
        breaking=example(
            model={"moe_shared_expert_intermediate_size": 1022},
            tensor_model_parallel_size=4,
            sequence_parallel=True,
            expert_tensor_parallel_size=1,
        ),
        passing=example(tensor_model_parallel_size=4, sequence_parallel=True, expert_tensor_parallel_size=1),
    ),
    Rule(
        id="expert-width-over-etp",
        knobs=(ETP,),
        broken=all_of(is_moe, lambda recipe: not _expert_width(recipe, layout_of(recipe).etp)),
        message="expert width {moe_ffn_hidden_size} is not a multiple of ETP {etp}",
        nearest=size_where(ETP, _expert_width),
        source="megatron/core/tensor_parallel/layers.py: divide(output_size, world_size)",
        breaking=example(
            model={"moe_ffn_hidden_size": 1022},
            tensor_model_parallel_size=4,
            sequence_parallel=True,
            expert_model_parallel_size=4,
        ),
        passing=example(tensor_model_parallel_size=4, sequence_parallel=True, expert_model_parallel_size=4),
    ),
    Rule(
        id="topk-within-experts",
        knobs=(),
        broken=lambda recipe: (
            is_moe(recipe) and recipe.architecture.moe_router_topk > (recipe.architecture.num_moe_experts or 0)
        ),
        message="moe_router_topk {moe_router_topk} exceeds {num_moe_experts} experts",
        hint="lower model.moe_router_topk",
        source="megatron/core/transformer/moe/moe_utils.py: topk over the experts",
        breaking=example(model={"moe_router_topk": 17}),
        passing=example(model={"moe_router_topk": 16}),
    ),
    Rule(
        id="topk-one-softmax",
        knobs=("moe_router_load_balancing_type",),
        broken=all_of(_single_softmax, negated(among("moe_router_load_balancing_type", "sinkhorn"))),
        message="top-1 routing with a softmax over the chosen expert gives the router no gradient",
        hint="set model.moe_router_score_function to sigmoid, or model.moe_router_topk to 2",
        source="transformer_config.py:2669",
        breaking=example(model={"moe_router_topk": 1}),
        passing=example(model={"moe_router_topk": 1, "moe_router_score_function": "sigmoid"}),
    ),
    Rule(
        id="router-groups",
        knobs=(),
        broken=_router_groups_broken,
        message="group-limited routing: {num_moe_experts} experts in {moe_router_num_groups} groups, "
        "top {moe_router_group_topk} of them",
        hint="the groups must divide the experts, and moe_router_group_topk must not exceed them",
        source="transformer_config.py:2679",
        breaking=example(model={"moe_router_num_groups": 5, "moe_router_group_topk": 2}),
        passing=example(model={"moe_router_num_groups": 4, "moe_router_group_topk": 2}),
    ),
    Rule(
        id="layer-pattern-length",
        knobs=(),
        broken=_layer_pattern_broken,
        message="moe_layer_freq, linear_attention_freq or csa_compress_ratios does not have one entry for each of the "
        "{num_layers} layers",
        hint="write as many flags as layers, or one whole number",
        source="megatron/core/models/gpt/gpt_layer_specs.py: assert len(pattern) == num_layers",
        breaking=example(model={"moe_layer_freq": (1, 1, 0)}),
        passing=example(model={"moe_layer_freq": 2}),
    ),
    Rule(
        id="mla-dimensions",
        knobs=(),
        broken=_mla_incomplete,
        message="multi_latent_attention without all of kv_lora_rank, qk_head_dim, qk_pos_emb_head_dim and v_head_dim",
        hint="write the four under model",
        source="megatron/core/transformer/multi_latent_attention.py reads them; no default suits every model",
        breaking=example(model={"multi_latent_attention": True, "num_query_groups": None}),
        passing=example(model=MLA),
    ),
    Rule(
        id="mla-query-norm",
        kind=FindingKind.WARNING,
        knobs=(),
        broken=_mla_whole_queries_normed,
        message="multi_latent_attention with qk_layernorm and without q_lora_rank: Megatron-Core 0.19 normalises the "
        "input of the query projection, 0.16 to 0.18 do not: two models with the same recipe",
        hint="continue a run, and load a checkpoint, with the release that it comes from",
        source="megatron-core 0.19.2 transformer/mla_qk_norm_config.py:135; 0.18.2 has no such norm",
        versions=SpecifierSet(">=0.19"),
        breaking=example(model=MLA | {"qk_layernorm": True}),
        passing=example(model=MLA | {"qk_layernorm": True, "q_lora_rank": 64}),
    ),
    Rule(
        id="hybrid-model",
        binds=OURS,
        knobs=(),
        broken=lambda recipe: recipe.architecture.hybrid_pattern is not None and recipe.burst.engine == "megatron",
        message="GPTModel cannot build this model's layers: {hybrid}",
        hint="run it with your own script, or plan it with `burst: {engine: simulated}`",
        source="megatron/core/models/gpt/gpt_model.py builds attention and gated delta net; Mamba is MambaModel's",
        breaking=example(model={"hybrid": "MEM*MEM*"}),
        passing=example(model={"hybrid": "MEM*MEM*"}, engine="simulated"),
    ),
    Rule(
        id="expert-width-needs-experts",
        knobs=(),
        broken=all_of(_idle_expert_width, negated(_mixed)),
        message="moe_ffn_hidden_size {moe_ffn_hidden_size} in a model without experts",
        hint="remove model.moe_ffn_hidden_size, or write model.num_moe_experts",
        source="transformer_config.py:1610; 0.16.1 :1060",
        breaking=example(model={"num_moe_experts": None, "moe_layer_freq": 1}, expert_model_parallel_size=1),
        passing=example(model=DENSE, expert_model_parallel_size=1),
    ),
    Rule(
        id="expert-width-in-mixed",
        kind=FindingKind.WARNING,
        knobs=(),
        broken=all_of(_idle_expert_width, _mixed),
        message="moe_ffn_hidden_size {moe_ffn_hidden_size} in a model without experts: Megatron-Core before 0.18 "
        "refuses it, and later ones allow it for layer patterns",
        hint="remove model.moe_ffn_hidden_size, or write model.num_moe_experts",
        source="megatron-core 0.16.1 transformer_config.py:1060; loosened in 0.18.0",
        versions=SpecifierSet(">=0.16,<0.18"),
        breaking=example(model={"num_moe_experts": None}, expert_model_parallel_size=1),
        passing=example(model=DENSE, expert_model_parallel_size=1),
    ),
    Rule(
        id="head-width",
        kind=FindingKind.WARNING,
        binds=MEGATRON_LM,
        refuses=MEGATRON_LM,
        knobs=(),
        broken=_head_width_broken,
        message="hidden size {hidden_size} is not a multiple of {num_attention_heads} heads: Megatron-LM refuses it, "
        "Megatron-Core silently rounds the width of a head down",
        hint="write model.kv_channels",
        source="megatron/training/arguments.py of 0.19.0 :1292; transformer_config.py: hidden_size // "
        "num_attention_heads",
        breaking=example(model={"num_attention_heads": 24, "num_query_groups": 8}),
        passing=example(model={"num_attention_heads": 24, "num_query_groups": 8, "kv_channels": 64}),
    ),
    Rule(
        id="mla-groups",
        binds=MEGATRON_LM,
        knobs=(),
        broken=_mla_grouped,
        message="multi_latent_attention with {num_query_groups} query groups: every head has its own keys there",
        hint="remove model.num_query_groups",
        source="megatron/training/arguments.py:1974",
        breaking=example(model=MLA | {"num_query_groups": 8}),
        passing=example(model=MLA),
    ),
)
