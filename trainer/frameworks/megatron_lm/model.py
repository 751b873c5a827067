"""Arguments of Megatron-LM for the model of a recipe: those of every field, or the reason why a field has none.

Numbers equal to Megatron-LM's default are written too, in case the default changes with the version. A field that acts
only together with others is written only with those.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from trainer.frameworks.megatron_lm.flags import HEAD, flags_of, since
from trainer.frameworks.megatron_lm.spelling import AT_DEFAULT, INERT, NO_FLAG, Spelling, Words, in_words_of, worded
from trainer.recipe import Recipe
from trainer.recipe.architecture import Architecture

Test = Callable[[Architecture], bool]

OF_THE_TOKENIZER = "the tokenizer defines it"
OTHER_CONSTANT = "with latent attention Megatron-LM has no flag for it and takes {default}"


def _moe(model: Architecture) -> bool:
    return model.num_moe_experts is not None


def _mla(model: Architecture) -> bool:
    return model.multi_latent_attention


def _rotates(model: Architecture) -> bool:
    return _mla(model) or model.position_embedding_type in ("rope", "yarn")


def _linear(model: Architecture) -> bool:
    return model.experimental_attention_variant is not None and not _sparse(model)


def _sparse(model: Architecture) -> bool:
    return model.experimental_attention_variant in ("dsa", "dsv4_hybrid")


def _pattern(model: Architecture) -> bool:
    return model.hybrid_pattern is not None


# field -> the models in which it acts; a field that is not here acts in all
ACTS_IN: dict[str, Test] = {
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"), _mla),
    "rope_type": _mla,
    **dict.fromkeys(("rotary_base", "rotary_percent", "rotary_interleaved", "no_rope_freq"), _rotates),
    "rope_scaling_factor": lambda model: model.use_rope_scaling,
    **dict.fromkeys(
        ("rotary_scaling_factor", "mscale", "mscale_all_dim", "original_max_position_embeddings", "beta_fast"),
        lambda model: model.yarn,
    ),
    "beta_slow": lambda model: model.yarn,
    "yarn_correction_range_round_to_int": lambda model: model.yarn and not _mla(model),
    "moe_layer_freq": lambda model: _moe(model) and not _pattern(model),
    "moe_router_bias_update_rate": lambda model: model.moe_router_enable_expert_bias,
    **dict.fromkeys(("mtp_loss_scaling_factor", "mtp_use_repeated_layer"), lambda model: bool(model.mtp_num_layers)),
    **dict.fromkeys(
        (
            "linear_attention_freq",
            "linear_conv_kernel_dim",
            "linear_key_head_dim",
            "linear_value_head_dim",
            "linear_num_key_heads",
            "linear_num_value_heads",
        ),
        _linear,
    ),
    **dict.fromkeys(("dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk"), _sparse),
    **dict.fromkeys(("mamba_num_heads", "mamba_head_dim", "mamba_state_dim", "mamba_num_groups"), _pattern),
}
# Fields that few models change and for which Megatron-LM has our default: written only if a model changes them.
RARE = {
    "softmax_type",
    "window_size",
    "glu_linear_offset",
    "mtp_loss_scaling_factor",
    "yarn_correction_range_round_to_int",
}
LATENT_CONSTANTS = ("original_max_position_embeddings", "beta_fast", "beta_slow")

# activation, gated -> the switches
ACTIVATIONS: dict[tuple[str, bool], Words] = {
    ("silu", True): ("--swiglu",),
    ("gelu", False): (),
    ("quick_gelu", True): ("--quick-geglu",),
    ("squared_relu", False): ("--squared-relu",),
}


def model_spellings(recipe: Recipe, version: str = HEAD) -> list[Spelling]:
    """Returns the arguments of every field of the architecture, in its order."""
    return [_spelling(recipe.architecture, name, version) for name in type(recipe.architecture).model_fields]


@cache
def model_words(model: Architecture) -> Words | None:
    """Returns a model's arguments for the newest version; None if they do not express all of it."""
    spellings = [_spelling(model, name, HEAD) for name in type(model).model_fields]
    if any(spelling.lost for spelling in spellings):
        return None
    return tuple(word for spelling in spellings for word in spelling.words)


def program(recipe: Recipe, version: str = HEAD) -> str:
    """Returns the script of Megatron-LM that trains such a model; it differs for hybrid models."""
    if recipe.architecture.hybrid_pattern is None:
        return "pretrain_gpt.py"
    if since(version, "0.18"):
        return "pretrain_hybrid.py"
    return "pretrain_mamba.py --spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec"


def _spelling(model: Architecture, name: str, version: str) -> Spelling:
    value = getattr(model, name)
    if name in _BY_HAND:
        return _BY_HAND[name](model, version)
    if not acts_in(model, name):
        return Spelling(name=name, why_not=INERT)
    flags = flags_of(name)
    default = type(model).model_fields[name].default
    if not flags:
        at_rest = value == default
        return Spelling(name=name, why_not=AT_DEFAULT if at_rest else NO_FLAG, lost=not at_rest)
    if value is None or (name in RARE and value == default):
        return Spelling(name=name, why_not=AT_DEFAULT)
    if _mla(model) and name in LATENT_CONSTANTS:
        why = OTHER_CONSTANT.format(default=default)
        return Spelling(name=name, why_not=AT_DEFAULT if value == default else why, lost=value != default)
    return in_words_of(name, _words(name, value, version), version)


def _words(name: str, value: Any, version: str) -> Words:
    """Returns the words of the first flag that the version knows; of switches, the one that means the value."""
    known = [flag for flag in flags_of(name) if flag.known_to(version)] or list(flags_of(name))
    return next((words for flag in known if (words := worded(flag, value))), ())


def acts_in(model: Architecture, name: str) -> bool:
    """Returns whether the field `name` can have an effect in such a model."""
    if name.startswith("moe_") and not _moe(model):
        return False
    return name not in ACTS_IN or ACTS_IN[name](model)


def _query_groups(model: Architecture, version: str) -> Spelling:
    if model.num_query_groups is None or _mla(model):
        return Spelling(name="num_query_groups", why_not=INERT if _mla(model) else AT_DEFAULT)
    words = ("--group-query-attention", "--num-query-groups", str(model.num_query_groups))
    return in_words_of("num_query_groups", words, version)


def _query_bias(model: Architecture, version: str) -> Spelling:
    """Returns the spelling of the bias of queries, keys and values, which linear biases imply; the newest versions set
    it on their own."""
    return in_words_of("add_qkv_bias", ("--add-qkv-bias",) if query_bias(model) else (), version)


def query_bias(model: Architecture) -> bool:
    """Returns whether queries, keys and values have a bias."""
    return model.add_qkv_bias or model.add_bias_linear


def _activation(model: Architecture, version: str) -> Spelling:
    words = ACTIVATIONS.get((model.activation, model.gated_linear_unit))
    if words is None:
        kind = "gated" if model.gated_linear_unit else "plain"
        return Spelling(name="activation_func", why_not=f"no flag for {kind} {model.activation}", lost=True)
    return in_words_of("activation_func", words, version)


def _vocabulary_padding(model: Architecture, version: str) -> Spelling:
    """Returns the spelling of the padding: none unless the recipe says so, whereas Megatron-LM pads to 128 times TP by
    default."""
    words = ("--make-vocab-size-divisible-by", str(model.make_vocab_size_divisible_by or 1))
    return in_words_of("make_vocab_size_divisible_by", words, version)


def _hybrid(model: Architecture, version: str) -> Spelling:
    """Returns the spelling of the layer pattern of a hybrid model; gated delta net uses other fields."""
    pattern = model.hybrid_pattern
    if pattern is None:
        return Spelling(name="hybrid", why_not=AT_DEFAULT)
    if since(version, "0.17"):
        own = model.mtp_hybrid_override_pattern
        predicted = f"/{own}" * (model.mtp_num_layers or 0) if own else ""
        return in_words_of("hybrid", ("--hybrid-layer-pattern", pattern + predicted), version)
    return in_words_of("hybrid", ("--is-hybrid-model", "--hybrid-override-pattern", pattern), version)


def _mtp_pattern(model: Architecture, version: str) -> Spelling:
    """Returns the spelling of MTP's letters, which are at the end of the decoder's pattern; before 0.17 they cannot be
    written."""
    name, written = "mtp_hybrid_override_pattern", model.mtp_hybrid_override_pattern is not None
    if not written or since(version, "0.17"):
        return Spelling(name=name, why_not=AT_DEFAULT)
    return Spelling(name=name, why_not=NO_FLAG, lost=bool(model.mtp_num_layers))


def _not_written(name: str, why: str) -> Callable[[Architecture, str], Spelling]:
    return lambda model, version: Spelling(name=name, why_not=why)


def _rotary_base(model: Architecture, version: str) -> Spelling:
    """Returns the spelling of the rotary base, which Megatron-LM takes as an integer."""
    if not _rotates(model):
        return Spelling(name="rotary_base", why_not=INERT)
    if not model.rotary_base.is_integer():
        return Spelling(name="rotary_base", why_not="--rotary-base takes whole numbers", lost=True)
    return in_words_of("rotary_base", ("--rotary-base", str(int(model.rotary_base))), version)


_BY_HAND: dict[str, Callable[[Architecture, str], Spelling]] = {
    "vocab_size": _not_written("vocab_size", OF_THE_TOKENIZER),
    "make_vocab_size_divisible_by": _vocabulary_padding,
    "num_query_groups": _query_groups,
    "gated_linear_unit": _not_written("gated_linear_unit", AT_DEFAULT),
    "activation_func": _activation,
    "add_qkv_bias": _query_bias,
    "hybrid": _hybrid,
    "mtp_hybrid_override_pattern": _mtp_pattern,
    "rotary_base": _rotary_base,
}
