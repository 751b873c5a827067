"""Rules of mixers other than attention: which trainers can build them, and the fields they need."""

from typing import Any

from packaging.specifiers import SpecifierSet

from trainer.recipe.layout import layout_of
from trainer.recipe.predicates import Test, above_one, all_of, among, negated
from trainer.recipe.rules.examples import DELTA, MLA
from trainer.recipe.rules.nearest import CP, LAYOUT, PP, even_layout, no_uneven
from trainer.recipe.rules.rule import LM_AND_BRIDGE, OURS, Effect, FindingKind, Rule, example, fixed
from trainer.recipe.settings import Settings

SIZES = ("dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk")
# mixer -> fields that have no suitable default
NEEDED: dict[str, tuple[str, ...]] = {
    "dsa": SIZES,
    "dsv4_hybrid": (*SIZES, "csa_compress_ratios", "q_lora_rank", "v_head_dim", "o_groups", "o_lora_rank"),
}
UNRELEASED = ("lightning_attention", "mamba1", "dsv4_hybrid")
SPARSE = {
    **MLA,
    "q_lora_rank": 128,
    "experimental_attention_variant": "dsa",
    "dsa_indexer_n_heads": 8,
    "dsa_indexer_head_dim": 64,
    "dsa_indexer_topk": 512,
}
_V4: dict[str, Any] = {
    "experimental_attention_variant": "dsv4_hybrid",
    "multi_latent_attention": True,
    "num_query_groups": None,
    "q_lora_rank": 128,
    "v_head_dim": 64,
    "qk_head_dim": 64,
    "qk_pos_emb_head_dim": 32,
    "o_groups": 4,
    "o_lora_rank": 64,
    "csa_compress_ratios": (0, 4, 128, 4, 128, 4, 128, 4),
    "dsa_indexer_n_heads": 8,
    "dsa_indexer_head_dim": 64,
    "dsa_indexer_topk": 512,
}
LIGHTNING = {"experimental_attention_variant": "lightning_attention", "linear_attention_freq": 4}


def engine_builds(recipe: Settings) -> bool:
    """Returns true if engine megatron can build the model's layers."""
    model = recipe.architecture
    return model.hybrid_pattern is None and model.experimental_attention_variant in (None, "gated_delta_net")


def _is(*variants: str) -> Test:
    return lambda recipe: recipe.architecture.experimental_attention_variant in variants


def _incomplete(recipe: Settings) -> bool:
    model = recipe.architecture
    return any(getattr(model, name) is None for name in NEEDED.get(model.experimental_attention_variant or "", ()))


ROWS = (
    Rule(
        id="engine-mixers",
        binds=OURS,
        knobs=(),
        broken=lambda recipe: (
            recipe.burst.engine == "megatron"
            and recipe.architecture.hybrid_pattern is None
            and not engine_builds(recipe)
        ),
        message="GPTModel of Megatron-Core 0.16 cannot build layers of {experimental_attention_variant}",
        hint="run it with your own script, or plan it with `burst: {engine: simulated}`",
        source="0.16.1 models/gpt/experimental_attention_variant_module_specs.py builds gated delta net only",
        breaking=example(model=LIGHTNING),
        passing=example(model=LIGHTNING, engine="simulated"),
    ),
    Rule(
        id="hybrid-letters",
        knobs=(),
        broken=lambda recipe: len(recipe.architecture.hybrid_pattern or "") not in (0, recipe.architecture.num_layers),
        message="the layer pattern {hybrid_pattern} does not have one letter for each of the {num_layers} layers",
        hint="write a letter for each layer, or as many layers as letters",
        source="megatron/training/arguments.py:790 takes the number of layers from the pattern",
        breaking=example(model={"hybrid": "MEM*"}, engine="simulated"),
        passing=example(model={"hybrid": "MEM*MEM*"}, engine="simulated"),
    ),
    Rule(
        id="hash-routed-stages",
        kind=FindingKind.WARNING,
        effect=Effect.FAILS,
        knobs=(PP, LAYOUT),
        broken=all_of(_is("dsv4_hybrid"), above_one(PP), among(LAYOUT, None)),
        message="PP {pp} without a pipeline_model_parallel_layout: the hash-routed layers read the tokens, and must be "
        "on the embedding's stage",
        nearest=lambda recipe: {LAYOUT: even_layout(recipe, layout_of(recipe).pp)} | no_uneven(recipe),
        source="Megatron-Bridge#4131",
        breaking=example(model=_V4, engine="simulated", pipeline_model_parallel_size=2, expert_model_parallel_size=4),
    ),
    Rule(
        id="mixer-unreleased",
        kind=FindingKind.WARNING,
        binds=LM_AND_BRIDGE,
        refuses=LM_AND_BRIDGE,
        knobs=(),
        broken=_is(*UNRELEASED),
        message="no release of Megatron-Core has layers of {experimental_attention_variant}",
        hint="train it with a trainer of your own, or plan it with `burst: {engine: simulated}`",
        source="transformer_config.py:301 names gated delta net and dsa; dsv4_hybrid is on the dev branch",
        breaking=example(model=LIGHTNING, engine="simulated"),
        passing=example(model=SPARSE, engine="simulated"),
    ),
    Rule(
        id="mixer-fields",
        knobs=(),
        broken=_incomplete,
        message="{experimental_attention_variant} without all of its sizes: for dsa those of the indexer, for "
        "dsv4_hybrid also csa_compress_ratios, q_lora_rank, v_head_dim, o_groups and o_lora_rank",
        hint="write them under model",
        source="0.16.1 experimental_attention_variant/dsa.py reads them without a default; csa.py of the dev branch",
        breaking=example(model=SPARSE | {"dsa_indexer_topk": None}, engine="simulated"),
        passing=example(model=SPARSE, engine="simulated"),
    ),
    Rule(
        id="mtp-delta-net",
        knobs=(),
        broken=lambda recipe: (
            bool(recipe.architecture.mtp_num_layers) and recipe.architecture.mtp_kind.mixer == "gated_delta_net"
        ),
        message="MTP layers have the type of the last decoder layer, and Megatron-Core has none with a gated delta net",
        hint="let the last layer keep full attention (linear_attention_freq), or remove model.mtp_num_layers",
        source="multi_token_prediction.py:1150 wants a mask type, which the mixer's specification has not; 0.16.1 :626",
        breaking=example(model=DELTA | {"linear_attention_freq": 3, "mtp_num_layers": 1}),
        passing=example(model=DELTA | {"mtp_num_layers": 1}),
    ),
    Rule(
        id="sparse-attention-over-cp",
        knobs=(CP, "cp_comm_type"),
        broken=all_of(_is("dsa"), above_one(CP), negated(among("cp_comm_type", "all_gather"))),
        message="sparse attention over CP {cp} with cp_comm_type {cp_comm_type}: it gathers keys and values only",
        nearest=fixed(cp_comm_type="all_gather"),
        source="transformer_config.py:3164",
        breaking=example(model=SPARSE, engine="simulated", context_parallel_size=2),
        passing=example(model=SPARSE, engine="simulated", context_parallel_size=2, cp_comm_type="all_gather"),
    ),
    Rule(
        id="sparse-attention-cp-release",
        kind=FindingKind.WARNING,
        knobs=(CP,),
        broken=all_of(_is("dsa"), above_one(CP)),
        message="sparse attention over CP {cp}: Megatron-Core before 0.19 refuses it",
        nearest=fixed(context_parallel_size=1),
        source="0.16.1 transformer_config.py:1987; 0.19.0 :2838 has it",
        versions=SpecifierSet(">=0.16,<0.19"),
        breaking=example(model=SPARSE, engine="simulated", context_parallel_size=2, cp_comm_type="all_gather"),
        passing=example(model=SPARSE, engine="simulated"),
    ),
    Rule(
        id="sparse-attention-release",
        kind=FindingKind.WARNING,
        knobs=(),
        broken=_is("dsa"),
        message="sparse attention: GPTModel of Megatron-Core builds it from 0.18 on",
        hint="take 0.18 or newer",
        source="0.18.0 models/gpt/experimental_attention_variant_module_specs.py:144; 0.17.0 has no such case",
        versions=SpecifierSet(">=0.16,<0.18"),
        breaking=example(model=SPARSE, engine="simulated"),
        passing=example(model=MLA, engine="simulated"),
    ),
)
