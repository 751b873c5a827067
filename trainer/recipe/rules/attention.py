"""Rules of attention and layer fields: gated delta net, windows, biases, dropout, and which implementation builds the
layers."""

from typing import Any

from packaging.specifiers import SpecifierSet

from trainer.recipe.layout import layout_of
from trainer.recipe.predicates import (
    Test,
    above_one,
    all_of,
    among,
    any_of,
    has_graphs,
    has_shared_experts,
    is_delta_net,
    is_moe,
    lists,
    negated,
    off,
    on,
    on_gpu,
    recomputed,
    splits_experts,
)
from trainer.recipe.rules.examples import DELTA, MLA
from trainer.recipe.rules.nearest import CP, ETP, TP
from trainer.recipe.rules.rule import MEGATRON_LM, FindingKind, Rule, example, fixed
from trainer.recipe.settings import Settings

IMPL = "transformer_impl"
SCOPE = "cuda_graph_scope"
MODULES = "recompute_modules"
LINEAR = ("gated_delta_net", "lightning_attention", "mamba1")  # mixers of all but some layers
_GRAPHED: dict[str, Any] = {
    "cuda_graph_impl": "transformer_engine",
    "cuda_graph_scope": ("attn",),
    "use_te_rng_tracker": True,
    "recompute_granularity": "selective",
}


def _delta_heads_broken(recipe: Settings) -> bool:
    model, now = recipe.architecture, layout_of(recipe)
    keys, values = model.linear_num_key_heads, model.linear_num_value_heads
    return values % keys != 0 or keys % (now.tp * now.cp) != 0 or values % (now.tp * now.cp) != 0


def _has_bias(recipe: Settings) -> bool:
    return recipe.architecture.add_bias_linear


def _has_window(recipe: Settings) -> bool:
    return recipe.architecture.window_size is not None


def _captured(*scopes: str) -> Test:
    """Returns a test that a CUDA graph captures one of these scopes, whole layers or the whole iteration."""
    whole = any_of(off(SCOPE), lists(SCOPE, "full_iteration"))
    return all_of(has_graphs, any_of(whole, lists(SCOPE, *scopes)))


ROWS = (
    Rule(
        id="delta-net-frequency",
        knobs=(),
        broken=lambda recipe: (
            recipe.architecture.experimental_attention_variant in LINEAR
            and recipe.architecture.linear_attention_freq is None
        ),
        message="{experimental_attention_variant} without linear_attention_freq: which layers keep full attention is "
        "not set",
        hint="write model.linear_attention_freq (4: every fourth layer)",
        source="transformer_config.py:1480; 0.16.1 :946",
        breaking=example(model={"experimental_attention_variant": "gated_delta_net"}),
        passing=example(model=DELTA),
    ),
    Rule(
        id="delta-net-heads",
        knobs=(TP, CP),
        broken=all_of(is_delta_net, _delta_heads_broken),
        message="{linear_num_key_heads} key and {linear_num_value_heads} value heads of the gated delta net do not "
        "divide over TP {tp} · CP {cp}",
        nearest=fixed(context_parallel_size=1),
        hint="the value heads must be a multiple of the key heads",
        source="transformer_config.py:1503",
        breaking=example(
            model=DELTA | {"linear_num_key_heads": 2, "linear_num_value_heads": 4}, context_parallel_size=4
        ),
        passing=example(model=DELTA, context_parallel_size=4),
    ),
    Rule(
        id="delta-net-cp-release",
        kind=FindingKind.WARNING,
        knobs=(CP,),
        broken=all_of(is_delta_net, above_one(CP)),
        message="a gated delta net over CP {cp}: Megatron-Core before 0.18 refuses it",
        nearest=fixed(context_parallel_size=1),
        source="megatron-core 0.16.1 transformer_config.py:983; 0.18.0 has it",
        versions=SpecifierSet(">=0.16,<0.18"),
        breaking=example(model=DELTA, context_parallel_size=2),
        passing=example(model=DELTA),
    ),
    Rule(
        id="window-over-cp",
        kind=FindingKind.WARNING,
        knobs=("cp_comm_type", CP),
        broken=all_of(_has_window, above_one(CP), among("cp_comm_type", None, "p2p", "a2a+p2p")),
        message="a window of attention over CP {cp} with keys passed around a ring, which Transformer Engine refuses "
        "in the first pass",
        nearest=fixed(cp_comm_type="all_gather"),
        source="Transformer Engine, attention/dot_product_attention/context_parallel.py: windows need a2a or "
        "all_gather",
        breaking=example(model={"window_size": (128, 0)}, context_parallel_size=2),
        passing=example(model={"window_size": (128, 0)}, context_parallel_size=2, cp_comm_type="all_gather"),
    ),
    Rule(
        id="mla-output-gate",
        knobs=(),
        broken=lambda recipe: recipe.architecture.multi_latent_attention and recipe.architecture.attention_output_gate,
        message="attention_output_gate with multi_latent_attention",
        hint="remove model.attention_output_gate",
        source="transformer_config.py:3350; 0.16.1 :2071",
        breaking=example(model=MLA | {"attention_output_gate": True}),
        passing=example(model={"attention_output_gate": True}),
    ),
    Rule(
        id="expert-bias-etp",
        knobs=(ETP,),
        broken=all_of(is_moe, _has_bias, splits_experts),
        message="add_bias_linear with ETP {etp}: a bias of an expert cannot be cut",
        nearest=fixed(expert_tensor_parallel_size=1),
        source="transformer_config.py:2615",
        breaking=example(
            model={"add_bias_linear": True, "moe_shared_expert_intermediate_size": None},
            tensor_model_parallel_size=2,
            sequence_parallel=True,
            expert_model_parallel_size=4,
        ),
        passing=example(model={"add_bias_linear": True, "moe_shared_expert_intermediate_size": None}),
    ),
    Rule(
        id="shared-expert-bias",
        knobs=(),
        broken=all_of(is_moe, _has_bias, has_shared_experts),
        message="add_bias_linear with shared experts",
        hint="remove model.add_bias_linear, or model.moe_shared_expert_intermediate_size",
        source="megatron/core/transformer/moe/shared_experts.py:124",
        breaking=example(model={"add_bias_linear": True}),
        passing=example(model={"add_bias_linear": True, "moe_shared_expert_intermediate_size": None}),
    ),
    Rule(
        id="graph-attention-dropout",
        knobs=(SCOPE, MODULES),
        broken=all_of(
            lambda recipe: recipe.architecture.attention_dropout > 0, recomputed("core_attn"), _captured("attn")
        ),
        message="core_attn is recomputed inside a graph with attention dropout {attention_dropout}: the second pass "
        "would drop others",
        nearest=lambda recipe: {MODULES: tuple(set(recipe.knob(MODULES) or ()) - {"core_attn"})},
        source="transformer_config.py:2883",
        breaking=example(model={"attention_dropout": 0.1}, recompute_modules=("core_attn",), **_GRAPHED),
        passing=example(model={"attention_dropout": 0.1}, recompute_modules=("layernorm",), **_GRAPHED),
    ),
    Rule(
        id="graph-hidden-dropout",
        knobs=(SCOPE, MODULES),
        broken=all_of(
            lambda recipe: recipe.architecture.hidden_dropout > 0,
            any_of(all_of(recomputed("mlp"), _captured("mlp")), all_of(recomputed("moe"), _captured("moe"))),
        ),
        message="mlp or moe is recomputed inside a graph with hidden dropout {hidden_dropout}: the second pass would "
        "drop others",
        nearest=lambda recipe: {MODULES: tuple(set(recipe.knob(MODULES) or ()) - {"mlp", "moe"})},
        source="transformer_config.py:2899",
        breaking=example(
            model={"hidden_dropout": 0.1},
            recompute_modules=("mlp", "layernorm"),
            **_GRAPHED | {"cuda_graph_scope": ("mlp",)},
        ),
        passing=example(model={"hidden_dropout": 0.1}, recompute_modules=("mlp", "layernorm"), **_GRAPHED),
    ),
    Rule(
        id="mtp-positions",
        binds=MEGATRON_LM,
        knobs=(),
        broken=lambda recipe: (
            bool(recipe.architecture.mtp_num_layers)
            and recipe.architecture.position_embedding_type not in ("rope", "none")
        ),
        message="MTP layers with {position_embedding_type} positions",
        hint="set model.position_embedding_type to rope or none",
        source="megatron/training/arguments.py:1945",
        breaking=example(model={"mtp_num_layers": 1, "position_embedding_type": "learned_absolute"}),
        passing=example(model={"mtp_num_layers": 1}),
    ),
    Rule(
        id="latent-needs-experts",
        binds=MEGATRON_LM,
        knobs=(),
        broken=all_of(lambda recipe: recipe.architecture.moe_latent_size is not None, negated(is_moe)),
        message="moe_latent_size {moe_latent_size} in a model without experts",
        hint="remove model.moe_latent_size",
        source="megatron/training/arguments.py:1981",
        breaking=example(
            model={"num_moe_experts": None, "moe_ffn_hidden_size": None, "moe_latent_size": 256},
            expert_model_parallel_size=1,
        ),
        passing=example(model={"moe_latent_size": 256}),
    ),
    Rule(
        id="local-layers",
        binds=MEGATRON_LM,
        knobs=(IMPL, "delay_wgrad_compute", "fine_grained_activation_offloading"),
        broken=all_of(
            among(IMPL, "local"), on_gpu, any_of(on("delay_wgrad_compute"), on("fine_grained_activation_offloading"))
        ),
        message="delay_wgrad_compute and fine-grained offload are done by the layers of Transformer Engine, and "
        "transformer_impl is local",
        nearest=fixed(transformer_impl="transformer_engine"),
        source="megatron/training/arguments.py:1905, :1937",
        breaking=example(
            engine="simulated",
            transformer_impl="local",
            delay_wgrad_compute=True,
            overlap_moe_expert_parallel_comm=True,
        ),
        passing=example(delay_wgrad_compute=True, overlap_moe_expert_parallel_comm=True),
    ),
    Rule(
        id="local-attention-spec",
        kind=FindingKind.WARNING,
        binds=MEGATRON_LM,
        refuses=MEGATRON_LM,
        knobs=("attention_backend",),
        broken=all_of(among("attention_backend", "local"), on_gpu),
        message="attention_backend local: Megatron-LM takes it with its local layer specification only",
        hint="add --spec local, or take unfused",
        source="megatron/training/arguments.py of 0.19.0 :435",
        breaking=example(attention_backend="local"),
        passing=example(attention_backend="unfused"),
    ),
)
